"""One flush of a log, as a value that a thread can run while the owner continues to append."""

import msgspec

from conveyor.kernel.ids import Offset
from conveyor.kernel.ports import Directory
from conveyor.log.leader_epochs import NAME as LEADER_EPOCHS
from conveyor.log.producers.producer_snapshot import SUFFIX, encode_snapshot, remove_snapshots
from conveyor.log.producers.producer_state import ProducerEntries
from conveyor.log.segments.files import segment_path
from conveyor.log.segments.seal import Seal
from conveyor.log.segments.segment import Segment

_KEPT_SNAPSHOTS = 2


class FlushJob(msgspec.Struct, frozen=True, kw_only=True):
    """Flushes the active segment, and seals the segments that were closed since the last flush.

    offset: everything below it is durable once `run` has returned.
    snapshot: the offset and content of a producer snapshot to write, if segments were closed.
    leader_epochs: the new content of their file, if it has changed.
    seals: after `run`, the seals of the closed segments in their order.
    """

    disk: Directory
    directory: str
    active: Segment
    closed: tuple[Segment, ...]
    snapshot: tuple[int, ProducerEntries] | None
    leader_epochs: bytes | None
    directory_changed: bool
    offset: Offset
    seals: list[Seal] = msgspec.field(default_factory=list)

    @property
    def is_only_a_sync(self) -> bool:
        """Whether the job only has to sync the active segment's file."""
        return not (
            self.closed or self.directory_changed or self.snapshot is not None or self.leader_epochs is not None
        )

    def run(self) -> None:
        """Execute the flush. Blocks. Raises StorageFailure; then only recovery can tell what is on the disk."""
        if self.directory_changed:
            self.disk.sync_directory(self.directory)
        if self.leader_epochs is not None:
            self.disk.write_atomic(f"{self.directory}/{LEADER_EPOCHS}", self.leader_epochs)
        for segment in self.closed:
            segment.file.sync()
            self.seals.append(segment.write_seal(ends_log=segment is self.active))
        self.active.file.sync()
        if self.snapshot is not None:
            offset, producers = self.snapshot
            self.disk.write_atomic(segment_path(self.directory, offset, SUFFIX), encode_snapshot(producers))
            remove_snapshots(self.disk, self.directory, keep=_KEPT_SNAPSHOTS, needed_at=self.active.base_offset)
