"""One segment: its bounds, its sparse indexes, and the way from being written to sealed and back."""

import pytest

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ids import NO_TIMESTAMP
from conveyor.log.segments.files import segment_path
from conveyor.log.segments.index import Entries, Entry
from conveyor.log.segments.segment import Segment
from conveyor.records.batch import HEADER, read_header
from conveyor.testing import MemoryDisk
from tests.unit.log.logs import DIRECTORY, batch

BASE = 100
CONTENT = batch(b"a", b"b")
SIZE = len(CONTENT)


def filled(disk: MemoryDisk, count: int, *, times: list[int] | None = None, interval_bytes: int = SIZE) -> Segment:
    """A segment of batches of two records, with about every other one in the index."""
    segment = Segment(disk, DIRECTORY, BASE, create=True)
    for number in range(count):
        segment.file.append([CONTENT])
        at_ms = times[number] if times else number
        segment.note(segment.next_offset + 1, at_ms, number * SIZE, SIZE, interval_bytes)
    return segment


def sealed(disk: MemoryDisk, count: int) -> Segment:
    segment = filled(disk, count)
    segment.indexes.finish()
    segment.indexes.use_files(segment.write_seal())
    return segment


def positions(segment: Segment) -> list[int]:
    return [segment.indexes.position_before(offset) for offset in range(BASE, segment.next_offset)]


def test_segment_path_has_twenty_digits() -> None:
    assert segment_path("logs/t-0", 7, "log") == "logs/t-0/00000000000000000007.log"


def test_new_segment_is_empty() -> None:
    segment = Segment(MemoryDisk(), DIRECTORY, BASE, create=True)
    assert (segment.size, segment.next_offset, segment.max_timestamp, segment.sealed) == (0, BASE, NO_TIMESTAMP, False)
    assert segment.indexes.position_before(BASE) == 0


def test_note_moves_the_bounds() -> None:
    segment = filled(MemoryDisk(), 3, times=[5, 9, 7])
    assert (segment.next_offset, segment.max_timestamp, segment.size) == (BASE + 6, 9, 3 * SIZE)


def test_index_has_one_entry_for_each_interval() -> None:
    assert len(filled(MemoryDisk(), 9).indexes.offsets) == 4
    assert len(filled(MemoryDisk(), 9, interval_bytes=100 * SIZE).indexes.offsets) == 0


