"""Index entries: in memory and in a file alike, and how they are searched."""

import pytest

from conveyor.log.segments.index import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    FileEntries,
    JoinedEntries,
    MemoryEntries,
    ceiling_by_first,
    floor_by_first,
    floor_by_second,
)
from conveyor.testing import MemoryDisk

ENTRIES = [(4, 100), (9, 250), (20, 900)]


def memory_entries() -> MemoryEntries:
    entries = MemoryEntries()
    for entry in ENTRIES:
        entries.append(*entry)
    return entries


def file_entries() -> FileEntries:
    file = MemoryDisk().open("index", create=True)
    file.append([memory_entries().encode()])
    return FileEntries(file, OFFSET_ENTRY)


def joined_entries() -> JoinedEntries:
    """The last one has come to those of the file."""
    file = MemoryDisk().open("index", create=True)
    file.append([memory_entries().encode()[: -OFFSET_ENTRY.size]])
    added = MemoryEntries()
    added.append(*ENTRIES[-1])
    return JoinedEntries(FileEntries(file, OFFSET_ENTRY), added)


AnyEntries = MemoryEntries | FileEntries | JoinedEntries


@pytest.fixture(params=[memory_entries, file_entries, joined_entries])
def entries(request: pytest.FixtureRequest) -> AnyEntries:
    made: AnyEntries = request.param()
    return made


def test_entries_are_encoded_one_after_the_other(entries: AnyEntries) -> None:
    assert entries.encode() == b"".join(OFFSET_ENTRY.pack(*entry) for entry in ENTRIES)


def test_entries_are_read_back(entries: AnyEntries) -> None:
    assert [entries[number] for number in range(len(entries))] == ENTRIES


@pytest.mark.parametrize(("key", "found"), [(3, None), (4, ENTRIES[0]), (19, ENTRIES[1]), (99, ENTRIES[2])])
def test_floor_by_first(entries: AnyEntries, key: int, found: tuple[int, int] | None) -> None:
    assert floor_by_first(entries, key) == found


@pytest.mark.parametrize(("key", "found"), [(99, None), (100, ENTRIES[0]), (899, ENTRIES[1]), (5000, ENTRIES[2])])
def test_floor_by_second(entries: AnyEntries, key: int, found: tuple[int, int] | None) -> None:
    assert floor_by_second(entries, key) == found


@pytest.mark.parametrize(("key", "found"), [(4, ENTRIES[0]), (5, ENTRIES[1]), (20, ENTRIES[2]), (21, None)])
def test_ceiling_by_first(entries: AnyEntries, key: int, found: tuple[int, int] | None) -> None:
    assert ceiling_by_first(entries, key) == found


def test_empty_entries_find_nothing() -> None:
    assert floor_by_first(MemoryEntries(), 5) is None
    assert ceiling_by_first(FileEntries(MemoryDisk().open("index", create=True), TIME_ENTRY), 5) is None


def test_file_entries_end_where_the_file_does() -> None:
    with pytest.raises(IndexError):
        file_entries()[len(ENTRIES)]


def test_file_entries_leave_out_a_cut_one() -> None:
    file = MemoryDisk().open("index", create=True)
    file.append([memory_entries().encode()[:-1]])
    assert len(FileEntries(file, OFFSET_ENTRY)) == 2


def test_time_entries_have_kafkas_layout() -> None:
    times = MemoryEntries("q")
    times.append(-1, 0)
    times.append(2**40, 2**32 - 1)
    assert times.encode() == b"\xff" * 8 + bytes(4) + (2**40).to_bytes(8, "big") + b"\xff" * 4
