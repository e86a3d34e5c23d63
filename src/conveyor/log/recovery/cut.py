"""What recovery cuts off a log is kept aside, so that a flipped bit does not lose the whole batches after it.

    <partition>/cut-<time of the start, ms since 1970>/<offset, 20 digits>.log

holds a segment's bytes from the first batch on that did not check out, under the offset that the log ended at there; or
a whole segment that came after it. Nothing reads these files; they are for people. Of each partition the cuts of the
last few starts that cut anything are kept.
"""

from dataclasses import dataclass

from conveyor.kernel.ports import Disk
from conveyor.log.segments.segment import Segment, segment_path

KEPT_CUTS = 3
_PREFIX = "cut-"
_COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What one start cuts off one log. Methods block, and raise StorageFailure; then nothing was cut."""

    disk: Disk
    directory: str
    now_ms: int

    def keep_tail(self, segment: Segment, position: int) -> str:
        """Copy what a segment holds from a position on; it is on the disk when this returns. Returns where."""
        path = self._path(segment.next_offset)
        kept = self.disk.open(path, create=True)
        kept.truncate(0)
        for start in range(position, segment.size, _COPY_BYTES):
            kept.append([segment.file.read(start, _COPY_BYTES)])
        kept.sync()
        kept.close()
        self._finish()
        return path

    def keep_segment(self, segment: Segment) -> str:
        """Move a whole segment out of the log. Returns where to."""
        path = self._path(segment.base_offset)
        segment.close()
        segment.remove_index_files()
        self.disk.rename(segment.path("log"), path)
        self._finish()
        return path

    @property
    def _folder(self) -> str:
        return f"{self.directory}/{_PREFIX}{self.now_ms:013d}"

    def _path(self, offset: int) -> str:
        self.disk.make_directory(self._folder)
        return segment_path(self._folder, offset, "log")

    def _finish(self) -> None:
        """Make the names durable, and remove what the oldest starts have cut."""
        self.disk.sync_directory(self._folder)
        self.disk.sync_directory(self.directory)
        for name in [each for each in self.disk.list(self.directory) if each.startswith(_PREFIX)][:-KEPT_CUTS]:
            self.disk.remove_tree(f"{self.directory}/{name}")
