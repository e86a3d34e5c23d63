"""The indexes of one segment: by offset, by time, and of aborted transactions. The seal identifies their files.

    in memory   the segment is active, or closed
    in files    the segment is sealed: a file is opened, and compared with its checksum, at its first use
    growing     a clean stop had sealed the segment, which is active again: only new entries are in memory

A lookup checks a file itself only if the file is small. If it is large, missing or damaged, the lookup raises
IndexUnavailable until `StoredIndexes.prepare` has run on a thread. That checks a large file, or reads the segment and
keeps its entries in memory. It writes no file: a truncation, a trim or a swap may be giving the file's name to another
segment, or to none. Recovery after a crash writes the files of a segment again whose offset index is damaged.

The aborted transactions are in memory in all states. Any thread may look up entries; see `StoredIndexes.detach`.
"""

import logging
import sys

import msgspec
from crc32c import crc32c

from conveyor.kernel.errors import LogDamaged, ReadLater, StorageFailure
from conveyor.kernel.ids import NO_TIMESTAMP
from conveyor.kernel.ports import Bytes, File
from conveyor.log.segments.files import SegmentFiles
from conveyor.log.segments.index import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    Entries,
    FileEntries,
    JoinedEntries,
    MemoryEntries,
    ceiling_by_first,
    count_below_by_second,
    floor_by_first,
    floor_by_second,
)
from conveyor.log.segments.seal import Seal, encode_seal
from conveyor.log.transactions.aborted_entries import ENTRY_BYTES

log = logging.getLogger(__name__)

CHECKED_AT_ONCE_BYTES = 8 << 20
"""The largest file that a lookup checks. With the default interval, the larger index of 2 GB has 6 MB."""

_SUFFIXES = ("index", "timeindex")

_REBUILT_INTERVAL_BYTES = 64 << 10
"""Rebuilt entries stay in memory, 20 bytes for each interval."""

_LONGEST_INTERVAL_BYTES = 512 << 10
"""A lookup looks at all batches of an interval, and at a limited number in all; see `lookup`."""


class IndexUnavailable(ReadLater):
    """A lookup needs an index that a thread has to prepare first. indexes: their `prepare` does that."""

    def __init__(self, path: str, indexes: "StoredIndexes") -> None:
        super().__init__(f"{path} has to be checked or rebuilt first")
        self.indexes = indexes


class StoredIndexes:
    """The offset index and the time index that a seal identifies, in their files or rebuilt. Any thread may call.

    Without a seal nothing is stored: both are available, and empty.
    """

    __slots__ = ("_available", "_files", "_has_to_wait", "_is_released", "_opened", "_seal")

    def __init__(self, files: SegmentFiles, seal: Seal | None) -> None:
        self._files = files
        self._seal = seal
        self._available: dict[str, Entries] = {} if seal else dict.fromkeys(_SUFFIXES, MemoryEntries())
        """Those that were checked or rebuilt, by suffix."""
        self._opened: list[File] = []
        self._has_to_wait = self._is_released = False

    def entries(self, suffix: str) -> Entries:
        """Return the entries of `index` or `timeindex`. Raises StorageFailure: IndexUnavailable if the file is missing,
        damaged, or too large to be checked here, until `prepare` has run.
        """
        if suffix not in self._available and not self._has_to_wait:
            self.check(suffix, CHECKED_AT_ONCE_BYTES)
        if suffix not in self._available:  # Another thread may have prepared it before the file was replaced.
            self._has_to_wait = True
            raise IndexUnavailable(self._files.path(suffix), self)
        return self._available[suffix]

    def pair(self) -> tuple[Entries, Entries]:
        """Return both; see `entries`. Those of a pair refer to each other."""
        for suffix in _SUFFIXES:
            self.entries(suffix)
        available = self._available
        return available["index"], available["timeindex"]

    def check(self, suffix: str, largest_bytes: int = sys.maxsize) -> bool:
        """Open a file, unless it is missing, damaged or larger. Returns whether its entries are available.

        Reads the whole file. Raises StorageFailure.
        """
        path = self._files.path(suffix)
        seal = self._seal
        if self._is_released:
            raise ReadLater(f"{path} no longer belongs to this log")
        if seal is None:
            return False
        try:
            file = self._files.open(suffix)
        except StorageFailure:
            if self._files.disk.exists(path):
                raise
            return False
        if file.size > largest_bytes or crc32c(file.read(0, file.size)) != _checksum(seal, suffix):
            file.close()
            return False
        self._opened.append(file)
        self._available.setdefault(suffix, FileEntries(file, OFFSET_ENTRY if suffix == "index" else TIME_ENTRY))
        return True

    def prepare(self) -> None:
        """Make both available: check files of any size, or read the headers of all batches. Blocks.

        Does nothing if both are available. Raises StorageFailure: LogDamaged if the batches do not match the seal.
        """
        if not all(suffix in self._available or self.check(suffix) for suffix in _SUFFIXES):
            assert self._seal is not None, "without a seal both are available"
            self._rebuild(self._seal)

    def prepare_to_copy(self) -> None:
        """As `prepare`; also look for damage since the first use, which would get a right checksum in another file."""
        self.prepare()
        seal = self._seal
        if seal is not None and not all(
            isinstance(entries, MemoryEntries) or crc32c(entries.encode()) == _checksum(seal, suffix)
            for suffix, entries in self._available.items()
        ):
            self._rebuild(seal)

    def detach(self) -> None:
        """Keep what is available so, although the files are about to be removed or replaced. Raises StorageFailure."""
        for file in self._opened:
            file.detach()

    def release(self) -> None:
        """Never open any of the files again; see `File.release`."""
        self._is_released = True
        for file in self._opened:
            file.release()

    def close(self) -> None:
        for file in self._opened:
            file.close()

    def _rebuild(self, seal: Seal) -> None:
        """Replace both at once: the rebuilt entries have other intervals than those of the files."""
        path = self._files.path("log")
        log.warning("indexes rebuilt segment=%s: an index file was missing or damaged", path)
        rebuilt = SegmentIndexes(self._files)
        if rebuilt.add_stored(0, seal.size, seal.next_offset, _REBUILT_INTERVAL_BYTES) != seal.next_offset:
            raise LogDamaged(f"{path} does not match its seal")
        rebuilt.finish()
        self._available = {"index": rebuilt.offsets, "timeindex": rebuilt.times}


