"""Index files that are missing, damaged or large: a lookup reads little, whatever is wrong; a thread does the rest."""

from collections.abc import Callable

import pytest

from conveyor.kernel.errors import LogDamaged, OutOfFiles, StorageFailure
from conveyor.log.batch_reading import batches_between
from conveyor.log.log import Log
from conveyor.log.segments import segment_indexes
from conveyor.log.segments.lookup import find_newest, find_time
from conveyor.log.segments.segment_indexes import IndexUnavailable
from conveyor.settings.tree import TopicSettings
from conveyor.testing import MemoryDisk
from conveyor.testing.memory_disk import MemoryFile
from tests.unit.log.logs import NOW_MS, append, batch, open_topic_log, read_bytes, records_of, segment_file

COUNT = 400
VALUE = bytes(4000)
SIZE = len(batch(VALUE))
MOST_BYTES = 200_000
"""What a lookup may read: two searches in an interval of a rebuilt index, and the two small files of this log."""


def damaged(suffix: str, damage: Callable[[bytes], bytes | None]) -> MemoryDisk:
    """A stopped log of one segment, with one damaged index file."""
    disk = MemoryDisk()
    log = open_topic_log(disk)
    for number in range(COUNT):
        append(log, batch(VALUE, at_ms=NOW_MS + number))
    log.close()
    path = segment_file(0, suffix)
    content = damage(disk.read(path))
    disk.remove(path)
    if content is not None:
        disk.write_atomic(path, content)
    return disk


def flipped(content: bytes) -> bytes:
    return content[:70] + bytes([content[70] ^ 4]) + content[71:]


@pytest.fixture
def read_lengths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How much each read of a file has returned."""
    lengths: list[int] = []
    read, read_whole = MemoryFile.read, MemoryDisk.read

    def counted_read(file: MemoryFile, position: int, length: int) -> bytes:
        content = read(file, position, length)
        lengths.append(len(content))
        return content

    def counted_read_whole(disk: MemoryDisk, path: str) -> bytes:
        content = read_whole(disk, path)
        lengths.append(len(content))
        return content

    monkeypatch.setattr(MemoryFile, "read", counted_read)
    monkeypatch.setattr(MemoryDisk, "read", counted_read_whole)
    return lengths


LOOKUPS: list[Callable[[Log], object]] = [
    lambda log: log.read(350, 1000, COUNT, at_least_one=True),
    lambda log: log.read(0, 10 * SIZE, 350, at_least_one=True),
    lambda log: find_time(log.segments.all, NOW_MS + 350, COUNT),
    lambda log: find_newest(log.segments.all, 350),
    lambda log: log.truncation.truncate_to(350),
]
DAMAGES: list[Callable[[bytes], bytes | None]] = [
    flipped, lambda content: content[:-1], lambda content: content * 5_000, lambda _: None,
]  # fmt: skip


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
@pytest.mark.parametrize("damage", DAMAGES, ids=["flipped", "short", "huge", "missing"])
@pytest.mark.parametrize("lookup", LOOKUPS, ids=["read", "read to a limit", "time", "newest", "truncate"])
def test_lookup_reads_little_whatever_is_damaged(
    lookup: Callable[[Log], object],
    damage: Callable[[bytes], bytes | None],
    suffix: str,
    read_lengths: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segment_indexes, "CHECKED_AT_ONCE_BYTES", 20_000)
    disk = damaged(suffix, damage)
    log = open_topic_log(disk)
    wanted: set[object] = set()
    for _ in range(3):  # Until the lookup succeeds: it wants the same indexes as long as they are not available.
        read_lengths.clear()
        try:
            lookup(log)
        except IndexUnavailable as unavailable:
            assert sum(read_lengths) < MOST_BYTES
            wanted.add(unavailable.indexes)
    assert len(wanted) <= 1
    for indexes in wanted:
        assert indexes is log.segments.all[0].indexes.stored
    log.segments.all[0].indexes.stored.prepare()
    read_lengths.clear()
    lookup(log)
    assert sum(read_lengths) < MOST_BYTES


def test_indexes_that_wait_for_a_thread_are_not_checked_again(read_lengths: list[int]) -> None:
    log = open_topic_log(damaged("index", flipped))
    for _ in range(2):
        read_lengths.clear()
        with pytest.raises(IndexUnavailable, match=r"00000000000000000000\.index"):
            log.read(350, 1000, COUNT, at_least_one=True)
    assert sum(read_lengths) < 100


def test_append_after_a_clean_stop_reads_no_index(read_lengths: list[int]) -> None:
    log = open_topic_log(damaged("timeindex", flipped))
    read_lengths.clear()
    append(log, batch(b"next"))
    assert sum(read_lengths) < 100


def test_segment_that_grows_over_damaged_indexes_is_sealed_with_whole_ones() -> None:
    disk = damaged("timeindex", flipped)
    log = open_topic_log(disk)
    append(log, batch(b"next", at_ms=NOW_MS + COUNT))
    log.close()
    reopened = open_topic_log(disk)
    assert records_of(read_bytes(reopened, COUNT)) == [(COUNT, b"next")]
    found = find_time(reopened.segments.all, NOW_MS + 123, COUNT)
    assert found is not None
    assert found.offset == 123


def test_large_index_is_checked_on_a_thread_and_used(read_lengths: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_indexes, "CHECKED_AT_ONCE_BYTES", 100)
    log = open_topic_log(damaged("index", lambda content: content))
    read_lengths.clear()
    with pytest.raises(IndexUnavailable) as raised:
        log.read(350, 1000, COUNT, at_least_one=True)
    assert sum(read_lengths) < 100
    raised.value.indexes.prepare()
    assert sum(read_lengths) < 10_000, "the segment is not read"
    assert records_of(read_bytes(log, 350, 1000))[0][0] == 350


def test_reader_that_may_block_needs_no_other_thread() -> None:
    log = open_topic_log(damaged("index", flipped))
    assert [found.header.base_offset for found in batches_between(log, 350, COUNT)] == list(range(350, COUNT))


def test_segment_that_does_not_match_its_seal_is_damaged() -> None:
    disk = damaged("index", flipped)
    disk.flip(segment_file(0), 100 * SIZE + 7, 3)
    log = open_topic_log(disk)
    with pytest.raises(LogDamaged, match=r"00000000000000000000\.log is damaged"):
        log.segments.all[0].indexes.stored.prepare()


def test_index_that_is_removed_while_it_is_opened_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trim removes the files of a segment on another thread; that does not take the log offline."""
    disk = damaged("index", lambda content: content)
    log = open_topic_log(disk)
    check = MemoryDisk.check

    def removed(disk: MemoryDisk, operation: str, path: str) -> None:
        if (operation, path) == ("open", segment_file(0, "index")):
            disk.remove(path)
        check(disk, operation, path)

    monkeypatch.setattr(MemoryDisk, "check", removed)
    log.segments.all[0].indexes.stored.prepare()
    assert records_of(read_bytes(log, 350, 1000))[0][0] == 350


