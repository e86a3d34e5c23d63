"""The log of one partition. Appends are buffered, written together and flushed together; reads return file slices.

Invariant: log_start_offset <= flushed_offset <= written_offset <= log_end_offset
    flushed  on the disk           advanced by `complete_flush`
    written  in the page cache     advanced by `write`; only written records can be read
    end      buffered              advanced by `append`, which assigns the offsets, and by `append_as_follower`

A truncation lowers all three; see `truncation_job`. Until it is complete, the log is read but not changed otherwise.

Callers: `replication`, and the compaction of `broker`, from one thread. Only jobs such as `FlushJob` run off it. After
a StorageFailure the log must not be used any more; `open_log` recovers it from the disk.
"""

import logging
from collections.abc import Callable, Iterable, Sequence

from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ids import Offset
from conveyor.kernel.ports import Bytes, FileSlice
from conveyor.log.append_info import AppendInfo
from conveyor.log.compaction.compaction_plan import CompactionLimits, CompactionPlan, plan_compaction
from conveyor.log.compaction.key_compaction import CompactionResult
from conveyor.log.compaction.swap import SwapJob, discard
from conveyor.log.flush import FlushJob
from conveyor.log.following.leader_batches import FollowerAppendInfo, LogTail, check_leader_batches
from conveyor.log.following.truncation_job import Truncated, TruncationJob, plan_truncation, truncation_job
from conveyor.log.log_parts import LogParts
from conveyor.log.log_probe import LogProbe
from conveyor.log.partition_directory import PartitionDirectory
from conveyor.log.producers.producer_state import ProducerEntries
from conveyor.log.replay import record_appended
from conveyor.log.retention_limits import is_too_old
from conveyor.log.segments import lookup
from conveyor.log.segments.offset_file import GapsJob
from conveyor.log.segments.position_cache import PositionCache
from conveyor.log.segments.segment import MAX_BYTES, Segment
from conveyor.log.segments.segment_age import max_age_ms
from conveyor.log.segments.trim import TrimJob
from conveyor.records.batch import CONTROL, MAGIC_END, BatchHeader, placed_prefix, with_append_time
from conveyor.records.checked_batch import CheckedBatch
from conveyor.records.timestamps import stamps_records
from conveyor.settings.tree import TopicSettings

log = logging.getLogger(__name__)


