"""The indexes of one segment: by offset, by time, and of aborted transactions. The seal identifies their files.

    in memory   the segment is active, or closed
    in files    the segment is sealed: a file is opened, and compared with its checksum, at its first use
    growing     a clean stop had sealed the segment, which is active again: only new entries are in memory

The aborted transactions are in memory in all states. Any thread may look up entries; see `SegmentIndexes.detach`.
"""

import logging

import msgspec
from crc32c import crc32c

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ids import NO_TIMESTAMP
from conveyor.kernel.ports import Bytes, File
from conveyor.log.segments.files import SegmentFiles
from conveyor.log.segments.index import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    Entries,
    FileEntries,
    GrowingEntries,
    MemoryEntries,
    ceiling_by_first,
    count_below_by_second,
    floor_by_first,
    floor_by_second,
)
from conveyor.log.segments.seal import Seal, encode_seal
from conveyor.log.transactions.aborted_entries import ENTRY_BYTES
from conveyor.records.batch import HEADER_BYTES

log = logging.getLogger(__name__)

_REBUILT_INTERVAL_BYTES = 4096
_LONGEST_INTERVAL_BYTES = 512 << 10
"""A lookup looks at all batches of an interval, and at a limited number in all; see `lookup`."""


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
        self._offsets: MemoryEntries | GrowingEntries = MemoryEntries()
        self._times: MemoryEntries | GrowingEntries = MemoryEntries("q")
        self._opened: dict[str, FileEntries] = {}
        """The sealed indexes that have been opened, by suffix."""
        self._is_released = False
        self._max_timestamp_offset = self._base_offset
        self._bytes_since_entry = 0

    @property
    def offsets(self) -> Entries:
        return self._offsets if self.seal is None else self._open("index")

    @property
    def times(self) -> Entries:
        return self._times if self.seal is None else self._open("timeindex")

    def pair(self) -> tuple[Entries, Entries]:
        """Return the offset index and the time index, of one pair."""
        times = self._times  # First of both: another thread may seal the segment, which empties them.
        return (self._offsets, times) if self.seal is None else self._open_both()

    def note(self, last_offset: int, max_timestamp: int, position: int, size: int, interval_bytes: int) -> None:
        """Add one batch, at a position of the file."""
        if self._bytes_since_entry > min(interval_bytes, _LONGEST_INTERVAL_BYTES):
            self._offsets.append(last_offset - self._base_offset, position)
            self.finish()
            self._bytes_since_entry = 0
        self._bytes_since_entry += size
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self._max_timestamp_offset = last_offset

    def finish(self) -> None:
        """Add the last time entry: the segment is closed."""
        newest_entry = self._times[len(self._times) - 1][0] if len(self._times) else NO_TIMESTAMP
        if self.max_timestamp > newest_entry:
            self._times.append(self.max_timestamp, self._max_timestamp_offset - self._base_offset)

    def position_before(self, offset: int) -> int:
        """Return a batch boundary at or before the batch that holds the offset, at most about one index interval
        away.
        """
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
        newer = ceiling_by_first(times, timestamp_ms)
        if newer is None:
            return offsets[len(offsets) - 1][1] if len(offsets) else 0
        entry = floor_by_first(offsets, newer[1])
        return entry[1] if entry else 0

    def write(self, bounds: Seal) -> Seal:
        """Write the index files, then the seal: the bounds with the checksums of the files. Returns the seal.

        Blocks, and encoding takes milliseconds: call it off the event loop. Raises StorageFailure.
        """
        offsets, times, aborted = self._offsets.encode(), self._times.encode(), self.aborted
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
        self.close()
        self.seal = seal
        self._offsets, self._times = MemoryEntries(), MemoryEntries("q")

    def load(self, seal: Seal) -> None:
        """Use the files of a seal that a start has found. Reads the transaction index."""
        self.use_files(seal)
        self.max_timestamp = seal.max_timestamp
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
        offsets, times = self._open_both()
        self._files.disk.remove(self._files.path("seal"))
        if len(times):
            self._max_timestamp_offset = self._base_offset + times[len(times) - 1][1]
        self._offsets = GrowingEntries(offsets, MemoryEntries())
        self._times = GrowingEntries(times, MemoryEntries("q"))
        self._opened = {}
        self.seal = None

    def leading(self, files: SegmentFiles, size: int) -> "SegmentIndexes":
        """Return a copy of the entries of the first `size` bytes, to which batches can be added: first those from the
        last entry's position on. Raises StorageFailure.
        """
        if self.seal is not None:
            self._open_both()
        leading = SegmentIndexes(files)
        offsets_count = count_below_by_second(self.offsets, size)
        last_delta = self.offsets[offsets_count - 1][0] if offsets_count else 0
        times_count = count_below_by_second(self.times, last_delta)
        leading._offsets = self._leading("index", self.offsets, offsets_count)
        leading._times = self._leading("timeindex", self.times, times_count)
        if times_count:
            leading.max_timestamp, delta = self.times[times_count - 1]
            leading._max_timestamp_offset = self._base_offset + delta
        return leading

    def _leading(self, suffix: str, entries: Entries, count: int) -> MemoryEntries | GrowingEntries:
        """Return a copy of the first entries of an index, to which entries can be added."""
        if isinstance(entries, MemoryEntries):
            return entries.leading(count)
        layout, typecode = (OFFSET_ENTRY, "I") if suffix == "index" else (TIME_ENTRY, "q")
        stored_count = min(count, len(entries.stored) if isinstance(entries, GrowingEntries) else len(entries))
        stored = FileEntries(self._files.open(suffix), layout, stored_count)
        added = entries.added(count) if isinstance(entries, GrowingEntries) else MemoryEntries(typecode)
        return GrowingEntries(stored, added)

    def detach(self) -> None:
        """Keep the entries of a sealed segment readable although its files are about to be removed or replaced.

        Reads index files: call it off the event loop. Raises StorageFailure.
        """
        if self.seal is not None:
            for entries in self._open_both():
                entries.file.detach()

    def release(self) -> None:
        """Never open any of the files again; see `File.release`."""
        self._is_released = True
        for file in self._open_files():
            file.release()

    def close(self) -> None:
        for file in self._open_files():
            file.close()
        self._opened = {}

    def _open_files(self) -> list[File]:
        grown = [entries.stored for entries in (self._offsets, self._times) if isinstance(entries, GrowingEntries)]
        return [entries.file for entries in (*self._opened.values(), *grown)]

    def _open_both(self) -> tuple[FileEntries, FileEntries]:
        """Open both indexes. They are of one pair: if either is rebuilt, both are, with other entries."""
        self._open("timeindex")
        return self._open("index"), self._open("timeindex")

    def _open(self, suffix: str) -> FileEntries:
        """Open a sealed index: check it at the first use, and rebuild it if it is damaged. Any thread may call this."""
        opened = self._opened.get(suffix)
        if opened is not None:
            return opened
        if self._is_released:
            raise StorageFailure(f"{self._files.path(suffix)} no longer belongs to this log")
        assert self.seal is not None, "only a sealed segment has its indexes in files"
        stored = self._files.read(suffix)
        checksum = self.seal.offset_index_crc if suffix == "index" else self.seal.time_index_crc
        if stored is None or crc32c(stored) != checksum:
            self._rebuild(self.seal)
        layout = OFFSET_ENTRY if suffix == "index" else TIME_ENTRY
        return self._opened.setdefault(suffix, FileEntries(self._files.open(suffix), layout))

    def _rebuild(self, bounds: Seal) -> None:
        """Read the segment's batches and write new index files. A failure leaves these indexes unchanged."""
        path = self._files.path("log")
        log.warning("index files rebuilt segment=%s: they were missing or damaged", path)
        rebuilt = SegmentIndexes(self._files)
        next_offset, position = self._base_offset, 0
        while position < self._files.batches.size:
            header = self._files.header_at(position)
            if header.size < HEADER_BYTES:
                raise StorageFailure(f"{path} is damaged at {position}")
            next_offset = header.next_offset
            rebuilt.note(next_offset - 1, header.max_timestamp, position, header.size, _REBUILT_INTERVAL_BYTES)
            position += header.size
        if (next_offset, self._files.batches.size) != (bounds.next_offset, bounds.size):
            raise StorageFailure(f"{path} does not match its seal")
        rebuilt.finish()
        rebuilt.aborted = self.aborted
        self.use_files(rebuilt.write(bounds))


def _aborted_fields(aborted: Bytes | None) -> tuple[int, int]:
    """Return the count and the checksum by which a seal identifies a transaction index. A count of -1 is unknown."""
    return (-1 if aborted is None else len(aborted) // ENTRY_BYTES), crc32c(aborted or b"")
