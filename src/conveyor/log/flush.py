"""What one flush of a log has to do, as a value that a thread can run while the owner goes on appending."""

from dataclasses import dataclass

from conveyor.kernel.ids import Offset
from conveyor.kernel.ports import Disk
from conveyor.log.leader_epochs import NAME as LEADER_EPOCHS
from conveyor.log.segment import EncodedIndexes, Segment, segment_path
from conveyor.log.snapshot import SUFFIX, remove_snapshots

_KEPT_SNAPSHOTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushJob:
    """Flush the active segment, and finish those that were closed since the last flush, with their indexes.

    offset: everything below it is on the disk when `run` has returned.
    snapshot: the offset and content of a producer snapshot to write, if segments were closed.
    leader_epochs: the content of their file, if there is a new one.
    """

    disk: Disk
    directory: str
    active: Segment
    closed: tuple[tuple[Segment, EncodedIndexes], ...]
    snapshot: tuple[int, bytes] | None
    leader_epochs: bytes | None
    directory_changed: bool
    offset: Offset

    @property
    def is_only_a_sync(self) -> bool:
        """Whether there is nothing to do but to sync the active segment's file."""
        return not (
            self.closed or self.directory_changed or self.snapshot is not None or self.leader_epochs is not None
        )

    def run(self) -> None:
        """Blocks. Raises StorageFailure; then nothing of the log may be trusted but what recovery finds."""
        if self.directory_changed:
            self.disk.sync_directory(self.directory)
        if self.leader_epochs is not None:
            self.disk.write_atomic(f"{self.directory}/{LEADER_EPOCHS}", self.leader_epochs)
        for segment, encoded in self.closed:
            segment.file.sync()
            segment.write_indexes(encoded)
        self.active.file.sync()
        if self.snapshot is not None:
            self.disk.write_atomic(segment_path(self.directory, self.snapshot[0], SUFFIX), self.snapshot[1])
            remove_snapshots(self.disk, self.directory, keep=_KEPT_SNAPSHOTS)
