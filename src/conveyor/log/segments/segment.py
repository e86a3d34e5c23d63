"""One segment: a file of record batches, its two sparse indexes, and its aborted transactions.

States: active (being written), closed (not yet flushed), sealed (flushed, with index files and seal on the disk), and
active again if a clean stop had sealed it.

Only the last segment of a log is active. Callers: `Log` and recovery.
"""

import logging
from collections.abc import Sequence

import msgspec
from crc32c import crc32c

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ids import NO_TIMESTAMP
from conveyor.kernel.ports import Bytes, Directory, File
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
from conveyor.log.segments.seal import Seal, decode_seal, encode_seal
from conveyor.log.transactions.aborted_entries import ENTRY_BYTES, entries_below
from conveyor.records.batch import HEADER_BYTES, BatchHeader, read_header

log = logging.getLogger(__name__)

OFFSET_DIGITS = 20
SUFFIXES = ("seal", "index", "timeindex", "txnindex", "log")
MAX_BYTES = (1 << 31) - 1
"""Positions in the index have 32 bits, and Kafka reads them as signed."""

_REBUILT_INTERVAL_BYTES = 4096


def segment_path(directory: str, base_offset: int, suffix: str) -> str:
    """Return `<directory>/<base offset, 20 digits>.<suffix>`."""
    return f"{directory}/{base_offset:0{OFFSET_DIGITS}d}.{suffix}"