class Log:
    """One partition's log; see the module's docstring."""

    def __init__(
        self, disk: PartitionDirectory, directory: str, topic: TopicSettings, parts: LogParts, probe: LogProbe
    ) -> None:
        self.directory = directory
        self.topic = topic
        self.producers, self.leader_epochs = parts.producers, parts.leader_epochs
        self.segments = parts.segments
        self.log_start_offset = self.flushed_start_offset = self.known_high_watermark = Offset(parts.log_start_offset)
        """The first is also the least high watermark; the owner may know a higher one."""
        self.cleaned_offset, self.gap_offset = parts.cleaned_offset, parts.gap_offset
        self.removed_end_offset, self.copy_origin = parts.removed_end_offset, (-1, 0)
        """Tombstones and markers are only missing below the first. The second: the leader epoch in which this log began
        to be copied, and the leader's first at that time.
        """
        self.was_stopped_cleanly, self.lacks_batches = parts.was_stopped_cleanly, parts.lacks_batches
        self.log_end_offset = self.written_offset = self.flushed_offset = Offset(self._active.next_offset)
        self.topic_id, self._disk, self._probe = disk.topic_id, disk, probe
        self._pending: list[Bytes] = []
        self._end_position = self._active.size
        self._unsynced: list[Segment] = []
        self._snapshot: tuple[int, ProducerEntries] = 0, ProducerEntries()
        """The producers at the last roll or truncation, and the log end offset at that time."""
        self._directory_changed, self._is_snapshot_due = parts.fresh, False
        """The second: a truncation may have removed all snapshots, so no segment is removed until one is flushed."""
        self.is_truncating = False
        """From `truncate_to` until `complete_truncation`."""
        self.is_swapping = self._is_cutting_files = self._is_restarting = False
        self.truncations_count = self._jobs_count = self.trims_count = 0
        """Jobs in progress that a truncation must wait for: flushes and others, and trims."""
        self._positions = PositionCache()

    @property
    def _active(self) -> Segment:
        return self.segments[-1]

    @property
    def needs_write(self) -> bool:
        return bool(self._pending)

    @property
    def needs_flush(self) -> bool:
        is_dirty = bool(self._unsynced) or self._directory_changed or self._is_snapshot_due
        return not self.is_truncating and (is_dirty or self.flushed_offset < self.written_offset)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    def begin_epoch(self, leader_epoch: int) -> None:
        """Start a leader epoch at the log end offset, possibly long before its first record. Source: KIP-101."""
        self._forget_above_end()  # A copy that was not complete knows what the leader before has removed there.
        self.leader_epochs.assign(leader_epoch, self.log_end_offset)

    def append(self, batch: CheckedBatch, leader_epoch: int, now_ms: int) -> AppendInfo:
        """Append one record batch and assign its offsets; `write` puts it into the file.

        The broker has checked the batch and its records. A stage may have dropped some or all records; their offsets
        are used up nevertheless.
        Raises RequestError (see `ProducerState.check`) and StorageFailure. Source: KIP-98.
        """
        content, header = batch.content, batch.header
        is_idempotent = header.producer_id >= 0
        if is_idempotent:
            earlier = None if header.attributes & CONTROL else self.producers.check(header)
            if earlier is not None:
                first, last = Offset(earlier.base_offset), Offset(earlier.last_offset)
                return AppendInfo(first, last, earlier.append_timestamp_ms, True)
        timestamp_ms = header.max_timestamp
        if stamps_records(self.topic):
            content, timestamp_ms = with_append_time(content, now_ms), now_ms
        base_offset = self.log_end_offset
        last_offset = self._add(content, header, base_offset, leader_epoch, timestamp_ms, now_ms)
        if is_idempotent:
            if header.attributes & CONTROL:
                record_appended(self.producers, self._active.indexes.aborted, header, content, base_offset, now_ms)
            else:
                self.producers.record(header, base_offset, now_ms)
        self._probe.appended_batches += 1
        self._probe.appended_records += header.records_count
        self._probe.appended_bytes += len(content)
        return AppendInfo(base_offset, last_offset, now_ms)

    def append_as_follower(self, content: Bytes, leader_epoch: int, now_ms: int) -> FollowerAppendInfo:
        """Append record batches exactly as a leader stored them; `write` puts them into the file.

        content: whole batches, unchanged until `write`. One call takes the leading ones up to a limit, so that its time
        is limited; the result says how much. They are all checked before the first one is appended.
        leader_epoch: the epoch of the leader that sent them.
        Raises RefusedBatch, which leaves the log unchanged, and StorageFailure. Sources: KIP-101, KIP-595.
        """
        tail = LogTail(
            end_offset=self.log_end_offset,
            is_empty=len(self.segments) == 1 and not self._end_position,
            leader_epoch=self.leader_epochs.latest,
            gap_offset=self.gap_offset,
        )
        taken_bytes = 0
        for batch in check_leader_batches(content, tail, leader_epoch):
            header = batch.header
            if header.base_offset < self.log_end_offset:
                self._begin_below(header.base_offset)
            base_offset = Offset(header.base_offset)
            self._add(batch.content, header, base_offset, header.leader_epoch, header.max_timestamp, now_ms)
            record_appended(self.producers, self._active.indexes.aborted, header, batch.content, base_offset, now_ms)
            taken_bytes += header.size
        return FollowerAppendInfo(taken_bytes, self.log_end_offset)

    def skip_to(self, offset: int, now_ms: int) -> None:
        """Raise the log end offset of a follower: compaction has left no record of the leader's log below it.

        The offset is at most the gap offset, or the log end offset. Raises StorageFailure.
        """
        assert not self.is_truncating, "a truncation of this log is not complete"
        if offset <= self.log_end_offset:
            return
        assert offset <= self.gap_offset, f"offset {offset} is above the gap offset {self.gap_offset}"
        self.leader_epochs.skip(self.log_end_offset, offset)
        self._roll(now_ms, Offset(offset))
        self.log_end_offset = self.written_offset = Offset(offset)

    def allow_gaps(self, offset: int, removed_end_offset: int = 0) -> GapsJob | None:
        """Let offsets be missing below one offset, and tombstones below another: this follower copies a compacted log.

        Run the job off the event loop, then call `complete_gaps`. Returns None if they may be missing already.
        """
        assert not self.is_truncating, "a truncation of this log is not complete"
        if offset <= self.gap_offset and removed_end_offset <= self.removed_end_offset:
            return None
        self._jobs_count += 1
        return GapsJob(self._disk, self.directory, max(offset, self.gap_offset), removed_end_offset)

    def complete_gaps(self, job: GapsJob) -> None:
        """Accept gaps after a job succeeded."""
        self._jobs_count -= 1
        self.gap_offset = max(self.gap_offset, job.offset)
        self.removed_end_offset = max(self.removed_end_offset, job.removed_end_offset)

    def write(self) -> None:
        """Write all buffered batches with one system call, if possible. Raises StorageFailure."""
        if self._pending:
            buffers, self._pending = self._pending, []
            self._active.file.append(buffers)
            self.written_offset = self.log_end_offset
            self._positions.remember(self._active, self.log_end_offset, self._end_position)

    def begin_flush(self) -> FlushJob:
        """Return the job that makes everything written so far durable. Run it off the event loop."""
        assert not self.is_truncating, "a truncation of this log is not complete"
        self._jobs_count += 1
        return self._flush_job(self._snapshot if self._unsynced or self._is_snapshot_due else None)

    def complete_flush(self, job: FlushJob) -> None:
        """Advance the flushed offset after a job succeeded, but not above the end of a log truncated meanwhile."""
        self._jobs_count -= 1
        self._is_snapshot_due &= job.snapshot is None
        for segment, seal in zip(job.closed, job.seals, strict=True):
            segment.indexes.use_files(seal)
        self.flushed_offset = Offset(min(max(self.flushed_offset, job.offset), self.log_end_offset))

    def read(
        self,
        offset: int,
        max_bytes: int,
        limit_offset: int,
        *,
        at_least_one: bool,
        failed: Callable[[StorageFailure], object] | None = None,
    ) -> FileSlice | None:
        """Return the stored bytes from the batch that holds `offset` on; None if nothing is readable there yet.

        limit_offset: a batch boundary; no record at or above it is returned.
        max_bytes: the slice ends on a batch boundary within this size, but `at_least_one` batch is returned whole
        (KIP-74).
        failed: see `FileSlice`.
        Raises RequestError (OFFSET_OUT_OF_RANGE), StorageFailure.
        """
        if not self.log_start_offset <= offset <= limit_offset:
            raise RequestError(
                ErrorKind.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is outside {self.log_start_offset}..{limit_offset} of {self.directory}",
            )
        limit_offset = min(limit_offset, self.written_offset)
        if offset >= limit_offset:
            return None
        segment = lookup.segment_for(self.segments, offset)
        start = self._positions.find(segment, offset)
        if start >= segment.size and segment is not self._active:
            segment, start = lookup.first_with_records(self.segments, segment), 0
            if segment.base_offset >= limit_offset:
                return None
        limit = segment.size if limit_offset >= segment.next_offset else self._positions.find(segment, limit_offset)
        end = lookup.cut(segment, start, limit, max_bytes, at_least_one=at_least_one)
        if end <= start:
            return None
        if end < limit:
            self._positions.remember(segment, segment.files.header_at(end).base_offset, end)
        return FileSlice(segment.file, start, end - start, failed)

    def roll_if_too_old(self, now_ms: int) -> None:
        """Roll the active segment if all its records are older than `retention.ms`. Raises StorageFailure."""
        if self.is_truncating or not self._end_position:
            return
        if is_too_old(self._active, self.topic, now_ms):
            self._roll(now_ms, self.log_end_offset)

    def trim(self, offset: int) -> TrimJob:
        """Raise the log start offset and remove the segments entirely below it. Run the returned job off the event
        loop, then call `complete_trim`. Of two jobs, the earlier one must end first.

        Open slices stay readable. The active segment is never removed. Raises StorageFailure; then nothing has changed.
        """
        assert not self.is_truncating, "a truncation of this log is not complete"
        start_offset = Offset(max(self.log_start_offset, offset))
        kept = self.segments[:]
        while self._can_drop(kept, start_offset):
            del kept[0]
        dropped = self.segments[: len(self.segments) - len(kept)]
        for segment in dropped:
            segment.file.detach()  # Only open slices can still be read.
            segment.indexes.close()
        self.log_start_offset, self.segments = start_offset, kept
        self.leader_epochs.cut_start(start_offset)
        self._positions.clear()
        self.trims_count += 1
        return TrimJob(
            disk=self._disk,
            directory=self.directory,
            log_start_offset=self.log_start_offset,
            removed_paths=tuple(path for segment in dropped for path in segment.files.paths()),
        )

    def complete_trim(self) -> None:
        """Let others change the files after a trim's job succeeded. After the last one the log start is on the disk."""
        self.trims_count -= 1
        if not self.trims_count and not self.is_truncating:
            self.flushed_start_offset = self.log_start_offset

    def truncate_to(self, offset: int) -> None:
        """Remove all records at and above an offset, and the whole batch that holds it. The log start offset may be in
        that batch: the log then becomes empty, and continues at its log start offset.

        In memory this happens at once, also if a flush or a compaction is in progress. If `is_truncating` is set
        afterwards, files remain to be changed: see `begin_truncation`. Leader epochs that begin at the new end or above
        are removed even if no record is (KAFKA-10706). An offset above the log end offset counts as the log end offset.
        Raises RequestError (OFFSET_OUT_OF_RANGE: below the log start offset), and StorageFailure.
        """
        assert not self._is_cutting_files, "another truncation of this log is in progress"
        if offset < self.log_start_offset:
            raise RequestError(
                ErrorKind.OFFSET_OUT_OF_RANGE,
                f"{self.directory} starts at offset {self.log_start_offset}: it cannot be truncated to {offset}",
            )
        self.write()
        if offset < self.log_end_offset:
            end = Offset(plan_truncation(self.segments, self.log_start_offset, offset).end_offset)
            log.info("log truncated partition=%s from=%d to=%d", self.directory, self.log_end_offset, end)
            self.is_truncating = True
            self.truncations_count += self.producers.transactions.last_marker_offset >= end
            self.truncations_count += any(segment.sealed and segment.next_offset > end for segment in self.segments)
            self.log_end_offset = self.written_offset = end
            self.flushed_offset = min(self.flushed_offset, end)
            self._positions.clear()
        self.is_truncating |= self.leader_epochs.cut_end(self.log_end_offset)

    def restart_at(self, offset: int) -> None:
        """Remove all records, leader epochs and producers, and continue at any offset; further as `truncate_to`.

        For a follower whose leader has deleted all records below the offset, or has none of this log's records.
        """
        assert not self._is_cutting_files, "another truncation of this log is in progress"
        log.info("log restarted partition=%s from=%d at=%d", self.directory, self.log_end_offset, offset)
        self._pending = []
        self.is_truncating = self._is_restarting = True
        self.truncations_count += 1
        self.log_start_offset = self.flushed_offset = self.written_offset = self.log_end_offset = Offset(offset)
        self.leader_epochs.cut_end(0)
        self._positions.clear()

    def begin_truncation(self, now_ms: int) -> TruncationJob | None:
        """Return the job that cuts the files after `truncate_to`. Run it off the event loop, then call
        `complete_truncation`.

        Returns None while another job may change the files: call again when that job is complete. Also None if there is
        nothing to cut. Raises StorageFailure.
        """
        is_busy = self._is_cutting_files or self.is_swapping or self._jobs_count or self.trims_count
        if not self.is_truncating or is_busy:
            return None
        restarts, segments = self._is_restarting, self.segments
        bounds = plan_truncation(segments, self.log_start_offset, self.log_end_offset, restarts=restarts)
        self._is_cutting_files = True
        return truncation_job(self._disk, self.directory, segments, bounds, self.producers, now_ms)

    def complete_truncation(self, job: TruncationJob, result: Truncated) -> None:
        """Continue at the new end after a job succeeded. The removal is durable; see `truncation_job`."""
        self.is_truncating = self._is_cutting_files = self._is_restarting = False
        self.flushed_start_offset = self.log_start_offset
        self.segments = [*job.below, *result.segments]
        self._unsynced = [segment for segment in self._unsynced if segment in job.below]
        self._end_position = self._active.size
        self._forget_above_end()
        if result.producers is not None:
            self.producers = result.producers
        self._snapshot = self.log_end_offset, self.producers.entries()
        self._is_snapshot_due = len(self.producers) > 0

    def plan_compaction(self, limits: CompactionLimits, now_ms: int, max_keys: int) -> CompactionPlan | None:
        """Return the compaction that is due; None if none is."""
        if "compact" not in self.topic.cleanup_policy or self.is_swapping or self.is_truncating:
            return None
        return plan_compaction(
            self.directory, self._disk.topic_id, self.segments, self.producers, self.topic,
            cleaned_offset=self.cleaned_offset, limits=limits, now_ms=now_ms, max_keys=max_keys,
            truncations_count=self.truncations_count,
        )  # fmt: skip

    def begin_swap(self, result: CompactionResult) -> SwapJob | None:
        """Start the swap of compacted segments. Run the job off the event loop, then call `complete_swap`.

        Returns None if the log has removed or truncated some of the originals meanwhile; the caller must then discard
        the result.
        """
        present = {segment.base_offset: segment for segment in self.segments[:-1] if segment.sealed}
        is_current = not self.is_truncating and result.truncations_count == self.truncations_count
        if not is_current or not set(result.replaced) <= present.keys():
            return None
        replaced = [present[base] for base in result.replaced]
        self.is_swapping = True
        self.removed_end_offset = max(self.removed_end_offset, result.removed_tombstones_end_offset)
        return SwapJob(disk=self._disk, directory=self.directory, result=result, replaced=replaced)

    def discard(self, base_offsets: Iterable[int]) -> None:
        """Remove the files of an unused compaction. Blocks. Raises StorageFailure."""
        discard(self._disk, self.directory, base_offsets)

    def complete_swap(self, result: CompactionResult, new: Sequence[Segment]) -> None:
        """Use the new segments, which the job has opened under the originals' names."""
        self.is_swapping = False
        self.cleaned_offset = max(self.cleaned_offset, result.cleaned_offset)
        kept = [segment for segment in self.segments if segment.base_offset not in result.replaced]
        self.segments = sorted([*new, *kept], key=lookup.base_offset)
        self._positions.clear()

    def close(self) -> None:
        """Write, flush and seal everything, so that the next start is a clean one. Blocks. Raises StorageFailure.

        A log whose truncation is not complete is left to the recovery of the next start.
        """
        if self.is_truncating:
            return self.abandon()
        self.write()
        if not self._active.sealed:
            self.leader_epochs.cut_end(self.log_end_offset)  # Otherwise the next start writes the file again.
            self._unsynced.append(self._active)
            self._flush_job((self.log_end_offset, self.producers.entries())).run()
        for segment in self.segments:
            segment.close()

    def abandon(self) -> None:
        """Stop writing and opening files: after a StorageFailure, or before the partition is deleted.

        The file names may soon belong to another log. Readers of open files can finish.
        """
        self._pending = []
        for segment in self.segments:
            segment.release()

    def _forget_above_end(self) -> None:
        kept = [min(at, self.log_end_offset) for at in (self.cleaned_offset, self.gap_offset, self.removed_end_offset)]
        self.cleaned_offset, self.gap_offset, self.removed_end_offset = kept

    def _can_drop(self, kept: list[Segment], start_offset: int) -> bool:
        """Whether the first segment is entirely below the start offset. Compaction may have emptied its end."""
        if len(kept) == 1 or self.is_swapping or self._is_snapshot_due:
            return False
        return kept[0].sealed and kept[1].base_offset <= start_offset

    def _flush_job(self, snapshot: tuple[int, ProducerEntries] | None) -> FlushJob:
        for segment in self._unsynced:
            segment.indexes.finish()
        job = FlushJob(
            disk=self._disk, directory=self.directory, active=self._active, closed=tuple(self._unsynced),
            snapshot=snapshot, leader_epochs=self.leader_epochs.encode() if self.leader_epochs.is_dirty else None,
            directory_changed=self._directory_changed, offset=self.written_offset,
        )  # fmt: skip
        self._unsynced, self._directory_changed = [], False
        return job

    def _add(
        self, content: Bytes, header: BatchHeader, base_offset: Offset, leader_epoch: int, timestamp_ms: int,
        now_ms: int,
    ) -> Offset:  # fmt: skip
        """Buffer a batch at an offset, which may be above the log end offset on a follower. Returns its last offset.

        A missing record may have been the first of its epoch; see `LeaderEpochs.assign`.
        """
        assert not self.is_truncating, "a truncation of this log is not complete"
        size = len(content)
        last_offset = Offset(base_offset + header.last_offset_delta)
        self._roll_if_due(size, base_offset, last_offset, now_ms)
        self.leader_epochs.assign(leader_epoch, self.log_end_offset, base_offset)
        self._pending.append(placed_prefix(base_offset, header, leader_epoch))
        self._pending.append(memoryview(content)[MAGIC_END:])
        self._active.note(last_offset, timestamp_ms, self._end_position, size, self.topic.index_interval_bytes)
        self._end_position += size
        self.log_end_offset = Offset(last_offset + 1)
        return last_offset

    def _roll_if_due(self, size: int, base_offset: Offset, last_offset: Offset, now_ms: int) -> None:
        active = self._active
        if active.sealed:
            self._reopen(active)
        if self._end_position == 0 or active.first_append_ms is None:
            active.first_append_ms = now_ms
        is_too_large = self._end_position + size > min(self.topic.segment_bytes, MAX_BYTES)
        is_too_old_to_grow = now_ms - active.first_append_ms >= max_age_ms(active, self.topic)
        is_too_wide = last_offset - active.base_offset > MAX_BYTES
        if is_too_wide or (self._end_position and (is_too_large or is_too_old_to_grow)):
            is_far = last_offset - self.log_end_offset > MAX_BYTES
            self._roll(now_ms, base_offset if is_far else self.log_end_offset)
        self._active.last_append_ms = now_ms

    def _roll(self, now_ms: int, base_offset: Offset) -> None:
        self.write()
        closed = self._active
        if closed.sealed:
            self._reopen(closed)
        self._snapshot = base_offset, self.producers.entries()
        segment = Segment(self._disk, self.directory, base_offset, create=True)
        segment.first_append_ms = now_ms
        self.segments.append(segment)
        self._unsynced.append(closed)
        self._directory_changed = True
        self._end_position = 0
        self._positions.remember(segment, segment.base_offset, 0)
        log.info("segment rolled partition=%s base_offset=%d bytes=%d", self.directory, base_offset, closed.size)

    def _begin_below(self, base_offset: int) -> None:
        """Replace the only segment, which is empty, because the first batch also holds offsets below the log start."""
        begun = Segment(self._disk, self.directory, base_offset, create=True)
        self._disk.sync_directory(self.directory)  # A directory without a segment counts as damaged.
        self._active.file.detach()  # A flush in progress may still sync it.
        self._active.indexes.close()
        self._active.files.remove()
        self.segments, self._directory_changed = [begun], True
        self._positions.clear()

    def _reopen(self, segment: Segment) -> None:
        """Continue to write a segment that a clean stop sealed."""
        segment.indexes.reopen()
        self._directory_changed = True
