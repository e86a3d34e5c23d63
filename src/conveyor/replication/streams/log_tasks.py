"""Changes of a follower's log that block: to be run off the event loop, one at a time for each partition.

begin (may have to wait for a flush, a compaction, or a trim of a former leader) -> run, off the loop -> complete
"""

from typing import Protocol

from conveyor.kernel.errors import LogDiverged
from conveyor.log.following.truncation_job import Truncated, TruncationJob
from conveyor.log.leader_epochs import NO_EPOCH, truncation_point
from conveyor.log.log_start import TrimJob
from conveyor.log.segments.offset_file import GapsJob
from conveyor.replication.follower_term import FollowerTerm
from conveyor.replication.partition import Partition
from conveyor.replication.streams.frames import Diverging


class LogTask(Protocol):
    """One such change."""

    def begin(self, now_ms: int) -> bool:
        """Return whether `run` can be called now. If not, call again later. Raises StorageFailure."""
        ...

    def run(self) -> None:
        """Execute the change. Blocks. Raises StorageFailure; the partition is then to go offline."""
        ...

    def complete(self) -> None:
        """Continue with the changed log."""
        ...


class CutFiles:
    """Changes the files of a log that was truncated or restarted in memory."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._job: TruncationJob | None = None
        self._result: Truncated | None = None

    def begin(self, now_ms: int) -> bool:
        self._job = self._partition.log.truncation.begin(now_ms)
        return self._job is not None or not self._partition.log.truncation.is_pending

    def run(self) -> None:
        if self._job is not None:
            self._result = self._job.run()

    def complete(self) -> None:
        if self._job is not None and self._result is not None:
            self._partition.log.truncation.complete(self._job, self._result)
            self._partition.want_flush()


class AllowGaps:
    """Lets offsets be missing below an offset, and tombstones below another: the leader has compacted its log."""

    def __init__(self, partition: Partition, offset: int, removed_end_offset: int = 0) -> None:
        self._partition = partition
        self._offset = offset
        self._removed_end_offset = removed_end_offset
        self._job: GapsJob | None = None

    def begin(self, now_ms: int) -> bool:
        if self._removed_end_offset and self._partition.log.compaction.is_swapping:
            return False  # It may write the same file.
        self._job = self._partition.log.copying.allow_gaps(self._offset, self._removed_end_offset)
        return True

    def run(self) -> None:
        if self._job is not None:
            self._job.run()

    def complete(self) -> None:
        if self._job is not None:
            self._partition.log.copying.complete_gaps(self._job)


class TrimStart:
    """Removes what the leader has removed at the start of its log, but nothing that is not committed here."""

    def __init__(self, partition: Partition, offset: int) -> None:
        self._partition = partition
        self._offset = offset
        self._job: TrimJob | None = None

    def begin(self, now_ms: int) -> bool:
        log = self._partition.log
        if log.start.is_trimming:  # For the leader that this broker was: the later start must be the last on the disk.
            return False
        if not log.truncation.is_pending:  # Otherwise the log is about to be followed again, and starts where it must.
            self._job = log.start.trim(min(self._offset, self._partition.term.high_watermark))
        return True

    def run(self) -> None:
        if self._job is not None:
            self._job.run()

    def complete(self) -> None:
        if self._job is not None:
            self._partition.log.start.complete_trim()


def restart(partition: Partition, term: FollowerTerm, offset: int) -> CutFiles:
    """Let a follower's log begin again, empty. offset: at most where its leader's log starts, or this one does."""
    partition.log.truncation.restart_at(offset)
    term.cut()
    return CutFiles(partition)


def truncate(partition: Partition, term: FollowerTerm, diverging: Diverging) -> CutFiles:
    """Remove what the leader does not have. Raises LogDiverged if that includes committed records.

    Only after an unclean election may it include them. A log that was compacted because of records that it loses now
    lacks older ones, which the leader has: it begins again. The high watermark of a broker that has just started is
    the one that its data directory knows.
    """
    log, role = partition.log, term.role
    point = truncation_point(log.leader_epochs, log.log_end_offset, (diverging.epoch, diverging.end_offset))
    if point < term.high_watermark and not term.may_give_up_committed:
        raise LogDiverged(
            f"{partition.identity}: broker {role.leader}, the leader in epoch {role.epoch}, lacks committed records"
            f" from offset {point} on; the high watermark is {term.high_watermark}. This broker keeps them, and"
            f" copies nothing, until another broker leads: stop broker {role.leader} if it runs on a copy of its data"
            " directory. To give the records up, remove the directory of the partition while this broker is stopped"
        )
    if point < log.log_start_offset or (term.may_give_up_committed and point < log.copying.compacted_offset):
        return restart(partition, term, 0)
    log.copying.checked_epoch = NO_EPOCH  # The cut may empty the log above offset 0.
    log.truncation.truncate_to(point)
    term.cut()
    return CutFiles(partition)
