"""What one flush of a log has to do, as a value that a thread can run while the owner goes on appending."""

from dataclasses import dataclass, field

from conveyor.kernel.ids import Offset
from conveyor.kernel.ports import Directory
from conveyor.log.leader_epochs import NAME as LEADER_EPOCHS
from conveyor.log.producers.producer_snapshot import SUFFIX, encode_snapshot, remove_snapshots
from conveyor.log.producers.producer_state import ProducerEntries
from conveyor.log.segments.seal import Seal
from conveyor.log.segments.segment import Segment, segment_path

_KEPT_SNAPSHOTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushJob:
    """Flush the active segment, and finish those that were closed since the last flush, with their indexes.

    offset: everything below it is on the disk when `run` has returned.
    snapshot: the offset of a producer snapshot to write, and the producers, if segments were closed.
    leader_epochs: the content of their file, if there is a new one.
    seals: of the closed segments, in their order, when `run` has returned.
    """

    disk: Directory
    directory: str
    active: Segment
    closed: tuple[Segment, ...]
    snapshot: tuple[int, ProducerEntries] | None
    leader_epochs: bytes | None
    directory_changed: bool
    offset: Offset
    seals: list[Seal] = field(default_factory=list)

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
        for segment in self.closed:
            segment.file.sync()
            encoded = segment.encoded_indexes(ends_log=segment is self.active)
            segment.write_indexes(encoded)
            self.seals.append(encoded.seal)
        self.active.file.sync()
        if self.snapshot is not None:
            offset, producers = self.snapshot
            self.disk.write_atomic(segment_path(self.directory, offset, SUFFIX), encode_snapshot(producers))
            remove_snapshots(self.disk, self.directory, keep=_KEPT_SNAPSHOTS)
