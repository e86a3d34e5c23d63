"""Copies of the parts that recovery removes from a log, so that one flipped bit does not lose all batches after it.

    <partition>/cut-<time of the start, ms since 1970>/<offset, 20 digits>.log

contains a segment's bytes from its first damaged batch on, named by the log end offset at that point, or a whole
segment that followed it. The broker never reads these files; they are for manual repair. Each partition keeps the cuts
of the last few starts that made any.
"""

import msgspec

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ports import Disk
from conveyor.log.segments.files import segment_path
from conveyor.log.segments.segment import Segment

KEPT_CUTS = 3
_PREFIX = "cut-"
_COPY_BYTES = 1 << 20


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """The parts that one start removes from one log. Methods block, and raise StorageFailure; then nothing was
    removed.
    """

    disk: Disk
    directory: str
    now_ms: int

    def keep_tail(self, segment: Segment, position: int) -> str:
        """Copy a segment's content from `position` on, durably. Returns the copy's path."""
        path = self._path(segment.next_offset)
        kept = self.disk.open(path, create=True)
        try:
            kept.truncate(0)
            for start in range(position, segment.size, _COPY_BYTES):
                kept.append([segment.file.read(start, _COPY_BYTES)])
            kept.sync()
        except StorageFailure:
            self.disk.remove(path)  # Each attempt on a full disk would leave a part of the copy.
            raise
        finally:
            kept.close()
        self._finish()
        return path

    def keep_segment(self, segment: Segment) -> str:
        """Move a whole segment out of the log. Returns its new path."""
        path = self._path(segment.base_offset)
        segment.close()
        segment.files.remove_indexes()
        self.disk.rename(segment.files.path("log"), path)
        self._finish()
        return path

    @property
    def _folder(self) -> str:
        return f"{self.directory}/{_PREFIX}{self.now_ms:013d}"

    def _path(self, offset: int) -> str:
        self.disk.make_directory(self._folder)
        return segment_path(self._folder, offset, "log")

    def _finish(self) -> None:
        """Make the file names durable, and remove the oldest other cuts. The wall clock may have been set back."""
        self.disk.sync_directory(self._folder)
        self.disk.sync_directory(self.directory)
        names = (f"{self.directory}/{name}" for name in self.disk.list(self.directory) if name.startswith(_PREFIX))
        others = [path for path in names if path != self._folder]
        for path in others[: 1 - KEPT_CUTS]:
            self.disk.remove_tree(path)