@pytest.mark.parametrize("kind", [StorageFailure, OutOfFiles])
def test_failure_while_preparing_is_raised_and_can_be_repeated(kind: type[StorageFailure]) -> None:
    disk = damaged("index", flipped)
    log = open_topic_log(disk)
    if kind is OutOfFiles:
        disk.faults.out_of_files = True
    else:
        disk.faults.fail("read")
    with pytest.raises(kind):
        log.segments.all[0].indexes.stored.prepare()
    disk.faults.heal()
    log.segments.all[0].indexes.stored.prepare()
    assert records_of(read_bytes(log, 350, 1000))[0][0] == 350


def test_preparing_writes_no_file() -> None:
    disk = damaged("index", flipped)
    before = {path: disk.read(path) for path in disk.paths()}
    log = open_topic_log(disk, TopicSettings())
    log.segments.all[0].indexes.stored.prepare()
    assert {path: disk.read(path) for path in disk.paths()} == before


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
def test_damage_since_the_first_use_gets_no_right_checksum(suffix: str) -> None:
    disk = damaged("index", lambda content: content)
    log = open_topic_log(disk)
    assert find_time(log.segments.all, NOW_MS + 350, COUNT) is not None
    assert read_bytes(log, 350)
    disk.flip(segment_file(0, suffix), 70, 2)
    append(log, batch(VALUE, at_ms=NOW_MS + COUNT))
    log.close()
    log = open_topic_log(disk)
    for number in range(COUNT + 1):
        assert log.segments.all[0].indexes.position_before(number) <= number * SIZE
        found = find_time(log.segments.all, NOW_MS + number, COUNT + 1)
        assert found is not None
        assert found.offset == number