_Parts = tuple[StoredIndexes, MemoryEntries, MemoryEntries]


class SegmentIndexes:
    """See the module's docstring. seal: None unless the segment is sealed."""

    def __init__(self, files: SegmentFiles) -> None:
        self.seal: Seal | None = None
        self.max_timestamp = NO_TIMESTAMP
        self.aborted: bytearray | None = bytearray()
        """The transactions that abort markers of this segment ended, as `aborted_entries` has them; None if that is not
        known yet.
        """
        self._files = files
        self._base_offset = files.base_offset
        self._parts: _Parts = (StoredIndexes(files, None), MemoryEntries(), MemoryEntries("q"))
        """The first entries, and the offset and time entries after these. One value, because other threads read it."""
        self._max_timestamp_offset = self._base_offset
        self._indexed_timestamp = NO_TIMESTAMP
        """The newest in the time index."""
        self._bytes_since_entry = 0

    @property
    def stored(self) -> StoredIndexes:
        """The first entries: those of a seal's files, if the segment is sealed or growing."""
        return self._parts[0]

    @property
    def offsets(self) -> Entries:
        stored, added, _ = self._parts
        return _joined(stored.entries("index"), added)

    @property
    def times(self) -> Entries:
        stored, _, added = self._parts
        return _joined(stored.entries("timeindex"), added)

    def pair(self) -> tuple[Entries, Entries]:
        """Return the offset index and the time index, of one pair."""
        stored, offsets, times = self._parts
        stored_offsets, stored_times = stored.pair()
        return _joined(stored_offsets, offsets), _joined(stored_times, times)

    def note(self, last_offset: int, max_timestamp: int, position: int, size: int, interval_bytes: int) -> None:
        """Add one batch, at a position of the file. The time entry comes first: other threads rely on it once they find
        the offset entry.
        """
        if self._bytes_since_entry > min(interval_bytes, _LONGEST_INTERVAL_BYTES):
            self.finish()
            self._parts[1].append(last_offset - self._base_offset, position)
            self._bytes_since_entry = 0
        self._bytes_since_entry += size
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self._max_timestamp_offset = last_offset

    def add_stored(self, position: int, end: int, end_offset: int, interval_bytes: int) -> int:
        """Add the batches between two positions of the file, of which none is above `end_offset`. Blocks.

        Returns the offset after the last one. Raises StorageFailure: LogDamaged if the batches are not in order.
        """
        next_offset = self._base_offset
        for start, header in self._files.headers(position, end):
            if not next_offset <= header.base_offset < header.next_offset <= end_offset:
                raise LogDamaged(f"{self._files.path('log')} is damaged at {start}")
            next_offset = header.next_offset
            self.note(next_offset - 1, header.max_timestamp, start, header.size, interval_bytes)
        return next_offset

    def finish(self) -> None:
        """Add the last time entry: the segment is closed."""
        if self.max_timestamp > self._indexed_timestamp:
            self._parts[2].append(self.max_timestamp, self._max_timestamp_offset - self._base_offset)
            self._indexed_timestamp = self.max_timestamp

    def position_before(self, offset: int) -> int:
        """Return a batch boundary at or before the batch that holds the offset, at most about one index interval
        away. Raises StorageFailure, like all lookups.
        """
        if offset <= self._base_offset:
            return 0
        entry = floor_by_first(self.offsets, offset - self._base_offset)
        return entry[1] if entry else 0

    def boundary_at_or_before(self, position: int) -> int:
        """Return the last indexed batch boundary at or before a position."""
        entry = floor_by_second(self.offsets, position)
        return entry[1] if entry else 0

    def position_before_time(self, timestamp_ms: int) -> int:
        """Return a batch boundary before which every record is older than the timestamp. The first batch that is not
        older is at most about one index interval away.

        Before each batch in the offset index, the time index has the newest time. What is as new as the timestamp
        therefore begins in the interval of the first such time, or behind the last batch in the offset index.
        """
        offsets, times = self.pair()
        last_position = offsets[len(offsets) - 1][1] if len(offsets) else 0  # First, because the segment may grow.
        newer = ceiling_by_first(times, timestamp_ms)
        if newer is None:
            return last_position
        entry = floor_by_first(offsets, newer[1])
        return entry[1] if entry else 0

    def write(self, bounds: Seal) -> Seal:
        """Write the index files, then the seal: the bounds with the checksums of the files. Returns the seal.

        Blocks, and encoding takes milliseconds: call it off the event loop. Raises StorageFailure.
        """
        self.stored.prepare_to_copy()
        offsets, times, aborted = self.offsets.encode(), self.times.encode(), self.aborted
        count, crc = _aborted_fields(aborted)
        seal = msgspec.structs.replace(
            bounds, offset_index_crc=crc32c(offsets), time_index_crc=crc32c(times), aborted_count=count, aborted_crc=crc
        )
        if aborted:
            self._files.write("txnindex", bytes(aborted))
        self._files.write("timeindex", times)
        self._files.write("index", offsets)
        self._files.write("seal", encode_seal(seal))
        return seal

    def use_files(self, seal: Seal) -> None:
        """Discard the entries in memory, which are in the files of this seal now."""
        self.stored.close()
        self.seal = seal
        self._parts = StoredIndexes(self._files, seal), MemoryEntries(), MemoryEntries("q")

    def load(self, seal: Seal) -> None:
        """Use the files of a seal that a start has found. Reads the transaction index."""
        self.use_files(seal)
        self.max_timestamp = self._indexed_timestamp = seal.max_timestamp
        stored = self._files.read("txnindex") if seal.aborted_count > 0 else b""
        is_sound = stored is not None and _aborted_fields(stored) == (seal.aborted_count, seal.aborted_crc)
        self.aborted = bytearray(stored or b"") if is_sound else None

    def restore_aborted(self, aborted: bytearray) -> None:
        """Set the aborted transactions that were not known. The files of a sealed segment are corrected. Blocks."""
        self.aborted = aborted
        if self.seal is not None:
            if aborted:
                self._files.write("txnindex", bytes(aborted))
            count, crc = _aborted_fields(aborted)
            self.seal = msgspec.structs.replace(self.seal, aborted_count=count, aborted_crc=crc)
            self._files.write("seal", encode_seal(self.seal))

    def reopen(self) -> None:
        """Continue to write a segment that a clean stop sealed. The seal is removed before the segment grows.

        The index files stay. Without the seal the next start ignores them; new entries are in memory until the files
        are written again. Raises StorageFailure.
        """
        self._files.disk.remove(self._files.path("seal"))
        self.seal = None

    def leading(self, files: SegmentFiles, size: int) -> "SegmentIndexes":
        """Return a copy of the entries of the first `size` bytes, to which batches can be added: first those from the
        last entry's position on. It has no entry if the indexes are not available. Raises StorageFailure.
        """
        leading = SegmentIndexes(files)
        try:
            offsets, times = self.pair()
        except IndexUnavailable:
            return leading
        offsets_count = count_below_by_second(offsets, size)
        last_delta = offsets[offsets_count - 1][0] if offsets_count else 0
        times_count = count_below_by_second(times, last_delta)
        _, leading_offsets, leading_times = leading._parts
        leading_offsets.extend(OFFSET_ENTRY.iter_unpack(offsets.encode()[: offsets_count * OFFSET_ENTRY.size]))
        leading_times.extend(TIME_ENTRY.iter_unpack(times.encode()[: times_count * TIME_ENTRY.size]))
        if times_count:
            leading.max_timestamp = leading._indexed_timestamp = times[times_count - 1][0]
        return leading


def _joined(stored: Entries, added: MemoryEntries) -> Entries:
    return JoinedEntries(stored, added) if len(stored) else added


def _checksum(seal: Seal, suffix: str) -> int:
    return seal.offset_index_crc if suffix == "index" else seal.time_index_crc


def _aborted_fields(aborted: Bytes | None) -> tuple[int, int]:
    """Return the count and the checksum by which a seal identifies a transaction index. A count of -1 is unknown."""
    return (-1 if aborted is None else len(aborted) // ENTRY_BYTES), crc32c(aborted or b"")
