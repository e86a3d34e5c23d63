"""What compaction keeps, and how a smaller batch looks."""

from dataclasses import replace

import pytest
from crc32c import crc32c

from conveyor.kernel.errors import LogDamaged
from conveyor.kernel.ports import Disk
from conveyor.log.compaction.key_compaction import compact
from conveyor.log.log import Log
from conveyor.records import compression
from conveyor.records.batch import (
    CRC_START,
    DELETE_HORIZON,
    HEADER,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    MAGIC_END,
    batch_is_intact,
    iterate_batches,
    read_header,
)
from conveyor.records.record import Record, decode_records, encode_batch
from conveyor.settings.tree import TopicSettings
from conveyor.testing import MemoryDisk
from tests.unit.log.logs import NOW_MS, all_below, append, flush, open_topic_log, read_bytes

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
    plan = log.compaction.plan(all_below(log.flushes.flushed_offset), now_ms, 1000)
    assert plan is not None
    result = compact(disk, plan)
    job = log.compaction.begin_swap(result)
    assert job is not None
    new = job.run()
    log.compaction.complete_swap(result, new)


def filled(disk: Disk, *batches: bytes) -> Log:
    """The batches, sealed: an active segment with one record follows."""
    log = open_topic_log(disk, TOPIC)
    for each in batches:
        log.use(replace(TOPIC, cleanup_policy="delete"))
        append(log, each)
        log.use(TOPIC)
    append(log, keyed((b"last", bytes(1000))))
    flush(log)
    return log


def poisoned(codec: int, count: int = 1) -> bytes:
    """A batch with a right CRC whose records do not unpack. A plain topic takes it, and may be compacted later."""
    header = read_header(keyed((b"a", b"x")))
    content = b"not packed at all"
    batch = bytearray(
        HEADER.pack(
            *header._replace(
                batch_length=HEADER_BYTES - LENGTH_PREFIX_BYTES + len(content),
                attributes=codec,
                last_offset_delta=count - 1,
                records_count=count,
            )
        )
    )
    batch += content
    batch[MAGIC_END:CRC_START] = crc32c(memoryview(batch)[CRC_START:]).to_bytes(4, "big")
    return bytes(batch)


def everything(log: Log, offset: int = 0) -> list[Record]:
    records: list[Record] = []
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
    log.use(TOPIC)
    compacted(disk, log)
    assert [each.key for each in everything(log)] == [b"a", b"b"]


def test_a_reader_in_the_middle_of_a_replaced_segment_gets_it_whole() -> None:
    disk = MemoryDisk()
    log = filled(disk, keyed((b"a", FILLING)), keyed((b"a", FILLING)))
    held = log.read(0, 10_000, log.flushes.flushed_offset, at_least_one=True)
    assert held is not None
    before = held.file.read(held.position, held.length)
    compacted(disk, log)
    assert held.file.read(held.position, held.length) == before


def test_a_segment_that_was_emptied_is_passed_over() -> None:
    disk = MemoryDisk()
    log = filled(disk, keyed((b"a", bytes(900))), keyed((b"a", bytes(900))))
    compacted(disk, log)
    assert [segment.size > 0 for segment in log.segments.all] == [False, True, True]
    assert [each.offset for each in everything(log)] == [1, 2]
    assert [each.offset for each in everything(open_topic_log(disk, TOPIC))] == [1, 2]


def test_a_swap_is_refused_when_the_log_has_let_go_of_what_it_replaces() -> None:
    disk = MemoryDisk()
    log = filled(disk, keyed((b"a", FILLING)), keyed((b"a", FILLING)), keyed((b"a", FILLING)), keyed((b"b", FILLING)))
    plan = log.compaction.plan(all_below(log.flushes.flushed_offset), NOW_MS, 1000)
    assert plan is not None
    result = compact(disk, plan)
    log.start.trim(log.flushes.flushed_offset)
    assert log.compaction.begin_swap(result) is None


def test_a_swap_is_refused_when_the_topic_is_not_compacted_any_more() -> None:
    """What consumers read does not change once the setting has changed, however long the compaction took."""
    disk = MemoryDisk()
    log = filled(disk, keyed((b"a", FILLING)), keyed((b"a", FILLING)))
    plan = log.compaction.plan(all_below(log.flushes.flushed_offset), NOW_MS, 1000)
    assert plan is not None
    result = compact(disk, plan)
    log.use(replace(TOPIC, cleanup_policy="delete"))
    assert log.compaction.begin_swap(result) is None
    log.use(TOPIC)
    assert log.compaction.begin_swap(result) is not None


