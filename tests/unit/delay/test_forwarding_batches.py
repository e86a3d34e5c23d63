"""The due times of a delayed topic's batches, and the forwarded batches."""

import pytest
from crc32c import crc32c

from conveyor.delay import forwarding_scan
from conveyor.delay.forwarding_batches import ForwardedBatch, ForwardingBatches
from conveyor.delay.forwarding_records import Intent, Range
from conveyor.delay.forwarding_scan import DueRun, scan_due
from conveyor.kernel.errors import StorageFailure
from conveyor.log.log import Log
from conveyor.log.record_source import MessageSource, StillPacked, unpack_batch
from conveyor.records.batch import CONTROL, CRC_START, HEADER_BYTES, MAGIC_END, read_header
from conveyor.records.compression import NONE, ZSTD
from conveyor.records.message_attributes import DELAY_MS, DELIVER_AT_MS
from conveyor.records.record import decode_records, encode_batch
from conveyor.settings.tree import TopicSettings
from conveyor.testing import MemoryDisk
from tests.unit.log.logs import NOW_MS, append, batch, idempotent_batch, open_topic_log

LATER = [(DELAY_MS, b"500")]
SEQUENCE = 2**31 - 2


def garbled(content: bytes) -> bytes:
    """Return a valid batch whose records cannot be decoded."""
    changed = bytearray(content)
    changed[HEADER_BYTES] = 0xFF
    changed[MAGIC_END:CRC_START] = crc32c(memoryview(changed)[CRC_START:]).to_bytes(4, "big")
    return bytes(changed)


def batches(log: Log, *ranges: Range, topic: TopicSettings | None = None) -> list[ForwardedBatch]:
    source = MessageSource("later", 0, log)
    intent = Intent(producer_id=7, sequence=SEQUENCE, target_offset=0, carried_out=0, ranges=ranges)
    found = []
    for made in ForwardingBatches(intent, source, log.written_offset, topic or TopicSettings()):
        if isinstance(made, StillPacked):
            source.keep(unpack_batch(made.header, made.place))
        else:
            found.append(made)
    return found


def forwarded(log: Log, *ranges: Range, topic: TopicSettings | None = None) -> list[bytes]:
    """Return the batches, after a check that their sequences follow each other."""
    sequence, contents = SEQUENCE, []
    for content, offsets_count in batches(log, *ranges, topic=topic):
        header = read_header(content)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 0, sequence)
        assert header.last_offset_delta + 1 == offsets_count
        sequence = (sequence + offsets_count) % 2**31
        contents.append(content)
    return contents


def values(content: bytes) -> list[bytes | None]:
    return [record.value for record in decode_records(content)]


def test_neighbours_that_are_due_at_once_are_one_run() -> None:
    records = [(NOW_MS, None, b"", headers) for headers in ([], [("a", b"")], LATER, LATER, [], [])]
    content = encode_batch(records)
    due = NOW_MS + 500
    assert scan_due(read_header(content), content) == [
        DueRun(0, 2, 0), DueRun(2, 3, due), DueRun(3, 4, due), DueRun(4, 6, 0),
    ]  # fmt: skip


@pytest.mark.parametrize("content", [batch(b"1", b"2"), garbled(encode_batch([(0, None, b"", LATER)] * 2))])
def test_a_batch_that_asks_for_nothing_or_makes_no_sense_is_due_at_once(content: bytes) -> None:
    assert scan_due(read_header(content), content) == [DueRun(0, 2, 0)]


def test_a_marker_is_never_due() -> None:
    marker = encode_batch([(NOW_MS, b"", b"", ())], attributes=CONTROL)
    assert scan_due(read_header(marker), marker) == []


def test_a_batch_too_large_to_read_single_records_is_due_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    content = encode_batch([(NOW_MS, None, b"x" * 100, LATER)] * 2)
    monkeypatch.setattr(forwarding_scan, "MAX_DELAYED_BYTES", 200)
    assert scan_due(read_header(content), content) == [DueRun(0, 2, 0)]


