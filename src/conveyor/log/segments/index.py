"""The sparse indexes of a segment, by offset and by time, in Kafka's formats.

    <base>.index      (last offset of a batch - base offset) uint32, position of that batch uint32
    <base>.timeindex  largest timestamp so far int64, (offset of its batch's last record - base offset) uint32

The first column of each is strictly ascending. The active segment's indexes are in memory. They are written when the
segment is sealed, in one piece and after the segment was flushed. A sealed index is searched in its file, with a few
reads per lookup and no memory. A segment that is reopened after a clean stop keeps its index files; only new entries
are in memory.
"""

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from struct import Struct
from typing import Protocol

from conveyor.kernel.ports import File

OFFSET_ENTRY = Struct(">II")
TIME_ENTRY = Struct(">qI")
Entry = tuple[int, int]
_WORD_BYTES = 4


class Entries(Protocol):
    """Index entries in ascending order."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> Entry: ...

    def encode(self) -> bytes:
        """Return the content of the index file. Raises StorageFailure."""
        ...


class MemoryEntries:
    """The entries of the active segment: 8 bytes each, or 12 if `first_typecode` is `q`."""

    def __init__(self, first_typecode: str = "I") -> None:
        self._first = array(first_typecode)
        self._second = array("I")

    def __len__(self) -> int:
        return len(self._first)

    def __getitem__(self, number: int, /) -> Entry:
        return self._first[number], self._second[number]

    def append(self, first: int, second: int) -> None:
        """Add an entry. Other threads, which may read meanwhile, count the first column: it is complete last."""
        self._second.append(second)
        self._first.append(first)

    def extend(self, entries: Iterable[Entry]) -> None:
        """Add entries in ascending order."""
        for first, second in entries:
            self.append(first, second)

    def encode(self) -> bytes:
        """Return the content of the index file. Encodes whole columns: a million entries take a few milliseconds."""
        columns = [*_words(self._first), self._second]
        out = array("I", bytes(_WORD_BYTES * len(columns) * len(self)))
        for number, column in enumerate(columns):
            out[number :: len(columns)] = column
        if sys.byteorder == "little":
            out.byteswap()
        return out.tobytes()


def _words(column: "array[int]") -> "list[array[int]]":
    """Return a column of 32 or 64 bits as columns of 32 bits, the most significant first."""
    if column.itemsize == _WORD_BYTES:
        return [column]
    words = array("I", column.tobytes())
    return [words[1::2], words[::2]] if sys.byteorder == "little" else [words[::2], words[1::2]]


class FileEntries:
    """The entries of a sealed segment, read from the file."""

    def __init__(self, file: File, layout: Struct) -> None:
        self.file = file
        self._layout = layout
        self._count = file.size // layout.size

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int, /) -> Entry:
        if not 0 <= number < self._count:
            raise IndexError(number)
        size = self._layout.size
        first, second = self._layout.unpack(self.file.read(number * size, size))
        return first, second

    def encode(self) -> bytes:
        """Return the file's content. Raises StorageFailure."""
        return self.file.read(0, self._count * self._layout.size)


class JoinedEntries:
    """The entries of a reopened segment: those of its index file, and new ones in memory."""

    def __init__(self, stored: Entries, added: Entries) -> None:
        self._stored = stored
        self._added = added

    def __len__(self) -> int:
        return len(self._stored) + len(self._added)

    def __getitem__(self, number: int, /) -> Entry:
        count = len(self._stored)
        return self._stored[number] if number < count else self._added[number - count]

    def encode(self) -> bytes:
        """Return the content of the new index file. Raises StorageFailure."""
        return self._stored.encode() + self._added.encode()


def _first_column(entry: Entry) -> int:
    return entry[0]


def _second_column(entry: Entry) -> int:
    return entry[1]


def floor_by_first(entries: Entries, key: int) -> Entry | None:
    """Return the last entry whose first column is at most the key."""
    number = bisect_right(entries, key, key=_first_column)
    return entries[number - 1] if number else None


def floor_by_second(entries: Entries, key: int) -> Entry | None:
    """Return the last entry whose second column is at most the key."""
    number = bisect_right(entries, key, key=_second_column)
    return entries[number - 1] if number else None


def below_by_second(entries: Entries, key: int) -> Entry | None:
    """Return the last entry whose second column is below the key."""
    number = count_below_by_second(entries, key)
    return entries[number - 1] if number else None


def count_below_by_second(entries: Entries, key: int) -> int:
    """Return how many entries have a second column below the key."""
    return bisect_left(entries, key, key=_second_column)


def ceiling_by_first(entries: Entries, key: int) -> Entry | None:
    """Return the first entry whose first column is at least the key."""
    number = bisect_left(entries, key, key=_first_column)
    return entries[number] if number < len(entries) else None