def test_batches_beyond_the_keys_that_were_remembered_stay_as_they_are() -> None:
    """What is above the cleaned offset may have no gaps: a tombstone there is not even marked to go."""
    disk = MemoryDisk()
    log = filled(disk, keyed((b"a", b"1")), keyed((b"b", None)))
    before = read_bytes(log, 1)
    plan = log.compaction.plan(all_below(log.flushes.flushed_offset), NOW_MS, 1)
    assert plan is not None
    result = compact(disk, plan)
    assert (result.cleaned_offset, result.replaced) == (1, ())
    assert read_bytes(log, 1) == before


@pytest.mark.parametrize("codec", [compression.GZIP, compression.SNAPPY, compression.LZ4, compression.ZSTD])
def test_a_batch_that_cannot_be_read_stays_as_it_is_and_is_counted(codec: int) -> None:
    disk = MemoryDisk()
    poison = poisoned(codec)
    log = filled(disk, keyed((b"a", b"1")), poison, keyed((b"a", b"2"), (b"b", FILLING)), keyed((b"c", FILLING)))
    plan = log.compaction.plan(all_below(log.flushes.flushed_offset), NOW_MS, 1000)
    assert plan is not None
    result = compact(disk, plan)
    assert (result.unreadable_batches, result.first_unreadable_offset, result.cleaned_offset) == (1, 1, 5)
    job = log.compaction.begin_swap(result)
    assert job is not None
    log.compaction.complete_swap(result, job.run())
    stored = read_bytes(log, 1)
    assert stored[17 : len(poison)] == poison[17:]
    assert [each.key for each in everything(log, 2)] == [b"a", b"b", b"c", b"last"]


def test_unreadable_batches_do_not_end_compaction_whatever_they_claim() -> None:
    """More records than any compaction may remember keys: each round gets on all the same."""
    disk = MemoryDisk()
    log = filled(disk, keyed((b"a", b"1")), poisoned(compression.GZIP, count=2**20), keyed((b"a", b"2")))
    cleaned = [log.compaction.cleaned_offset]
    while (plan := log.compaction.plan(all_below(log.flushes.flushed_offset), NOW_MS, 1000)) is not None:
        result = compact(disk, plan)
        job = log.compaction.begin_swap(result)
        assert job is not None
        log.compaction.complete_swap(result, job.run())
        cleaned.append(log.compaction.cleaned_offset)
    assert cleaned == sorted(set(cleaned))
    assert cleaned[-1] == 1 + 2**20 + 1


@pytest.mark.parametrize("is_dirty", [True, False])
@pytest.mark.parametrize("place", ["a key", "a value", "a base offset", "a length"])
def test_a_damaged_batch_ends_the_compaction_and_stays_as_it_is(place: str, is_dirty: bool) -> None:
    """In a smaller batch, which has a new CRC, the damage would count as what was written."""
    disk = MemoryDisk()
    log = filled(disk, keyed((b"a", b"1"), (b"key", b"value")), keyed((b"a", b"2"), (b"c", FILLING)))
    if not is_dirty:
        compacted(disk, log)
        append(log, keyed((b"key", bytes(1000))))
        append(log, keyed((b"last", bytes(1000))))
        flush(log)
    path = f"{log.place.path}/{0:020}.log"
    content = disk.read(path)
    places = {"a key": content.index(b"key"), "a value": content.index(b"value"), "a base offset": 0, "a length": 11}
    disk.flip(path, places[place], 0)
    damaged = {name: disk.read(f"{log.place.path}/{name}") for name in disk.list(log.place.path)}
    plan = log.compaction.plan(all_below(log.flushes.flushed_offset), NOW_MS, 1000)
    assert plan is not None
    with pytest.raises(LogDamaged, match=path):
        compact(disk, plan)
    assert {name: disk.read(f"{log.place.path}/{name}") for name in damaged} == damaged


def test_a_segment_that_has_lost_whole_batches_ends_the_compaction() -> None:
    disk = MemoryDisk()
    log = filled(disk, keyed((b"a", b"1")), keyed((b"a", b"2"), (b"b", FILLING)))
    plan = log.compaction.plan(all_below(log.flushes.flushed_offset), NOW_MS, 1000)
    assert plan is not None
    disk.open(f"{log.place.path}/{0:020}.log").truncate(read_header(read_bytes(log, 0)).size)
    with pytest.raises(LogDamaged):
        compact(disk, plan)
