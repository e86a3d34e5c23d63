"""One segment: a file of record batches, its bounds and its indexes.

States: active (being written), closed (not yet flushed), sealed (flushed, with index files and seal on the disk), and
active again if a clean stop had sealed it.

Only the last segment of a log is active. Callers: `Log` and recovery.
"""

from collections.abc import Iterator
from contextlib import suppress

from conveyor.kernel.ids import NO_TIMESTAMP
from conveyor.kernel.ports import Directory
from conveyor.log.segments.files import SegmentFiles
from conveyor.log.segments.seal import FoundSeal, Seal, decode_seal
from conveyor.log.segments.segment_indexes import IndexUnavailable, SegmentIndexes
from conveyor.log.transactions.aborted_entries import entries_below
from conveyor.records.batch import BatchHeader

MAX_BYTES = (1 << 31) - 1
"""Positions in the index have 32 bits, and Kafka reads them as signed."""
MOST_DETACHED = 100
"""Of so many removed segments the files are opened, up to three each, for those who still read them."""


class Segment:
    """A segment's file, size, bounds and indexes."""

    def __init__(
        self, disk: Directory, directory: str, base_offset: int, ending: str = "", *, create: bool = False
    ) -> None:
        """Open an existing segment, or create one; see `SegmentFiles`. Raises StorageFailure."""
        self.base_offset = self.next_offset = base_offset
        self.first_append_ms: int | None = None
        self.last_append_ms = NO_TIMESTAMP
        self.files = SegmentFiles(disk, directory, base_offset, ending, create=create)
        self.file = self.files.batches
        self.indexes = SegmentIndexes(self.files)

    @property
    def sealed(self) -> bool:
        """True if the segment is on the disk, complete, with index files and seal."""
        return self.indexes.seal is not None

    @property
    def size(self) -> int:
        return self.file.size

    @property
    def max_timestamp(self) -> int:
        return self.indexes.max_timestamp

    def headers(self, position: int = 0, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
        """Yield positions and headers of the batches from `position` on; see `SegmentFiles.headers`."""
        return self.files.headers(position, self.size if end is None else end)

    def note(self, last_offset: int, max_timestamp: int, position: int, size: int, interval_bytes: int) -> None:
        """Add one batch, at a position of the file, to the bounds and the indexes. The next offset comes first: a
        thread that reads it after the largest timestamp then finds that batch below it.
        """
        self.next_offset = last_offset + 1
        self.indexes.note(last_offset, max_timestamp, position, size, interval_bytes)

    def write_seal(self, *, ends_log: bool = False) -> Seal:
        """Write the index files and the seal of a closed segment, whose file is flushed. Returns the seal.

        Blocks; call it off the event loop. ends_log: for the last segment, at a clean stop. Raises StorageFailure.
        """
        bounds = Seal(
            size=self.size, next_offset=self.next_offset, max_timestamp=self.max_timestamp,
            last_append_ms=self.last_append_ms, ends_log=ends_log,
        )  # fmt: skip
        return self.indexes.write(bounds)

    def load_seal(self) -> FoundSeal:
        """Load the bounds from the seal, unless it is damaged or of a file of another size. Raises StorageFailure."""
        seal = decode_seal(self.files.disk.read(self.files.path("seal")))
        if seal is not None and seal.size == self.size:
            self.indexes.load(seal)
            self.next_offset, self.last_append_ms = seal.next_offset, seal.last_append_ms
        return FoundSeal(seal=seal, file_size=self.size)

    def shortened(self, size: int) -> "Segment":
        """Return this segment after its file was cut to `size` bytes, at a batch boundary, and its seal was removed.

        The result can be written. This object keeps its file and its indexes, for its readers. Reads the headers behind
        the last remaining index entry, and no others. Raises StorageFailure.
        """
        shorter = Segment(self.files.disk, self.files.directory, self.base_offset, self.files.ending)
        shorter.first_append_ms, shorter.last_append_ms = self.first_append_ms, self.last_append_ms
        shorter.indexes = self.indexes.leading(shorter.files, size)
        entries = shorter.indexes.offsets
        position = entries[len(entries) - 1][1] if len(entries) else 0
        shorter.next_offset = shorter.indexes.add_stored(position, size, self.next_offset, MAX_BYTES)
        aborted = self.indexes.aborted
        shorter.indexes.aborted = None if aborted is None else entries_below(aborted, shorter.next_offset)
        return shorter

    def forget_indexes(self) -> None:
        """Reset indexes, bounds and aborted transactions before a scan builds them again."""
        self.indexes.stored.close()
        self.indexes = SegmentIndexes(self.files)
        self.next_offset = self.base_offset

    def detach(self) -> None:
        """Keep the segment readable although its files are about to be removed or replaced.

        Reads index files: call it off the event loop. Raises StorageFailure.
        """
        self.file.detach()
        with suppress(IndexUnavailable):
            self.indexes.pair()
        self.indexes.stored.detach()

    def release(self) -> None:
        """Never open any of its files again; see `File.release`."""
        self.file.release()
        self.indexes.stored.release()

    def close(self) -> None:
        self.file.close()
        self.indexes.stored.close()

    def remove(self) -> None:
        """Close the segment and remove its files."""
        self.close()
        self.files.remove()
