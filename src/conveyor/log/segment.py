"""One segment: a file of record batches, and its two sparse indexes.

A segment is written (active), then sealing (closed, not yet flushed), then sealed (flushed, index files on disk).
Only the last segment of a log is written. Who may call: `Log` and recovery.
"""

from collections.abc import Sequence
from struct import Struct

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ids import NO_TIMESTAMP
from conveyor.kernel.ports import Bytes, Disk, File
from conveyor.log.batch import HEADER_BYTES, BatchHeader, read_header
from conveyor.log.index import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    Entries,
    FileEntries,
    MemoryEntries,
    below_by_first,
    floor_by_first,
    floor_by_second,
)

OFFSET_DIGITS = 20
MAX_BYTES = (1 << 31) - 1
"""Positions in the index are 32 bits wide, and Kafka reads them as signed."""


def segment_path(directory: str, base_offset: int, suffix: str) -> str:
    """`<directory>/<base offset, 20 digits>.<suffix>`"""
    return f"{directory}/{base_offset:0{OFFSET_DIGITS}d}.{suffix}"


class Segment:
    """A segment's file, its size, its bounds and its indexes."""

    def __init__(self, disk: Disk, directory: str, base_offset: int, ending: str = "") -> None:
        """`ending` is put behind its files' names: for a segment that is not in the log yet."""
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.max_timestamp = NO_TIMESTAMP
        self.first_append_ms: int | None = None
        self.sealed = False
        self._disk = disk
        self._directory = directory
        self._ending = ending
        self.file: File = disk.open(self.path("log"))
        self._offsets = MemoryEntries()
        self._times = MemoryEntries("q")
        self._sealed_offsets: FileEntries | None = None
        self._sealed_times: FileEntries | None = None
        self._max_timestamp_offset = base_offset
        self._bytes_since_entry = 0

    def path(self, suffix: str) -> str:
        return segment_path(self._directory, self.base_offset, suffix) + self._ending

    @staticmethod
    def paths_of(directory: str, base_offset: int, ending: str = "") -> tuple[str, ...]:
        """A segment's files, the offset index first: without it a segment does not count as flushed."""
        return tuple(segment_path(directory, base_offset, suffix) + ending for suffix in ("index", "timeindex", "log"))

    @property
    def size(self) -> int:
        return self.file.size

    @property
    def offset_entries(self) -> Entries:
        return self._offsets if self._sealed_offsets is None else self._sealed_offsets

    @property
    def time_entries(self) -> Entries:
        return self._times if self._sealed_times is None else self._sealed_times

    def append(self, buffers: Sequence[Bytes]) -> None:
        """Write batches whose index entries were made by `note`. Raises StorageFailure."""
        self.file.append(buffers)

    def note(self, last_offset: int, max_timestamp: int, position: int, size: int, interval_bytes: int) -> None:
        """Take one batch, at a position of the file, into the bounds and the indexes."""
        if self._bytes_since_entry > interval_bytes:
            self._offsets.append(last_offset - self.base_offset, position)
            self._note_time()
            self._bytes_since_entry = 0
        self._bytes_since_entry += size
        self.next_offset = last_offset + 1
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self._max_timestamp_offset = last_offset

    def _note_time(self) -> None:
        known = self._times[len(self._times) - 1][0] if len(self._times) else NO_TIMESTAMP
        if self.max_timestamp > known:
            self._times.append(self.max_timestamp, self._max_timestamp_offset - self.base_offset)

    def position_before(self, offset: int) -> int:
        """A batch boundary at or before the batch that holds the offset, at most about one index interval away."""
        entry = floor_by_first(self.offset_entries, offset - self.base_offset)
        return entry[1] if entry else 0

    def boundary_at_or_before(self, position: int) -> int:
        """The last indexed batch boundary at or before a position."""
        entry = floor_by_second(self.offset_entries, position)
        return entry[1] if entry else 0

    def position_before_time(self, timestamp_ms: int) -> int:
        """A batch boundary before which every record is older than the timestamp."""
        entry = below_by_first(self.time_entries, timestamp_ms)
        return self.position_before(self.base_offset + entry[1]) if entry else 0

    def header_at(self, position: int) -> BatchHeader:
        """Raises StorageFailure if no header is there."""
        raw = self.file.read(position, HEADER_BYTES)
        if len(raw) < HEADER_BYTES:
            raise StorageFailure(f"{self.path('log')} ends within a batch, at {position}")
        return read_header(raw)

    def encoded_indexes(self) -> tuple[bytes, bytes]:
        """The two index files' content, for sealing."""
        self._note_time()
        return self._offsets.encode(OFFSET_ENTRY), self._times.encode(TIME_ENTRY)

    def write_indexes(self, encoded: tuple[bytes, bytes]) -> None:
        """Blocks; called off the event loop, after the segment's file was flushed. The offset index goes last."""
        self._disk.write_atomic(self.path("timeindex"), encoded[1])
        self._disk.write_atomic(self.path("index"), encoded[0])

    def seal(self) -> None:
        """Let go of the indexes in memory: they are on disk now."""
        self._sealed_offsets = self._open_entries("index", OFFSET_ENTRY)
        self._sealed_times = self._open_entries("timeindex", TIME_ENTRY)
        self._offsets = MemoryEntries()
        self._times = MemoryEntries("q")
        self.sealed = True

    def load_indexes(self) -> None:
        """Take the index files back into memory, to go on writing a segment that was sealed by a clean stop."""
        for number in range(len(self.offset_entries)):
            self._offsets.append(*self.offset_entries[number])
        for number in range(len(self.time_entries)):
            self._times.append(*self.time_entries[number])
            self._max_timestamp_offset = self.base_offset + self._times[number][1]
        self._close_indexes()
        self.sealed = False

    def forget_indexes(self) -> None:
        """Drop the indexes, in memory and on disk: what is scanned next makes them anew."""
        self._close_indexes()
        self.remove_index_files()
        self._offsets, self._times = MemoryEntries(), MemoryEntries("q")
        self._bytes_since_entry = 0
        self.sealed = False
        self.next_offset, self.max_timestamp = self.base_offset, NO_TIMESTAMP

    def paths(self) -> tuple[str, ...]:
        return self.paths_of(self._directory, self.base_offset, self._ending)

    def detach(self) -> None:
        """The files of a sealed segment are about to lose their names: whoever holds this segment can still read it."""
        self.file.detach()
        if self._sealed_offsets is not None and self._sealed_times is not None:
            self._sealed_offsets.file.detach()
            self._sealed_times.file.detach()

    def remove(self) -> None:
        self.close()
        self.remove_index_files()
        self._disk.remove(self.path("log"))

    def close(self) -> None:
        self.file.close()
        self._close_indexes()

    def _close_indexes(self) -> None:
        if self._sealed_offsets is not None and self._sealed_times is not None:
            self._sealed_offsets.file.close()
            self._sealed_times.file.close()
        self._sealed_offsets = self._sealed_times = None

    def remove_index_files(self) -> None:
        self._disk.remove(self.path("index"))
        self._disk.remove(self.path("timeindex"))

    def _open_entries(self, suffix: str, layout: Struct) -> FileEntries:
        return FileEntries(self._disk.open(self.path(suffix)), layout)