def test_position_before_is_never_after_the_batch() -> None:
    found = positions(filled(MemoryDisk(), 9))
    wanted = [number // 2 * SIZE for number in range(18)]
    assert all(place <= batch_start and place % SIZE == 0 for place, batch_start in zip(found, wanted, strict=True))
    assert all(batch_start - place <= 2 * SIZE for place, batch_start in zip(found, wanted, strict=True))


def test_sealed_segment_finds_what_the_open_one_found() -> None:
    disk = MemoryDisk()
    before = positions(filled(disk, 9))
    after = sealed(MemoryDisk(), 9)
    assert after.sealed
    assert positions(after) == before


def test_loaded_indexes_go_on_where_they_were() -> None:
    segment = sealed(MemoryDisk(), 9)
    before = positions(segment)
    segment.indexes.reopen()
    assert not segment.sealed
    assert positions(segment) == before
    segment.file.append([CONTENT])
    segment.note(segment.next_offset + 1, 99, 9 * SIZE, SIZE, 0)
    assert segment.max_timestamp == 99


def test_boundary_at_or_before_is_an_indexed_batch() -> None:
    segment = filled(MemoryDisk(), 9)
    assert segment.indexes.boundary_at_or_before(2 * SIZE - 1) == 0
    assert segment.indexes.boundary_at_or_before(2 * SIZE) == 2 * SIZE
    assert segment.indexes.boundary_at_or_before(10**9) == 8 * SIZE


def test_position_before_time_skips_only_older_batches() -> None:
    times = [50, 10, 60, 20, 70, 30, 80, 40, 90]
    segment = filled(MemoryDisk(), 9, times=times)
    for wanted in range(100):
        skipped = segment.indexes.position_before_time(wanted) // SIZE
        assert all(at_ms < wanted for at_ms in times[:skipped])
    assert segment.indexes.position_before_time(90) > 0


def test_time_index_holds_the_newest_when_sealed() -> None:
    segment = filled(MemoryDisk(), 4, times=[1, 2, 3, 99])
    segment.indexes.finish()
    entries = segment.indexes.times
    assert entries[len(entries) - 1] == (99, 7)


def test_header_at_reads_a_header() -> None:
    assert filled(MemoryDisk(), 2).files.header_at(SIZE) == read_header(CONTENT)


def test_header_at_the_end_is_a_failure_that_names_the_file() -> None:
    segment = filled(MemoryDisk(), 1)
    with pytest.raises(StorageFailure, match=r"00000000000000000100\.log"):
        segment.files.header_at(SIZE - 60)


def test_forget_indexes_starts_anew() -> None:
    disk = MemoryDisk()
    segment = sealed(disk, 9)
    segment.forget_indexes()
    assert (segment.next_offset, segment.max_timestamp, segment.sealed) == (BASE, NO_TIMESTAMP, False)
    assert len(segment.indexes.offsets) == len(segment.indexes.times) == 0
    segment.files.remove_indexes()
    assert disk.list(DIRECTORY) == ["00000000000000000100.log"]


def test_seal_of_another_size_is_not_taken() -> None:
    disk = MemoryDisk()
    sealed(disk, 3).file.append([CONTENT])
    segment = Segment(disk, DIRECTORY, BASE)
    assert segment.load_seal().is_of_other_file
    assert not segment.sealed


def test_damaged_seal_is_not_taken() -> None:
    disk = MemoryDisk()
    sealed(disk, 3)
    path = segment_path(DIRECTORY, BASE, "seal")
    content = bytearray(disk.read(path))
    content[9] ^= 1
    disk.write_atomic(path, bytes(content))
    segment = Segment(disk, DIRECTORY, BASE)
    assert segment.load_seal().seal is None
    assert not segment.sealed


def test_remove_leaves_nothing() -> None:
    disk = MemoryDisk()
    sealed(disk, 3).remove()
    assert disk.list(DIRECTORY) == []


TIMES = [5, 9, 7, 9, 12, 11, 3, 30, 2]


def entries_of(entries: Entries) -> list[Entry]:
    return [entries[number] for number in range(len(entries))]


@pytest.mark.parametrize("state", ["active", "sealed", "reopened", "grown"])
@pytest.mark.parametrize("count", range(10))
def test_shortened_segment_is_as_if_it_had_never_been_longer(state: str, count: int) -> None:
    disk = MemoryDisk()
    segment = filled(disk, 9 if state in ("active", "sealed", "reopened") else 5, times=TIMES)
    if state != "active":
        segment.indexes.finish()
        segment.indexes.use_files(segment.write_seal())
    if state in ("reopened", "grown"):
        segment.indexes.reopen()
    for number in range(segment.size // SIZE, 9):
        segment.file.append([CONTENT])
        segment.note(segment.next_offset + 1, TIMES[number], number * SIZE, SIZE, SIZE)
    file = disk.open(segment.files.path("log"))
    file.truncate(0)
    expected = Segment(MemoryDisk(), DIRECTORY, BASE, create=True)
    for number in range(count):
        header = read_header(CONTENT)._replace(base_offset=BASE + 2 * number, max_timestamp=TIMES[number])
        content = HEADER.pack(*header) + CONTENT[HEADER.size :]
        file.append([content])
        expected.file.append([content])
        expected.note(header.next_offset - 1, header.max_timestamp, number * SIZE, SIZE, SIZE)
    shorter = segment.shortened(count * SIZE)
    for number in range(count, 12):
        for each in (shorter, expected):
            each.file.append([CONTENT])
            each.note(each.next_offset + 1, 20 + number, number * SIZE, SIZE, SIZE)
    assert entries_of(shorter.indexes.offsets) == entries_of(expected.indexes.offsets)
    assert entries_of(shorter.indexes.times) == entries_of(expected.indexes.times)
    assert (shorter.next_offset, shorter.max_timestamp) == (expected.next_offset, expected.max_timestamp)
    assert [shorter.indexes.position_before_time(at_ms) for at_ms in range(40)] == [
        expected.indexes.position_before_time(at_ms) for at_ms in range(40)
    ]
    assert positions(shorter) == positions(expected)
