"""One partition that this broker leads: its log, its high watermark, and everybody who waits for either.

    append -> (end of the loop's turn) write -> (policy `ack`) flush -> high watermark -> waiters

The high watermark is the lowest offset that every in-sync replica has made as durable as the topic's `flush.policy`
asks: with one replica, flushed (`ack`) or written (`os`). It never goes back.

States: online; read-only (its leader epoch is not stored); offline (a StorageFailure; says why). One that is offline
stays so: after a PassingFailure the owner opens its log again, as another `Partition`; any other failure takes a
restart. Invariants: a waiter is called exactly once; after a StorageFailure nothing is appended or acknowledged any
more. Who may call: the broker, from the loop's thread.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from conveyor.kernel.errors import ErrorKind, PassingFailure, ReadLater, RequestError, StorageFailure
from conveyor.kernel.ids import LeaderEpoch, Offset, TopicPartition
from conveyor.kernel.ports import Bytes, FileSlice
from conveyor.log.compaction.compaction_plan import CompactionPlan
from conveyor.log.compaction.key_compaction import CompactionResult
from conveyor.log.compaction.swap import SwapJob
from conveyor.log.flush import FlushJob
from conveyor.log.log import AppendInfo, Log
from conveyor.log.retention_limits import retained_from
from conveyor.log.segments.segment import Segment
from conveyor.log.segments.trim import TrimJob

log = logging.getLogger(__name__)

Waiter = Callable[[RequestError | None], None]
"""Called once: with None when the offset is reached, with the error when it never will be."""


class QueueView(Protocol):
    """What those who take messages out of a partition as out of a queue say about its retention."""

    def held_from(self) -> int | None:
        """The first message that is not due yet: it and what follows must be kept."""
        ...

    def settled_offset(self) -> int:
        """Everything below is settled by every subscription."""
        ...


class Partition:
    """See the module's docstring.

    wants_write, wants_flush: called when there is something to write or flush; the owner then calls `write`, or
    `begin_flush` and `complete_flush`. went_offline: called after a StorageFailure.
    """

    def __init__(
        self,
        identity: TopicPartition,
        log: Log,
        leader_epoch: LeaderEpoch,
        wants_write: Callable[["Partition"], None],
        wants_flush: Callable[["Partition"], None],
        went_offline: Callable[[StorageFailure], None] | None = None,
    ) -> None:
        self.identity = identity
        self.log = log
        self.leader_epoch = leader_epoch
        self.high_watermark = Offset(log.flushed_offset)
        self.opened_offset: Offset | None = self.high_watermark
        """Where the log ended when it was opened; None once its queue has forgotten what it knew of lost messages."""
        self.acknowledged_offset: int = self.high_watermark
        """The end of what acks=1 has promised: ahead of the high watermark until that is flushed."""
        self.offline_reason: str | None = None
        self._has_passing_failure = False
        self.is_read_only = False
        self._went_offline = went_offline
        self._jobs_count = 0
        self._wants_write = wants_write
        self._wants_flush = wants_flush
        self._written_waiters: deque[tuple[int, Waiter]] = deque()
        self._committed_waiters: deque[tuple[int, Waiter]] = deque()
        self.queue: QueueView | None = None
        self.inbox: Partition | None = None
        """Where what is published goes instead, until it is due; then only the forwarder appends here."""
        self._watchers: dict[Callable[[], None], None] = {}
        self._flushing = False
        log.begin_epoch(leader_epoch)

    def append(self, batch: Bytes, now_ms: int, *, is_checked: bool = False, is_own: bool = False) -> AppendInfo:
        """Append one record batch; see `Log.append`. Raises RequestError, also if the partition is or goes offline.

        is_checked: its records were checked before. is_own: the broker has made it; see `Log.append_own`.
        """
        if self.offline_reason is not None:
            raise self.offline_error()
        if self.is_read_only:
            raise RequestError(ErrorKind.DISK_FULL, f"{self.identity}: there is no room to store its leader epoch")
        was_idle = not self.log.needs_write
        try:
            if is_own:
                info = self.log.append_own(batch, self.leader_epoch, now_ms)
            else:
                info = self.log.append(batch, self.leader_epoch, now_ms, is_checked=is_checked)
        except StorageFailure as failure:
            self.go_offline(failure)
            raise self.offline_error() from failure
        if was_idle:
            self._wants_write(self)
        return info

    def write(self) -> None:
        """Write what this turn appended, tell who waits for it, and ask for the flush that the policy wants."""
        if self.offline_reason is not None:
            return
        try:
            self.log.write()
        except StorageFailure as failure:
            return self.go_offline(failure)
        _release(self._written_waiters, self.log.written_offset)
        if self.log.topic.flush_policy == "ack":
            self._wants_flush(self)
        else:
            self._advance(self.log.written_offset)

    def begin_flush(self) -> FlushJob | None:
        """A job to run off the loop, if there is something to flush."""
        if self.offline_reason is not None or not self.log.needs_flush:
            return None
        self._flushing = True
        return self.log.begin_flush()

    def complete_flush(self, job: FlushJob, failure: StorageFailure | None) -> None:
        """Take the result of a flush."""
        self._flushing = False
        if self.offline_reason is not None:
            if failure is not None and not isinstance(failure, PassingFailure):
                self._has_passing_failure = False  # Two failures met: neither may have lost anything.
            return self.log.abandon()
        if failure is not None:
            return self.go_offline(failure)
        self.log.complete_flush(job)
        if self.log.topic.flush_policy == "ack":
            self._advance(self.log.flushed_offset)

    def when_written(self, offset: int, waiter: Waiter) -> None:
        """Call back when everything below an offset is in the page cache (acks=1)."""
        if offset > self.acknowledged_offset:
            self.acknowledged_offset = offset
        self._wait(self._written_waiters, offset, self.log.written_offset, waiter)

    def when_committed(self, offset: int, waiter: Waiter) -> None:
        """Call back when the high watermark has reached an offset (acks=all)."""
        self._wait(self._committed_waiters, offset, self.high_watermark, waiter)

    def watch(self, changed: Callable[[], None]) -> None:
        """Call back once, at the next rise of the high watermark, or when the partition goes offline."""
        self._watchers[changed] = None

    def unwatch(self, changed: Callable[[], None]) -> None:
        self._watchers.pop(changed, None)

    def delete_records(self, offset: int) -> TrimJob:
        """Let go of everything below an offset; the caller runs the job.

        Raises RequestError: OFFSET_OUT_OF_RANGE, POLICY_VIOLATION, PARTITION_OFFLINE.
        """
        if self.offline_reason is not None:
            raise self.offline_error()
        if not self._may_let_go:
            raise RequestError(
                ErrorKind.POLICY_VIOLATION, f"{self.identity} is compacted: its cleanup.policy does not say `delete`"
            )
        if not 0 <= offset <= self.high_watermark:
            raise RequestError(
                ErrorKind.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is outside 0..{self.high_watermark} of {self.identity}",
            )
        try:
            return self.log.trim(offset)
        except StorageFailure as failure:
            raise self.failed_read(failure) from failure

    def retain(self, now_ms: int, *, may_roll: bool = True) -> TrimJob | None:
        """Trim the log as the topic's retention asks; None if nothing goes.

        may_roll: the active segment is closed if all of it is too old. That takes room on the disk, for its indexes.
        """
        if self.offline_reason is not None or not self._may_let_go:
            return None
        if may_roll and not self._roll_if_too_old(now_ms):
            return None
        log = self.log
        limit, settled = int(self.high_watermark), 0
        if self.queue is not None:
            held = self.queue.held_from()
            limit, settled = limit if held is None else min(limit, held), self.queue.settled_offset()
        start = retained_from(log.segments, log.log_start_offset, log.topic, limit, now_ms, settled)
        try:
            return log.trim(start) if start > log.log_start_offset else None
        except StorageFailure as failure:
            self.failed_read(failure)
            return None

    def _roll_if_too_old(self, now_ms: int) -> bool:
        try:
            self.log.roll_if_too_old(now_ms)
        except StorageFailure as failure:
            self.go_offline(failure)
            return False
        if self.log.needs_flush:
            self._wants_flush(self)
        return True

    @property
    def _may_let_go(self) -> bool:
        """Whether the topic's records ever go as a whole, not just the older ones of a key."""
        return self.log.topic.cleanup_policy != "compact"

    def plan_compaction(self, now_ms: int, max_keys: int) -> CompactionPlan | None:
        """What of the log is worth compacting now; None if nothing is."""
        if self.offline_reason is not None:
            return None
        return self.log.plan_compaction(self.high_watermark, now_ms, max_keys)

    def begin_swap(self, result: CompactionResult) -> SwapJob | None:
        """See `Log.begin_swap`; None also if the partition is not served any more."""
        return None if self.offline_reason is not None else self.log.begin_swap(result)

    def complete_swap(self, result: CompactionResult, new: Sequence[Segment]) -> None:
        """See `Log.complete_swap`."""
        if self.offline_reason is None:
            self.log.complete_swap(result, new)

    def read(self, offset: int, max_bytes: int, *, at_least_one: bool) -> FileSlice | None:
        """What consumers may see from an offset on; None for nothing yet. Raises RequestError."""
        if self.offline_reason is not None:
            raise self.offline_error()
        if self.high_watermark < offset <= self.acknowledged_offset:
            return None
        try:
            return self.log.read(
                offset, max_bytes, self.high_watermark, at_least_one=at_least_one, failed=self.failed_read
            )
        except StorageFailure as failure:
            raise self.failed_read(failure) from failure

    def failed_read(self, failure: StorageFailure) -> RequestError:
        """What to answer to a read that failed: go offline, unless it may succeed later."""
        if isinstance(failure, ReadLater):
            log.warning("read failed partition=%s reason=%s", self.identity, failure)
            return RequestError(ErrorKind.PARTITION_OFFLINE, f"{self.identity} cannot be read now: {failure}")
        self.go_offline(failure)
        return self.offline_error()

    def offline_error(self) -> RequestError:
        """What to answer while it is offline."""
        return RequestError(ErrorKind.PARTITION_OFFLINE, f"{self.identity} is offline: {self.offline_reason}")

    def check_online(self) -> None:
        """Raises RequestError (PARTITION_OFFLINE)."""
        if self.offline_reason is not None:
            raise self.offline_error()

    def check_leader_epoch(self, epoch: int) -> None:
        """Compare the epoch that a client knows, if it does (-1). Raises RequestError. Source: KIP-320."""
        if 0 <= epoch < self.leader_epoch:
            raise RequestError(ErrorKind.FENCED_LEADER_EPOCH, f"{self.identity}: epoch is {self.leader_epoch}")
        if epoch > self.leader_epoch:
            raise RequestError(ErrorKind.UNKNOWN_LEADER_EPOCH, f"{self.identity}: epoch is {self.leader_epoch}")

    def check_replicas(self) -> None:
        """Whether acks=all can be promised. Raises RequestError (NOT_ENOUGH_REPLICAS)."""
        needed = self.log.topic.min_insync_replicas
        if needed > 1:
            raise RequestError(
                ErrorKind.NOT_ENOUGH_REPLICAS, f"{self.identity} has 1 in-sync replica, min.insync.replicas is {needed}"
            )

    def begin_epoch(self, epoch: LeaderEpoch) -> None:
        """A new leader epoch is stored: what is appended from now on is of it."""
        self.leader_epoch = epoch
        self.log.begin_epoch(epoch)
        self.is_read_only = False

    @contextmanager
    def job(self) -> Iterator[None]:
        """Around a job that changes files of the log off the loop: nobody else may open the log meanwhile."""
        self._jobs_count += 1
        try:
            yield
        finally:
            self._jobs_count -= 1

    @property
    def may_return(self) -> bool:
        """Whether the log can be opened again: its failure may have passed, and nothing works on its files."""
        return self._has_passing_failure and not self._flushing and not self._jobs_count

    def go_offline(self, failure: StorageFailure) -> None:
        """Stop serving: what is on the disk is true, what is in memory may not be.

        The failure itself is kept nowhere: its traceback would keep the log's files open, and their room taken.
        """
        if self.offline_reason is None:
            reason = str(failure)
            log.error("partition offline partition=%s reason=%s", self.identity, reason)
            self._has_passing_failure = isinstance(failure, PassingFailure)
            self.end(reason)
            if self._went_offline is not None:
                self._went_offline(failure)

    def stay_offline(self, failure: StorageFailure) -> None:
        """Its log could not be opened again."""
        self._has_passing_failure = isinstance(failure, PassingFailure)
        self.offline_reason = str(failure)

    def end(self, reason: str) -> None:
        """Answer everybody who waits, and let go of the files."""
        self.offline_reason = reason
        for waiters in (self._written_waiters, self._committed_waiters):
            while waiters:
                waiters.popleft()[1](self.offline_error())
        self._notify()
        if not self._flushing:
            self.log.abandon()

    def _advance(self, offset: Offset) -> None:
        if offset > self.high_watermark:
            self.high_watermark = offset
            _release(self._committed_waiters, offset)
            self._notify()

    def _wait(self, waiters: deque[tuple[int, Waiter]], offset: int, reached: int, waiter: Waiter) -> None:
        if offset <= reached:
            waiter(None)
        elif self.offline_reason is not None:
            waiter(self.offline_error())
        else:
            waiters.append((offset, waiter))

    def _notify(self) -> None:
        if self._watchers:
            watchers, self._watchers = self._watchers, {}
            for changed in watchers:
                changed()


def _release(waiters: deque[tuple[int, Waiter]], reached: int) -> None:
    while waiters and waiters[0][0] <= reached:
        waiters.popleft()[1](None)