def test_a_whole_batch_goes_on_as_it_is_with_another_producer() -> None:
    log = open_topic_log(MemoryDisk())
    sent = idempotent_batch(3, b"1", b"2")
    append(log, sent)
    (content,) = forwarded(log, (0, 2))
    header, before = read_header(content), read_header(sent)
    assert content[HEADER_BYTES:] == sent[HEADER_BYTES:]
    assert header.crc == crc32c(memoryview(content)[CRC_START:]) != before.crc


def test_a_batch_that_makes_no_sense_goes_on_as_it_is() -> None:
    log = open_topic_log(MemoryDisk())
    append(log, garbled(batch(b"1")))
    append(log, garbled(batch(b"1", b"2")))
    assert [len(content) for content in forwarded(log, (0, 1), (1, 3))] == [len(batch(b"1")), len(batch(b"1", b"2"))]


def test_records_of_many_batches_are_packed_in_their_order() -> None:
    log = open_topic_log(MemoryDisk())
    for number in range(4):
        append(log, batch(b"%d" % number, b"-"))
    found = forwarded(log, (6, 7), (0, 1), (2, 4), (4, 5))
    assert [values(content) for content in found] == [[b"3", b"0"], [b"1", b"-"], [b"2"]]


def test_packed_records_are_compressed_as_the_topic_says_and_a_lone_one_as_it_was() -> None:
    log = open_topic_log(MemoryDisk())
    append(log, batch(b"1", b"2"))
    append(log, batch(b"3", codec=ZSTD))
    codecs = [read_header(content).attributes for content in forwarded(log, (0, 1), (2, 3))]
    assert codecs == [NONE, ZSTD]
    topic = TopicSettings(compression_type="zstd")
    assert [read_header(content).attributes for content in forwarded(log, (0, 1), topic=topic)] == [ZSTD]


def test_packed_batches_stay_below_what_the_topic_takes() -> None:
    log = open_topic_log(MemoryDisk())
    append(log, batch(*[b"x" * 300] * 10))
    found = forwarded(
        log, *((offset, offset + 1) for offset in range(10)), topic=TopicSettings(max_message_bytes=1_000)
    )
    assert len(found) == 5
    assert all(len(content) <= 1_000 for content in found)


def test_a_large_batch_is_unpacked_by_the_caller() -> None:
    log = open_topic_log(MemoryDisk())
    append(log, batch(*[b"%d" % number for number in range(2_000)], codec=ZSTD))
    assert [values(content) for content in forwarded(log, (5, 6), (1_998, 2_000))] == [[b"5", b"1998", b"1999"]]


def test_a_lone_compressed_record_is_repacked_where_records_are_stamped() -> None:
    log = open_topic_log(MemoryDisk())
    append(log, encode_batch([(NOW_MS, None, b"x", LATER)], codec=ZSTD))
    stamped = TopicSettings(message_timestamp_type="LogAppendTime")
    (content,) = forwarded(log, (0, 1), topic=stamped)
    [record] = decode_records(content)
    assert record.headers == ((DELIVER_AT_MS, b"%d" % (NOW_MS + 500)),)


def test_an_intent_ends_early_at_a_record_that_was_deleted() -> None:
    log = open_topic_log(MemoryDisk())
    append(log, batch(b"0", b"1"))
    append(log, batch(b"2", b"3"))
    log.start.trim(2)
    assert [(values(content), count) for content, count in batches(log, (3, 4), (1, 2), (2, 3))] == [([b"3"], 1)]


def test_a_record_that_is_lost_stops_the_forwarder(monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_topic_log(MemoryDisk())
    append(log, batch(b"1", b"2"))
    monkeypatch.setattr(MessageSource, "get", lambda *_: None)
    with pytest.raises(StorageFailure, match="the record at offset 0 is lost"):
        forwarded(log, (0, 1))
