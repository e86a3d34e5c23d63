"""A follower's copy of its leader's log.

The leader's compaction may have left gaps. Where offsets may be missing is made durable before the first gap is copied.
"""

from conveyor.kernel.ids import Offset
from conveyor.kernel.ports import Bytes
from conveyor.log.compaction.log_compaction import LogCompaction
from conveyor.log.following.leader_batches import FollowerAppendInfo, LogTail, check_leader_batches
from conveyor.log.leader_epochs import NO_EPOCH
from conveyor.log.replay import record_appended
from conveyor.log.segments.offset_file import GapsJob
from conveyor.log.tail import Tail


class LeaderCopy:
    """See the module's docstring. gap_offset: records and offsets below it may be missing, although this broker has not
    compacted them. origin: the leader epoch in which this log began to be copied, and the end of the tombstones that
    the leader had removed at that time. checked_epoch: the last leader epoch in which this log was fit to be continued;
    -1 after a truncation.
    """

    def __init__(self, tail: Tail, compaction: LogCompaction, gap_offset: int) -> None:
        self.gap_offset, self.origin, self.checked_epoch = gap_offset, (-1, 0), NO_EPOCH
        self._tail, self._compaction, self._jobs = tail, compaction, tail.jobs

    @property
    def compacted_offset(self) -> int:
        """The end of what was compacted, here or in the logs that this one was copied from. Records below it may be
        missing because of later ones below it, which this log may not have copied yet.
        """
        return max(self._compaction.cleaned_offset, self.gap_offset)

    def append(self, content: Bytes, leader_epoch: int, now_ms: int) -> FollowerAppendInfo:
        """Append record batches exactly as a leader stored them; `Log.write` puts them into the file.

        content: whole batches, unchanged until `write`. One call takes the leading ones up to a limit, so that its time
        is limited; the result says how much. They are all checked before the first one is appended.
        leader_epoch: the epoch of the leader that sent them.
        Raises RefusedBatch, which leaves the log unchanged, and StorageFailure. Sources: KIP-101, KIP-595.
        """
        tail = self._tail
        expected = LogTail(
            end_offset=tail.log_end_offset,
            is_empty=tail.is_empty,
            leader_epoch=tail.leader_epochs.latest,
            gap_offset=self.gap_offset,
        )
        taken_bytes = 0
        for batch in check_leader_batches(content, expected, leader_epoch):
            header = batch.header
            if header.base_offset < tail.log_end_offset:
                tail.begin_below(header.base_offset)
            base_offset = Offset(header.base_offset)
            tail.add(batch.content, header, base_offset, header.leader_epoch, header.max_timestamp, now_ms)
            aborted = tail.segments.active.indexes.aborted
            record_appended(tail.producers, aborted, header, batch.content, base_offset, now_ms)
            taken_bytes += header.size
        return FollowerAppendInfo(taken_bytes, tail.log_end_offset)

    def begin_epoch(self, leader_epoch: int) -> None:
        """Start a leader epoch at the log end offset, possibly long before its first record: this broker leads.

        The leader before may have removed tombstones above the end of a copy that was not complete. No replica of this
        leader can lack them. The files keep the bounds of the copy: a start takes the lower end of both again, and only
        too high a bound is safe. The gap offset stays: other logs still have the records that were removed here because
        of later ones below it, and may lack those. Source: KIP-101.
        """
        tail, compaction = self._tail, self._compaction
        compaction.removed_end_offset = min(compaction.removed_end_offset, tail.log_end_offset)
        tail.leader_epochs.assign(leader_epoch, tail.log_end_offset)

    def forget_above_end(self) -> None:
        """After a truncation, lower the offsets below which records may be missing to the log end offset."""
        end, compaction = self._tail.log_end_offset, self._compaction
        self.gap_offset = min(self.gap_offset, end)
        compaction.cleaned_offset = min(compaction.cleaned_offset, end)
        compaction.removed_end_offset = min(compaction.removed_end_offset, end)

    def skip_to(self, offset: int, now_ms: int) -> None:
        """Raise the log end offset: compaction has left no record of the leader's log below it.

        The offset is at most the gap offset, or the log end offset. Raises StorageFailure.
        """
        assert not self._jobs.is_truncating, "a truncation of this log is not complete"
        if offset > self._tail.log_end_offset:
            assert offset <= self.gap_offset, f"offset {offset} is above the gap offset {self.gap_offset}"
            self._tail.skip_to(Offset(offset), now_ms)

    def allow_gaps(self, offset: int, removed_end_offset: int = 0) -> GapsJob | None:
        """Let offsets be missing below one offset, and tombstones below another: the leader has compacted its log.

        Run the job off the event loop, then call `complete_gaps`. Returns None if they may be missing already.
        """
        assert not self._jobs.is_truncating, "a truncation of this log is not complete"
        if offset <= self.gap_offset and removed_end_offset <= self._compaction.removed_end_offset:
            return None
        self._jobs.flushes_count += 1
        place = self._tail.place
        return GapsJob(place, place.path, max(offset, self.gap_offset), removed_end_offset)

    def complete_gaps(self, job: GapsJob) -> None:
        """Accept gaps after a job succeeded."""
        self._jobs.flushes_count -= 1
        self.gap_offset = max(self.gap_offset, job.offset)
        self._compaction.removed_end_offset = max(self._compaction.removed_end_offset, job.removed_end_offset)
