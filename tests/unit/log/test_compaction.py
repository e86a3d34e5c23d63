"""What compaction keeps, and how a smaller batch looks."""

from conveyor.kernel.settings import TopicSettings
from conveyor.log import compression
from conveyor.log.batch import DELETE_HORIZON, batch_is_intact, iterate_batches, read_header
from conveyor.log.compaction import compact
from conveyor.log.log import Log
from conveyor.log.records import Record, decode_records, encode_batch
from conveyor.testing import MemoryDisk
from tests.unit.log.logs import NOW_MS, append, flush, open_topic_log, read_bytes

TOPIC = TopicSettings(segment_bytes=1024, cleanup_policy="compact", min_cleanable_dirty_ratio=0)
FILLING = bytes(400)


def keyed(*pairs: tuple[bytes, bytes | None], codec: int = compression.NONE, sequence: int = -1) -> bytes:
    """A batch of (key, value)."""
    producer_id = 7 if sequence >= 0 else -1
    records = [(NOW_MS, key, value, [("h", b"1")]) for key, value in pairs]
    return encode_batch(
        records, codec=codec, producer_id=producer_id, producer_epoch=0, base_sequence=sequence
    )  # fmt: skip


def compacted(disk: MemoryDisk, log: Log, now_ms: int = NOW_MS) -> None:
    plan = log.plan_compaction(log.flushed_offset, now_ms, 1000)
    assert plan is not None
    result = compact(disk, plan)
    job = log.begin_swap(result)
    assert job is not None
    job.run()
    log.complete_swap(result)


def filled(disk: MemoryDisk, *batches: bytes) -> Log:
    """The batches, sealed: an active segment with one record follows."""
    log = open_topic_log(disk, TOPIC)
    for each in batches:
        append(log, each)
    append(log, keyed((b"last", bytes(1000))))
    flush(log)
    return log


def everything(log: Log) -> list[Record]:
    records: list[Record] = []
    offset = 0
    while content := read_bytes(log, offset):
        for position, header in iterate_batches(content):
            records += decode_records(content[position : position + header.size])
            offset = header.next_offset
    return records


def test_compaction_keeps_the_last_record_of_each_key() -> None:
    disk = MemoryDisk()
    log = filled(disk, keyed((b"a", b"1"), (b"b", b"1")), keyed((b"a", b"2"), (b"c", FILLING)), keyed((b"c", b"3")))
    compacted(disk, log)
    assert [(each.offset, each.key, each.value) for each in everything(log)[:-1]] == [
        (1, b"b", b"1"),
        (2, b"a", b"2"),
        (4, b"c", b"3"),
    ]
    assert everything(open_topic_log(disk, TOPIC)) == everything(log)


def test_compaction_keeps_offsets_producer_and_codec_of_a_smaller_batch() -> None:
    disk = MemoryDisk()
    whole = keyed((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), codec=compression.ZSTD, sequence=0)
    log = filled(disk, whole, keyed((b"x", FILLING)))
    compacted(disk, log)
    content = read_bytes(log, 0)
    before, after = read_header(whole), read_header(content)
    assert (after.base_offset, after.last_offset_delta, after.records_count) == (0, 2, 2)
    assert (after.attributes, after.producer_id, after.producer_epoch, after.base_sequence) == (
        before.attributes, before.producer_id, before.producer_epoch, before.base_sequence,
    )  # fmt: skip
    assert batch_is_intact(content[: after.size])


def test_compaction_leaves_a_batch_that_loses_nothing_as_it_is() -> None:
    disk = MemoryDisk()
    first = keyed((b"a", b"1"), (b"b", FILLING))
    log = filled(disk, first, keyed((b"c", FILLING)))
    compacted(disk, log)
    assert read_bytes(log, 0)[17 : len(first)] == first[17:]


def test_tombstone_stays_for_its_time_and_then_goes() -> None:
    disk = MemoryDisk()
    log = filled(disk, keyed((b"a", FILLING)), keyed((b"a", None)), keyed((b"b", FILLING)))
    compacted(disk, log)
    header = read_header(read_bytes(log, 0))
    assert header.attributes & DELETE_HORIZON
    assert header.base_timestamp == NOW_MS + TOPIC.delete_retention_ms
    assert everything(log)[0].value is None
    assert everything(log)[0].timestamp_ms == NOW_MS
    append(log, keyed((b"more", bytes(1000))))
    flush(log)
    compacted(disk, log, NOW_MS + TOPIC.delete_retention_ms)
    assert [each.key for each in everything(log)][:2] == [b"b", b"last"]


def test_records_without_a_key_go() -> None:
    disk = MemoryDisk()
    plain = TopicSettings(segment_bytes=1024)
    log = open_topic_log(disk, plain)
    append(log, encode_batch([(NOW_MS, None, FILLING, ())]))
    append(log, keyed((b"a", FILLING)))
    append(log, keyed((b"b", bytes(1000))))
    flush(log)
    log.topic = TOPIC
    compacted(disk, log)
    assert [each.key for each in everything(log)] == [b"a", b"b"]


def test_a_reader_in_the_middle_of_a_replaced_segment_gets_it_whole() -> None:
    disk = MemoryDisk()
    log = filled(disk, keyed((b"a", FILLING)), keyed((b"a", FILLING)))
    held = log.read(0, 10_000, log.flushed_offset, at_least_one=True)
    assert held is not None
    before = held.file.read(held.position, held.length)
    compacted(disk, log)
    assert held.file.read(held.position, held.length) == before


def test_a_segment_that_was_emptied_is_passed_over() -> None:
    disk = MemoryDisk()
    log = filled(disk, keyed((b"a", bytes(900))), keyed((b"a", bytes(900))))
    compacted(disk, log)
    assert [segment.size > 0 for segment in log.segments] == [False, True, True]
    assert [each.offset for each in everything(log)] == [1, 2]
    assert [each.offset for each in everything(open_topic_log(disk, TOPIC))] == [1, 2]


def test_a_swap_is_refused_when_the_log_has_let_go_of_what_it_replaces() -> None:
    disk = MemoryDisk()
    log = filled(disk, keyed((b"a", FILLING)), keyed((b"a", FILLING)), keyed((b"a", FILLING)), keyed((b"b", FILLING)))
    plan = log.plan_compaction(log.flushed_offset, NOW_MS, 1000)
    assert plan is not None
    result = compact(disk, plan)
    log.trim(log.flushed_offset)
    assert log.begin_swap(result) is None


def test_batches_beyond_the_keys_that_were_remembered_stay_as_they_are() -> None:
    """What is above the cleaned offset may have no gaps: a tombstone there is not even marked to go."""
    disk = MemoryDisk()
    log = filled(disk, keyed((b"a", b"1")), keyed((b"b", None)))
    before = read_bytes(log, 1)
    plan = log.plan_compaction(log.flushed_offset, NOW_MS, 1)
    assert plan is not None
    result = compact(disk, plan)
    assert (result.cleaned_offset, result.replaced) == (1, ())
    assert read_bytes(log, 1) == before
