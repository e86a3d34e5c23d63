"""Flushes of a log. Each is a value that a thread can run while the owner continues to append."""

import msgspec

from conveyor.kernel.ids import Offset
from conveyor.kernel.ports import Directory
from conveyor.log.leader_epochs import NAME as LEADER_EPOCHS
from conveyor.log.producers.producer_snapshot import SUFFIX, encode_snapshot, remove_snapshots
from conveyor.log.producers.producer_state import ProducerEntries
from conveyor.log.segments.files import segment_path
from conveyor.log.segments.seal import Seal
from conveyor.log.segments.segment import Segment
from conveyor.log.tail import Tail

_KEPT_SNAPSHOTS = 2


class FlushJob(msgspec.Struct, frozen=True, kw_only=True):
    """Flushes the active segment, and seals the segments that were closed since the last flush.

    offset: everything below it is durable once `run` has returned.
    snapshot: the offset of a producer snapshot to write, if segments were closed, the leader epoch of the record before
    it, and the content.
    leader_epochs: the new content of their file, if it has changed.
    seals: after `run`, the seals of the closed segments in their order.
    """

    disk: Directory
    directory: str
    active: Segment
    closed: tuple[Segment, ...]
    snapshot: tuple[int, int, ProducerEntries] | None
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
            offset, leader_epoch, producers = self.snapshot
            content = encode_snapshot(producers, leader_epoch)
            self.disk.write_atomic(segment_path(self.directory, offset, SUFFIX), content)
            remove_snapshots(self.disk, self.directory, keep=_KEPT_SNAPSHOTS, needed_at=self.active.base_offset)


class Flushes:
    """The flushes of one log, and the flushed offset.

    unflushed: its closed segments wait for a flush that seals them; until then they are not removed or compacted.
    """

    def __init__(self, tail: Tail) -> None:
        self.flushed_offset, self.unflushed = tail.log_end_offset, tail.unflushed
        self._tail, self._jobs = tail, tail.jobs

    @property
    def recoverable_offset(self) -> Offset:
        """The end of what a start finds if the process is killed now. Recovery cuts off what follows skipped offsets
        until the segment before them is flushed.
        """
        flushed_offset = self.flushed_offset
        return flushed_offset if flushed_offset < self._tail.gap_end else self._tail.written_offset

    @property
    def is_due(self) -> bool:
        unflushed = self.unflushed
        is_dirty = bool(unflushed.closed) or unflushed.directory_changed or unflushed.is_snapshot_due
        return not self._jobs.is_truncating and (is_dirty or self.flushed_offset < self._tail.written_offset)

    def begin(self) -> FlushJob:
        """Return the job that makes everything written so far durable. Run it off the event loop."""
        assert not self._jobs.is_truncating, "a truncation of this log is not complete"
        self._jobs.flushes_count += 1
        unflushed = self.unflushed
        return self._job(unflushed.snapshot if unflushed.closed or unflushed.is_snapshot_due else None)

    def complete(self, job: FlushJob) -> None:
        """Advance the flushed offset after a job succeeded, but not above the end of a log truncated meanwhile."""
        self._jobs.flushes_count -= 1
        self.unflushed.is_snapshot_due &= job.snapshot is None
        for segment, seal in zip(job.closed, job.seals, strict=True):
            segment.indexes.use_files(seal)
        self.flushed_offset = Offset(min(max(self.flushed_offset, job.offset), self._tail.log_end_offset))

    def seal_all(self) -> None:
        """Flush and seal everything written, so that the next start is a clean one. Blocks. Raises StorageFailure."""
        tail = self._tail
        if not tail.segments.active.sealed:
            tail.leader_epochs.cut_end(tail.log_end_offset)  # Otherwise the next start writes the file again.
            self.unflushed.closed.append(tail.segments.active)
            self._job((tail.log_end_offset, tail.producers.entries())).run()

    def _job(self, snapshot: tuple[int, ProducerEntries] | None) -> FlushJob:
        tail, unflushed = self._tail, self.unflushed
        for segment in unflushed.closed:
            segment.indexes.finish()
        epochs = tail.leader_epochs
        job = FlushJob(
            disk=tail.place, directory=tail.place.path, active=tail.segments.active, closed=tuple(unflushed.closed),
            snapshot=None if snapshot is None else (snapshot[0], epochs.epoch_at(snapshot[0] - 1), snapshot[1]),
            leader_epochs=epochs.encode() if epochs.is_dirty else None,
            directory_changed=unflushed.directory_changed, offset=tail.written_offset,
        )  # fmt: skip
        unflushed.closed, unflushed.directory_changed = [], False
        return job
