"""The notes of an inbox, the due times of its batches, and the forwarded batches."""

import pytest
from crc32c import crc32c

from conveyor.delay.forwarding_batches import batches_of
from conveyor.delay.forwarding_records import Cancelled, Intent, Note, Range, note_record, read_note
from conveyor.delay.forwarding_scan import DueRun, scan_due
from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.state_machine import LogRecord
from conveyor.log.log import Log
from conveyor.log.record_source import MessageSource
from conveyor.records.batch import CONTROL, CRC_START, HEADER_BYTES, MAGIC_END, read_header
from conveyor.records.compression import NONE, ZSTD
from conveyor.records.message_attributes import DELAY_MS
from conveyor.records.record import decode_records, encode_batch
from conveyor.settings.tree import TopicSettings
from conveyor.testing import MemoryDisk
from tests.unit.log.logs import NOW_MS, append, batch, idempotent_batch, open_topic_log

LATER = [(DELAY_MS, b"500")]


def garbled(content: bytes) -> bytes:
    """Return a valid batch whose records cannot be decoded."""
    changed = bytearray(content)
    changed[HEADER_BYTES] = 0xFF
    changed[MAGIC_END:CRC_START] = crc32c(memoryview(changed)[CRC_START:]).to_bytes(4, "big")
    return bytes(changed)


def forwarded(log: Log, *ranges: Range, topic: TopicSettings | None = None) -> list[bytes]:
    source = MessageSource("__inbox.t", 0, log)
    intent = Intent(0, 0, ranges)
    return list(batches_of(intent, source, log.written_offset, topic or TopicSettings()))


def values(content: bytes) -> list[bytes | None]:
    return [record.value for record in decode_records(content)]


@pytest.mark.parametrize("note", [Cancelled(7), Intent(5, 9, ((1, 4), (9, 10)), is_early=True), Intent(0, 0, ())])
def test_a_note_is_read_back_as_it_was_written(note: Note) -> None:
    assert read_note(note_record(note)) == note


def test_notes_are_stored_as_control_records_of_their_own_kinds() -> None:
    assert note_record(Cancelled(7)) == LogRecord(bytes.fromhex("0000 0065"), bytes.fromhex("0000000000000007"))
    intent = note_record(Intent(5, 9, ((1, 4),), is_early=True))
    packed = "0000000000000005 0000000000000009 01 0000000000000001 00000003"
    assert intent == LogRecord(bytes.fromhex("0000 0064"), bytes.fromhex(packed))


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


def test_a_note_is_never_due() -> None:
    record = note_record(Cancelled(1))
    note = encode_batch([(NOW_MS, record.key, record.value, ())], attributes=CONTROL)
    assert scan_due(read_header(note), note) == []


def test_a_whole_batch_goes_on_as_it_is_without_its_producer() -> None:
    log = open_topic_log(MemoryDisk())
    sent = idempotent_batch(3, b"1", b"2")
    append(log, sent)
    (batches,) = forwarded(log, (0, 2))
    header, before = read_header(batches), read_header(sent)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert batches[HEADER_BYTES:] == sent[HEADER_BYTES:]
    assert header.crc == crc32c(memoryview(batches)[CRC_START:]) != before.crc


def test_a_batch_that_makes_no_sense_goes_on_as_it_is() -> None:
    log = open_topic_log(MemoryDisk())
    append(log, garbled(batch(b"1")))
    append(log, garbled(batch(b"1", b"2")))
    assert [len(content) for content in forwarded(log, (0, 1), (1, 3))] == [len(batch(b"1")), len(batch(b"1", b"2"))]


def test_records_of_many_batches_are_packed_in_their_order() -> None:
    log = open_topic_log(MemoryDisk())
    for number in range(4):
        append(log, batch(b"%d" % number, b"-"))
    batches = forwarded(log, (6, 7), (0, 1), (2, 4), (4, 5))
    assert [values(content) for content in batches] == [[b"3", b"0"], [b"1", b"-"], [b"2"]]


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
    batches = forwarded(
        log, *((offset, offset + 1) for offset in range(10)), topic=TopicSettings(max_message_bytes=1_000)
    )
    assert len(batches) == 5
    assert all(len(content) <= 1_000 for content in batches)


def test_a_record_that_is_lost_stops_the_forwarder() -> None:
    log = open_topic_log(MemoryDisk())
    append(log, batch(b"1"))
    append(log, batch(b"2"))
    log.trim(1)
    with pytest.raises(StorageFailure, match="lost the record at offset 0"):
        forwarded(log, (0, 1))
