"""The start of a log, which rises when its oldest records are removed."""

import msgspec

from conveyor.kernel.errors import DiskFull
from conveyor.kernel.ids import Offset
from conveyor.kernel.ports import Directory
from conveyor.log.segments.offset_file import LOG_START, write_offset
from conveyor.log.segments.segment import MOST_DETACHED, Segment
from conveyor.log.tail import Tail


class TrimJob(msgspec.Struct, frozen=True, kw_only=True):
    """Makes a new log start offset durable, then removes the files below it."""

    disk: Directory
    directory: str
    log_start_offset: int
    removed_paths: tuple[str, ...]

    def run(self) -> None:
        """Execute the removal. Blocks. If a crash interrupts it, the next start finishes it. Raises StorageFailure."""
        try:
            write_offset(self.disk, self.directory, LOG_START, self.log_start_offset)
        except DiskFull:  # Indexes can be rebuilt, so removing them first to free space is safe.
            for path in self.removed_paths:
                if path.endswith("index"):
                    self.disk.remove(path)
            write_offset(self.disk, self.directory, LOG_START, self.log_start_offset)
        for path in self.removed_paths:
            self.disk.remove(path)
        if self.removed_paths:
            self.disk.sync_directory(self.directory)


class LogStart:
    """The log start offset, and the one that is on the disk."""

    def __init__(self, tail: Tail, offset: int) -> None:
        self.offset = self.flushed_offset = Offset(offset)
        self._tail, self._jobs = tail, tail.jobs

    @property
    def is_trimming(self) -> bool:
        return self._jobs.trims_count > 0

    def roll_if_too_old(self, now_ms: int) -> None:
        """Let a trim remove the active segment if all its records are too old. Raises StorageFailure."""
        self._tail.roll_if_too_old(now_ms)

    def trim(self, offset: int) -> TrimJob:
        """Raise the log start offset and remove the segments entirely below it. Run the returned job off the event
        loop, then call `complete_trim`. Of two jobs, the earlier one must end first.

        Open slices stay readable; of many segments, the older ones only as long as their files are open, so that a trim
        opens few files. The active segment is never removed. Raises StorageFailure; then nothing has changed.
        """
        assert not self._jobs.is_truncating, "a truncation of this log is not complete"
        start_offset = Offset(max(self.offset, offset))
        segments, count = self._tail.segments.all, 0
        while self._can_drop(segments[count : count + 2], start_offset):
            count += 1
        dropped = segments[:count]
        for segment in dropped[-MOST_DETACHED:]:
            segment.file.detach()
            segment.indexes.stored.detach()
        for segment in dropped[:-MOST_DETACHED]:
            segment.release()
        self.offset = start_offset
        self._tail.segments.replace(segments[count:])
        self._jobs.trims_count += 1
        return TrimJob(
            disk=self._tail.place,
            directory=self._tail.place.path,
            log_start_offset=self.offset,
            removed_paths=tuple(path for segment in dropped for path in segment.files.paths()),
        )

    def complete_trim(self) -> None:
        """Let others change the files after a trim's job succeeded. After the last one the log start is on the disk."""
        self._jobs.trims_count -= 1
        if not self._jobs.trims_count and not self._jobs.is_truncating:
            self.flushed()

    def flushed(self) -> None:
        """Take the log start for durable, and forget the leader epochs below it.

        Until then the log may come back with the earlier start: what states its epochs has to include these.
        """
        self.flushed_offset = self.offset
        self._tail.leader_epochs.cut_start(self.offset)

    def _can_drop(self, kept: list[Segment], start_offset: int) -> bool:
        """Return whether the first of two segments is entirely below the start offset. Compaction may have emptied its
        end.
        """
        if len(kept) == 1 or self._jobs.is_swapping or self._tail.unflushed.is_snapshot_due:
            return False
        return kept[0].sealed and kept[1].base_offset <= start_offset
