"""The files of one segment. All have its base offset in their name, and end in a suffix of their own."""

from collections.abc import Iterator

from conveyor.kernel.errors import LogDamaged, StorageFailure
from conveyor.kernel.ports import Directory, File
from conveyor.records.batch import HEADER_BYTES, BatchHeader, read_header

OFFSET_DIGITS = 20
_INDEX_SUFFIXES = ("seal", "index", "timeindex", "txnindex")
_SUFFIXES = (*_INDEX_SUFFIXES, "log")
_SCAN_BYTES = 8192


def segment_path(directory: str, base_offset: int, suffix: str) -> str:
    """Return `<directory>/<base offset, 20 digits>.<suffix>`."""
    return f"{directory}/{base_offset:0{OFFSET_DIGITS}d}.{suffix}"


def segment_paths(directory: str, base_offset: int, ending: str = "") -> tuple[str, ...]:
    """Return a segment's files, the seal first: without its seal a segment does not count as flushed."""
    return tuple(segment_path(directory, base_offset, suffix) + ending for suffix in _SUFFIXES)


def remove_segment(disk: Directory, directory: str, base_offset: int, ending: str = "") -> None:
    """Remove the files of a segment that are there. Raises StorageFailure."""
    for path in segment_paths(directory, base_offset, ending):
        disk.remove(path)


class SegmentFiles:
    """The file with the batches, which is open, and the others by their suffixes. Methods raise StorageFailure."""

    def __init__(
        self, disk: Directory, directory: str, base_offset: int, ending: str = "", *, create: bool = False
    ) -> None:
        """`ending` is appended to the file names of a segment that is not part of the log yet."""
        self.disk, self.directory = disk, directory
        self.base_offset, self.ending = base_offset, ending
        self.batches: File = disk.open(self.path("log"), create=create)

    def path(self, suffix: str) -> str:
        return segment_path(self.directory, self.base_offset, suffix) + self.ending

    def paths(self) -> tuple[str, ...]:
        """Return the paths of all files; see `segment_paths`."""
        return segment_paths(self.directory, self.base_offset, self.ending)

    def header_at(self, position: int) -> BatchHeader:
        """Read the batch header at a position. Raises StorageFailure if the file ends before that."""
        raw = self.batches.read(position, HEADER_BYTES)
        if len(raw) < HEADER_BYTES:
            raise StorageFailure(f"{self.path('log')} ends within a batch, at {position}")
        return read_header(raw)

    def headers(self, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
        """Yield positions and headers of the batches between two positions. Raises LogDamaged if one is truncated or
        damaged.
        """
        chunk, chunk_start = b"", position
        while position < end:
            within = position - chunk_start
            if within + HEADER_BYTES > len(chunk):
                chunk, chunk_start, within = self.batches.read(position, _SCAN_BYTES), position, 0
                if len(chunk) < HEADER_BYTES:
                    raise LogDamaged(f"{self.path('log')} ends within a batch, at {position}")
            header = read_header(chunk, within)
            if header.size < HEADER_BYTES or position + header.size > end:
                raise LogDamaged(f"{self.path('log')} is damaged at {position}")
            yield position, header
            position += header.size

    def open(self, suffix: str) -> File:
        return self.disk.open(self.path(suffix))

    def read(self, suffix: str) -> bytes | None:
        """Return the content of a file, or None if it is missing."""
        path = self.path(suffix)
        return self.disk.read(path) if self.disk.exists(path) else None

    def write(self, suffix: str, content: bytes) -> None:
        """Replace a file atomically. Blocks."""
        self.disk.write_atomic(self.path(suffix), content)

    def remove(self) -> None:
        remove_segment(self.disk, self.directory, self.base_offset, self.ending)

    def remove_indexes(self) -> None:
        """Remove the seal first: without it the index files are ignored."""
        for suffix in _INDEX_SUFFIXES:
            self.disk.remove(self.path(suffix))
