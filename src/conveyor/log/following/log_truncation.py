"""The truncation of a log: in memory at once, and of its files when no other job changes them; see `truncation_job`."""

import logging

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import Offset
from conveyor.log.flush import Flushes
from conveyor.log.following.leader_copy import LeaderCopy
from conveyor.log.following.truncation_job import Truncated, TruncationJob, plan_truncation
from conveyor.log.log_start import LogStart
from conveyor.log.tail import Tail

log = logging.getLogger(__name__)


class LogTruncation:
    """The truncation of one log that is in progress, if one is. Until it is complete, the log is read but not changed
    otherwise.
    """

    def __init__(self, tail: Tail, start: LogStart, flushes: Flushes, copy: LeaderCopy) -> None:
        self._tail, self._start, self._flushes = tail, start, flushes
        self._copy, self._jobs = copy, tail.jobs
        self._is_restarting = False

    @property
    def is_pending(self) -> bool:
        """Whether files remain to be changed."""
        return self._jobs.is_truncating

    def truncate_to(self, offset: int) -> None:
        """Remove all records at and above an offset, and the whole batch that holds it. The log start offset may be in
        that batch: the log then becomes empty, and continues at its log start offset.

        In memory this happens at once, also if a flush or a compaction is in progress. If `is_pending` is set
        afterwards, files remain to be changed: see `begin`. Leader epochs that begin at the new end or above are
        removed even if no record is (KAFKA-10706). An offset above the log end offset counts as the log end offset.
        Raises RequestError (OFFSET_OUT_OF_RANGE: below the log start offset), and StorageFailure.
        """
        tail, jobs = self._tail, self._jobs
        assert not jobs.is_cutting_files, "another truncation of this log is in progress"
        if offset < self._start.offset:
            raise RequestError(
                ErrorKind.OFFSET_OUT_OF_RANGE,
                f"{tail.place.path} starts at offset {self._start.offset}: it cannot be truncated to {offset}",
            )
        tail.write()
        if offset < tail.log_end_offset:
            segments = tail.segments.all
            end = Offset(plan_truncation(segments, self._start.offset, offset).end_offset)
            log.info("log truncated partition=%s from=%d to=%d", tail.place.path, tail.log_end_offset, end)
            jobs.is_truncating = True
            jobs.truncations_count += tail.producers.transactions.last_marker_offset >= end
            jobs.truncations_count += any(segment.sealed and segment.next_offset > end for segment in segments)
            tail.end_at(end)
            self._flushes.flushed_offset = min(self._flushes.flushed_offset, end)
        jobs.is_truncating |= tail.leader_epochs.cut_end(tail.log_end_offset)

    def restart_at(self, offset: int) -> None:
        """Remove all records, leader epochs and producers, and continue at any offset; further as `truncate_to`.

        For a follower whose leader has deleted all records below the offset, or has none of this log's records.
        """
        tail, jobs, start = self._tail, self._jobs, Offset(offset)
        assert not jobs.is_cutting_files, "another truncation of this log is in progress"
        log.info("log restarted partition=%s from=%d at=%d", tail.place.path, tail.log_end_offset, offset)
        tail.discard_pending()
        jobs.is_truncating = self._is_restarting = True
        jobs.truncations_count += 1
        self._start.offset = self._flushes.flushed_offset = start
        tail.end_at(start)
        tail.leader_epochs.cut_end(0)

    def begin(self, now_ms: int) -> TruncationJob | None:
        """Return the job that cuts the files. Run it off the event loop, then call `complete`.

        Returns None while another job may change the files: call again when that job is complete. Also None if there is
        nothing to cut. Raises StorageFailure.
        """
        if not self._jobs.is_truncating or not self._jobs.is_idle:
            return None
        tail, segments = self._tail, self._tail.segments.all
        bounds = plan_truncation(segments, self._start.offset, tail.log_end_offset, restarts=self._is_restarting)
        self._jobs.is_cutting_files = True
        kept_base = -1 if bounds.kept_base is None else bounds.kept_base
        changes_producers = bounds.forgets or tail.producers.remembers_from(bounds.end_offset)
        return TruncationJob(
            disk=tail.place,
            directory=tail.place.path,
            bounds=bounds,
            below=tuple(segment for segment in segments if segment.base_offset < kept_base),
            kept=next((segment for segment in segments if segment.base_offset == kept_base), None),
            above=tuple(segment for segment in segments if segment.base_offset > kept_base),
            producers=tail.producers.empty() if changes_producers else None,
            now_ms=now_ms,
        )

    def complete(self, job: TruncationJob, result: Truncated) -> None:
        """Continue at the new end after a job succeeded. The removal is durable; see `truncation_job`."""
        tail = self._tail
        self._jobs.is_truncating = self._jobs.is_cutting_files = self._is_restarting = False
        self._start.flushed()
        self._copy.forget_above_end()
        if result.producers is not None:
            tail.producers = result.producers
        tail.continue_in([*job.below, *result.segments])