class Segment:
    """A segment's file, size, bounds and indexes."""

    def __init__(
        self, disk: Directory, directory: str, base_offset: int, ending: str = "", *, create: bool = False
    ) -> None:
        """Open an existing segment, or create one. Raises StorageFailure.

        `ending` is appended to the file names of a segment that is not part of the log yet.
        """
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.max_timestamp = NO_TIMESTAMP
        self.first_append_ms: int | None = None
        self.last_append_ms = NO_TIMESTAMP
        self._disk = disk
        self._directory = directory
        self._ending = ending
        self.file: File = disk.open(self.path("log"), create=create)
        self._offsets: MemoryEntries | GrowingEntries = MemoryEntries()
        self._times: MemoryEntries | GrowingEntries = MemoryEntries("q")
        self._seal: Seal | None = None
        self.ended_log = False
        """Whether a clean stop wrote the seal that `load_seal` has found, whatever its size."""
        self.differs_from_seal = self.is_shortened = False
        """Whether the seal that `load_seal` has found is of a file of another size that no append has changed, or, at a
        clean stop, of a longer one.
        """
        self._indexes: dict[str, FileEntries] = {}
        """The sealed indexes that have been opened, by suffix."""
        self._is_released = False
        self._max_timestamp_offset = base_offset
        self._bytes_since_entry = 0
        self.aborted: bytearray | None = bytearray()
        """The transactions that abort markers of this segment ended, as `aborted_entries` has them; None if that is not
        known yet.
        """

    def path(self, suffix: str) -> str:
        return segment_path(self._directory, self.base_offset, suffix) + self._ending

    @staticmethod
    def paths_of(directory: str, base_offset: int, ending: str = "") -> tuple[str, ...]:
        """Return a segment's files, the seal first: without its seal a segment does not count as flushed."""
        return tuple(segment_path(directory, base_offset, suffix) + ending for suffix in SUFFIXES)

    @property
    def sealed(self) -> bool:
        """Whether the segment is on the disk, complete, with index files and seal."""
        return self._seal is not None

    @property
    def ends_log(self) -> bool:
        """Whether a clean stop sealed the segment as the log's last."""
        return self._seal is not None and self._seal.ends_log

    @property
    def size(self) -> int:
        return self.file.size

    @property
    def offset_entries(self) -> Entries:
        return self._offsets if self._seal is None else self._open_index("index")

    @property
    def time_entries(self) -> Entries:
        return self._times if self._seal is None else self._open_index("timeindex")

    def indexes(self) -> tuple[Entries, Entries]:
        """Return the offset index and the time index, of one pair."""
        times = self._times  # First of both: another thread may seal the segment, which empties them.
        return (self._offsets, times) if self._seal is None else self._open_indexes()

    def append(self, buffers: Sequence[Bytes]) -> None:
        """Write batches whose index entries `note` has made. Raises StorageFailure."""
        self.file.append(buffers)

    def note(self, last_offset: int, max_timestamp: int, position: int, size: int, interval_bytes: int) -> None:
        """Add one batch, at a position of the file, to the bounds and the indexes."""
        if self._bytes_since_entry > interval_bytes:
            self._offsets.append(last_offset - self.base_offset, position)
            self._note_time()
            self._bytes_since_entry = 0
        self._bytes_since_entry += size
        self._extend_bounds(last_offset, max_timestamp)

    def _extend_bounds(self, last_offset: int, max_timestamp: int) -> None:
        self.next_offset = last_offset + 1
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self._max_timestamp_offset = last_offset

    def _note_time(self) -> None:
        newest_entry = self._times[len(self._times) - 1][0] if len(self._times) else NO_TIMESTAMP
        if self.max_timestamp > newest_entry:
            self._times.append(self.max_timestamp, self._max_timestamp_offset - self.base_offset)

    def position_before(self, offset: int) -> int:
        """Return a batch boundary at or before the batch that holds the offset, at most about one index interval
        away.
        """
        entry = floor_by_first(self.offset_entries, offset - self.base_offset)
        return entry[1] if entry else 0

    def boundary_at_or_before(self, position: int) -> int:
        """Return the last indexed batch boundary at or before a position."""
        entry = floor_by_second(self.offset_entries, position)
        return entry[1] if entry else 0

    def position_before_time(self, timestamp_ms: int) -> int:
        """Return a batch boundary before which every record is older than the timestamp. The first batch that is not
        older is at most about one index interval away.

        Before each batch in the offset index, the time index has the newest time. What is as new as the timestamp
        therefore begins in the interval of the first such time, or behind the last batch in the offset index.
        """
        offsets, times = self.indexes()
        newer = ceiling_by_first(times, timestamp_ms)
        if newer is None:
            return offsets[len(offsets) - 1][1] if len(offsets) else 0
        entry = floor_by_first(offsets, newer[1])
        return entry[1] if entry else 0

    def header_at(self, position: int) -> BatchHeader:
        """Read the batch header at a position. Raises StorageFailure if the file ends before that."""
        raw = self.file.read(position, HEADER_BYTES)
        if len(raw) < HEADER_BYTES:
            raise StorageFailure(f"{self.path('log')} ends within a batch, at {position}")
        return read_header(raw)

    def finish(self) -> None:
        """Add the last index entry: the segment is closed."""
        self._note_time()

    def encoded_indexes(self, *, ends_log: bool = False) -> "EncodedIndexes":
        """Return the content of a closed segment's index files and seal. Raises StorageFailure.

        Takes milliseconds: call it off the event loop. ends_log: for the last segment, at a clean stop.
        """
        offsets, times = self._offsets.encode(), self._times.encode()
        seal = Seal(
            size=self.size,
            next_offset=self.next_offset,
            max_timestamp=self.max_timestamp,
            last_append_ms=self.last_append_ms,
            offset_index_crc=crc32c(offsets),
            time_index_crc=crc32c(times),
            ends_log=ends_log,
            aborted_count=-1 if self.aborted is None else len(self.aborted) // ENTRY_BYTES,
            aborted_crc=crc32c(self.aborted or b""),
        )
        return EncodedIndexes(offsets, times, seal)

    def write_indexes(self, encoded: "EncodedIndexes") -> None:
        """Write the index files, then the seal. Blocks; call it off the event loop, after the segment's file was
        flushed.
        """
        if self.aborted:
            self._disk.write_atomic(self.path("txnindex"), bytes(self.aborted))
        self._disk.write_atomic(self.path("timeindex"), encoded.times)
        self._disk.write_atomic(self.path("index"), encoded.offsets)
        self._disk.write_atomic(self.path("seal"), encode_seal(encoded.seal))

    def seal(self, seal: Seal) -> None:
        """Mark the segment as sealed and discard the indexes in memory, which are on the disk now."""
        self._close_indexes()
        self._seal = seal
        self._offsets, self._times = MemoryEntries(), MemoryEntries("q")

    def load_seal(self) -> bool:
        """Load the bounds from the seal. Returns False if the seal is damaged or its size differs from the file's."""
        seal = decode_seal(self._disk.read(self.path("seal")))
        self.ended_log = seal is not None and seal.ends_log
        self.differs_from_seal = seal is not None and not seal.ends_log and seal.size != self.size
        self.is_shortened = seal is not None and seal.ends_log and seal.size > self.size
        if seal is None or seal.size != self.size:
            return False
        self.seal(seal)
        self.next_offset, self.max_timestamp = seal.next_offset, seal.max_timestamp
        self.last_append_ms = seal.last_append_ms
        self.aborted = self._stored_aborted(seal)
        return True

    def _stored_aborted(self, seal: Seal) -> bytearray | None:
        """Return the content of the transaction index; None if it is missing or damaged."""
        if seal.aborted_count <= 0:
            return bytearray() if seal.aborted_count == 0 else None
        path = self.path("txnindex")
        content = self._disk.read(path) if self._disk.exists(path) else b""
        is_sound = len(content) == seal.aborted_count * ENTRY_BYTES and crc32c(content) == seal.aborted_crc
        return bytearray(content) if is_sound else None

    def restore_aborted(self, aborted: bytearray) -> None:
        """Set the aborted transactions that were not known. The files of a sealed segment are corrected. Blocks."""
        self.aborted = aborted
        if self._seal is not None:
            if aborted:
                self._disk.write_atomic(self.path("txnindex"), bytes(aborted))
            count, crc = len(aborted) // ENTRY_BYTES, crc32c(aborted)
            self._seal = msgspec.structs.replace(self._seal, aborted_count=count, aborted_crc=crc)
            self._disk.write_atomic(self.path("seal"), encode_seal(self._seal))

    def reopen(self) -> None:
        """Continue to write a segment that a clean stop sealed. The seal is removed before the segment grows.

        The index files stay. Without the seal the next start ignores them; new entries are in memory until the files
        are written again. Raises StorageFailure.
        """
        offsets, times = self._open_indexes()
        self._disk.remove(self.path("seal"))
        if len(times):
            self._max_timestamp_offset = self.base_offset + times[len(times) - 1][1]
        self._offsets = GrowingEntries(offsets, MemoryEntries())
        self._times = GrowingEntries(times, MemoryEntries("q"))
        self._indexes = {}
        self._seal = None

    def shortened(self, size: int) -> "Segment":
        """Return this segment after its file was cut to `size` bytes, at a batch boundary, and its seal was removed.

        The result can be written. This object keeps its file and its indexes, for its readers. Reads the headers behind
        the last remaining index entry, and no others. Raises StorageFailure.
        """
        if self._seal is not None:
            self._open_indexes()
        shorter = Segment(self._disk, self._directory, self.base_offset, self._ending)
        shorter.first_append_ms, shorter.last_append_ms = self.first_append_ms, self.last_append_ms
        offsets_count = count_below_by_second(self.offset_entries, size)
        position = self.offset_entries[offsets_count - 1][1] if offsets_count else 0
        next_offset = self.base_offset + (self.offset_entries[offsets_count - 1][0] if offsets_count else 0)
        times_count = count_below_by_second(self.time_entries, next_offset - self.base_offset)
        shorter._offsets = self._leading("index", self.offset_entries, offsets_count)
        shorter._times = self._leading("timeindex", self.time_entries, times_count)
        if times_count:
            shorter.max_timestamp, delta = self.time_entries[times_count - 1]
            shorter._max_timestamp_offset = self.base_offset + delta
        shorter._bytes_since_entry = size - position
        while position < size:
            header = shorter.header_at(position)
            shorter._extend_bounds(header.next_offset - 1, header.max_timestamp)
            position += header.size
        shorter.aborted = None if self.aborted is None else entries_below(self.aborted, shorter.next_offset)
        return shorter

    def _leading(self, suffix: str, entries: Entries, count: int) -> MemoryEntries | GrowingEntries:
        """Return a copy of the first entries of an index, to which entries can be added."""
        if isinstance(entries, MemoryEntries):
            return entries.leading(count)
        layout, typecode = (OFFSET_ENTRY, "I") if suffix == "index" else (TIME_ENTRY, "q")
        stored_count = min(count, len(entries.stored) if isinstance(entries, GrowingEntries) else len(entries))
        stored = FileEntries(self._disk.open(self.path(suffix)), layout, stored_count)
        added = entries.added(count) if isinstance(entries, GrowingEntries) else MemoryEntries(typecode)
        return GrowingEntries(stored, added)

    def forget_indexes(self) -> None:
        """Reset indexes, bounds and aborted transactions before a scan builds them again."""
        self.aborted = bytearray()
        self._close_indexes()
        self._offsets, self._times = MemoryEntries(), MemoryEntries("q")
        self._bytes_since_entry = 0
        self._seal = None
        self.next_offset, self.max_timestamp = self.base_offset, NO_TIMESTAMP

    def paths(self) -> tuple[str, ...]:
        return self.paths_of(self._directory, self.base_offset, self._ending)

    def detach(self) -> None:
        """Keep a sealed segment readable although its files are about to be removed or replaced.

        Reads index files: call it off the event loop. Raises StorageFailure.
        """
        self.file.detach()
        for entries in self._open_indexes():
            entries.file.detach()

    def leave(self) -> None:
        """The log has removed this segment: only open slices can still be read."""
        self.file.detach()
        self._close_indexes()

    def release(self) -> None:
        """Never open any of its files again; see `File.release`."""
        self._is_released = True
        self.file.release()
        for file in self._index_files():
            file.release()

    def remove(self) -> None:
        self.close()
        self.remove_index_files()
        self._disk.remove(self.path("log"))

    def remove_in_use(self) -> None:
        """Remove the files, although a flush in progress may still sync one."""
        self.leave()
        for path in self.paths():
            self._disk.remove(path)

    def close(self) -> None:
        self.file.close()
        self._close_indexes()

    def remove_index_files(self) -> None:
        """Remove the seal first: without it the index files are ignored."""
        for suffix in ("seal", "index", "timeindex", "txnindex"):
            self._disk.remove(self.path(suffix))

    def _close_indexes(self) -> None:
        for file in self._index_files():
            file.close()
        self._indexes = {}

    def _index_files(self) -> list[File]:
        """Return the open index files."""
        grown = [entries.stored for entries in (self._offsets, self._times) if isinstance(entries, GrowingEntries)]
        return [entries.file for entries in (*self._indexes.values(), *grown)]

    def _open_indexes(self) -> tuple[FileEntries, FileEntries]:
        """Open both indexes. They are of one pair: if either is rebuilt, both are, with other entries."""
        self._open_index("timeindex")
        return self._open_index("index"), self._open_index("timeindex")

    def _open_index(self, suffix: str) -> FileEntries:
        """Open a sealed index: check it at the first use, and rebuild it if it is damaged. Any thread may call this."""
        opened = self._indexes.get(suffix)
        if opened is not None:
            return opened
        if self._is_released:
            raise StorageFailure(f"{self.path(suffix)} no longer belongs to this log")
        assert self._seal is not None, "only a sealed segment has its indexes in files"
        if not self._index_is_sound(suffix, self._seal):
            self._rebuild_indexes(self._seal)
        layout = OFFSET_ENTRY if suffix == "index" else TIME_ENTRY
        return self._indexes.setdefault(suffix, FileEntries(self._disk.open(self.path(suffix)), layout))

    def _index_is_sound(self, suffix: str, seal: Seal) -> bool:
        checksum = seal.offset_index_crc if suffix == "index" else seal.time_index_crc
        return self._disk.exists(self.path(suffix)) and crc32c(self._disk.read(self.path(suffix))) == checksum

    def _rebuild_indexes(self, bounds: Seal) -> None:
        """Read the segment's batches and write new index files. A failure leaves this segment unchanged."""
        log.warning("index files rebuilt segment=%s: they were missing or damaged", self.path("log"))
        rebuilt, position = Segment(self._disk, self._directory, self.base_offset, self._ending), 0
        while position < self.size:
            header = self.header_at(position)
            if header.size < HEADER_BYTES:
                raise StorageFailure(f"{self.path('log')} is damaged at {position}")
            rebuilt.note(header.next_offset - 1, header.max_timestamp, position, header.size, _REBUILT_INTERVAL_BYTES)
            position += header.size
        rebuilt.close()
        rebuilt.finish()
        rebuilt.last_append_ms = bounds.last_append_ms
        rebuilt.aborted = self.aborted
        encoded = rebuilt.encoded_indexes(ends_log=bounds.ends_log)
        if (encoded.seal.next_offset, encoded.seal.size) != (bounds.next_offset, bounds.size):
            raise StorageFailure(f"{self.path('log')} does not match its seal")
        self.write_indexes(encoded)
        self.seal(encoded.seal)


class EncodedIndexes(msgspec.Struct, frozen=True):
    """The content of both indexes, and the matching seal."""

    offsets: bytes
    times: bytes
    seal: Seal
