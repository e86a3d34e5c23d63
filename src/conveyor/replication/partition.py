"""One partition that this broker holds: its log, role, high watermark and waiters.

    append -> (end of the tick) write -> (policy `ack`) flush -> high watermark -> waiters

The high watermark of a leader is the lowest offset that every in-sync replica has made as durable as the topic's
`flush.policy` demands: flushed (`ack`) or written (`os`). It never falls, except on a follower that truncates its log
after an unclean election. A partition begins with the lower bound that its data directory knows (`replica_facts`), and
rises with the reports of the ISR or with the leader's high watermark.

States:

    role Leader      serves; a read-only leader refuses appends, because its next epoch is not stored yet
    role Follower    another broker leads, or none: every call and every waiter gets NOT_LEADER
    offline          in either role, after a StorageFailure: every call and every waiter gets the reason

An offline partition stays offline. The owner replaces it by another `Partition`: with the same log after a
TransientFailure, or in another epoch after LogDiverged; with a copy of the leader's log after any other failure.

Invariants: each waiter is called exactly once; after a StorageFailure, and on a broker that does not lead, no record is
appended or acknowledged. Callers: the broker, from the loop's thread; only the owner of the roles calls `assume`,
`resign` and `end`.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from conveyor.kernel.errors import ErrorKind, ReadLater, Remedy, RequestError, StorageFailure, remedy_of
from conveyor.kernel.ids import LeaderEpoch, NodeId, Offset, TopicPartition
from conveyor.kernel.ports import Bytes, FileSlice
from conveyor.log.append_info import AppendInfo
from conveyor.log.flush import FlushJob
from conveyor.log.log import Log
from conveyor.records.checked_batch import CheckedBatch
from conveyor.replication import partition_refusals as refusals
from conveyor.replication.commit_deadline import CommitDeadline
from conveyor.replication.high_watermark import HighWatermark
from conveyor.replication.observer import ReplicationObserver
from conveyor.replication.queue_view import QueueView
from conveyor.replication.replica_reports import ReplicaReport, flushed_by_all, log_start_of
from conveyor.replication.roles import Follower, Leader, Role, check_succession, fenced_epoch
from conveyor.replication.waiters import OffsetWaiters, Waiter, Watchers
from conveyor.settings.tree import TopicSettings

log = logging.getLogger(__name__)


class Partition:
    """See the module's docstring.

    wants_write, wants_flush: called when there are records to write or flush; the owner then calls `write`, or
    `begin_flush` and `complete_flush`. went_offline: called after a StorageFailure. wants_checks: called when clients
    wait for the high watermark; the owner then calls `check_commits` until it returns False. joining: see below.
    """

    def __init__(
        self,
        identity: TopicPartition,
        log: Log,
        role: Role,
        wants_write: Callable[["Partition"], None],
        wants_flush: Callable[["Partition"], None],
        went_offline: Callable[[StorageFailure], None] | None = None,
        wants_checks: Callable[["Partition"], None] | None = None,
        joining: Mapping[NodeId, int] | None = None,
    ) -> None:
        self.identity, self.log = identity, log
        self.role: Role = role
        self._progress = HighWatermark(log.known_high_watermark)
        self.high_watermark: Offset = self._progress.offset
        self.recovered_end_offset: Offset | None = log.log_end_offset
        """The log end offset when the log was opened, or when this broker last became the leader after following; None
        once the queue has discarded its state of lost messages.
        """
        self.replication: ReplicationObserver[Partition] | None = None
        self.joining: dict[NodeId, int] = dict(joining or {})
        """The replicas that this leader has asked to add to the ISR, with the partition epoch of the request. The high
        watermark waits for them, too, until the image shows a later partition epoch.
        """
        self.reports: dict[NodeId, ReplicaReport] = {}
        """The last report of each other replica in this leader epoch."""
        self.leaders_tombstones_end_offset = 0
        """What the leader of this follower says of its `tombstones_end_offset`; 0 while they are not connected."""
        self.epoch_start_offset = log.log_end_offset
        """The log end offset when this leader's epoch began."""
        self.acknowledged_offset: int = log.flushed_offset
        """The end of the records acknowledged under acks=1. It is ahead of the high watermark until they are flushed.
        """
        self.offline_reason: str | None = None
        self.is_diverged = False
        """Whether it has gone offline because it has committed records that its leader lacks; see `LogDiverged`."""
        self._remedy, self._jobs_count = Remedy.NEW_LEADER, 0
        self._wants_write, self._wants_flush = wants_write, wants_flush
        self._went_offline, self._wants_checks = went_offline, wants_checks
        self._written_waiters, self._committed_waiters = OffsetWaiters(), OffsetWaiters()
        self._deadline = CommitDeadline(identity, self._committed_waiters)
        self.queue: QueueView | None = None
        self._watchers = Watchers()
        self._has_enough_replicas, self._has_followers, self._flushing = True, False, False
        self._begin_role(is_new_epoch=True)

    @property
    def leader_epoch(self) -> LeaderEpoch:
        return self.role.epoch

    @property
    def tombstones_end_offset(self) -> int:
        """The end of what all assigned replicas have flushed: the leader's reports tell, or the leader does.

        0 while a replica has not reported in this epoch, or while this follower is not connected with the leader.
        """
        role = self.role
        if isinstance(role, Follower):
            return self.leaders_tombstones_end_offset
        others = [node for node in (*role.replicas, *role.isr) if node != role.leader]
        flushed = self.log.flushed_offset
        return min(flushed, flushed_by_all(self.reports, others)) if others or self.reports else flushed

    @property
    def has_committed_epoch(self) -> bool:
        """Whether the high watermark has reached the log's end at the beginning of this leader's term.

        Before that it may be below offsets that consumers have seen from an earlier leader. Source: KIP-207.
        """
        return self.high_watermark >= self.epoch_start_offset

    def assume(self, role: Role) -> None:
        """Change to another role. Raises AssertionError if the role cannot follow the present one; see `roles`.

        A leader that becomes a follower answers all waiters with NOT_LEADER. A leader that continues in a higher epoch
        keeps its offset waiters, because its appended records stay. Watchers are called in either case.
        """
        before = self.role
        if role == before:
            return
        check_succession(before, role)
        self.role = role
        if isinstance(before, Follower) and isinstance(role, Leader):
            self.recovered_end_offset = self.log.log_end_offset
        log.info(
            "role assumed partition=%s role=%s leader=%s leader_epoch=%d",
            self.identity, type(role).__name__, role.leader, role.epoch,
        )  # fmt: skip
        is_new_epoch = role.epoch > before.epoch
        if is_new_epoch or isinstance(role, Follower):
            self.joining, self.reports = {}, {}
        if self.offline_reason is not None:
            if is_new_epoch and self._remedy is Remedy.NEW_LEADER:
                self._remedy = Remedy.REOPEN
            return
        self._begin_role(is_new_epoch=is_new_epoch)
        if isinstance(role, Follower):
            self._fail_waiters(lambda: refusals.not_leader(self.identity, role))
        self._watchers.notify()

    def resign(self) -> None:
        """Stop leading before the next leader is known. All waiters get NOT_LEADER."""
        if isinstance(self.role, Leader):
            self.assume(Follower(leader=None, epoch=self.role.epoch))

    def append(self, batch: CheckedBatch, now_ms: int) -> AppendInfo:
        """Append one record batch; see `Log.append`. Raises RequestError, also if the partition is or goes offline."""
        self.check_writable()
        was_idle = not self.log.needs_write
        try:
            info = self.log.append(batch, self.role.epoch, now_ms)
        except StorageFailure as failure:
            self.go_offline(failure)
            raise self.offline_error() from failure
        if was_idle:
            self._wants_write(self)
        return info

    def check_writable(self) -> None:
        """Check that this broker can append. Raises RequestError: PARTITION_OFFLINE, NOT_LEADER, DISK_FULL."""
        role = self.role
        if self.offline_reason is not None or isinstance(role, Follower) or role.is_read_only:
            raise self._append_error()
        if role.is_sure is not None and not role.is_sure():
            raise refusals.lease_expired(self.identity, role)

    def write(self) -> None:
        """Write the records appended in this tick, call their waiters, and request the flush if the policy does."""
        if self.offline_reason is not None:
            return
        try:
            self.log.write()
        except StorageFailure as failure:
            return self.go_offline(failure)
        role = self.role
        if isinstance(role, Leader) and role.is_sure is not None and not role.is_sure():  # Since the append.
            self._written_waiters.fail(partial(refusals.lease_expired, self.identity, role))
        self._written_waiters.release(self.log.written_offset)
        if self.log.topic.flush_policy == "ack":
            self._wants_flush(self)
        else:
            self._report(self.role.leader, self.log.written_offset)
        if self.replication is not None:
            self.replication.written(self)

    def want_flush(self) -> None:
        """Request a flush if there are unflushed records."""
        if self.log.needs_flush:
            self._wants_flush(self)

    def begin_flush(self) -> FlushJob | None:
        """Return a job to run off the loop; None if there is nothing to flush."""
        if self.offline_reason is not None or not self.log.needs_flush:
            return None
        self._flushing = True
        return self.log.begin_flush()

    def complete_flush(self, job: FlushJob, failure: StorageFailure | None) -> None:
        """Process the result of a flush."""
        self._flushing = False
        if self.offline_reason is not None:
            if failure is not None and self._remedy is Remedy.REOPEN:
                self._remedy = remedy_of(failure)  # Both failures are passing ones: neither has lost data.
            return self.log.abandon()
        if failure is not None:
            return self.go_offline(failure)
        self.log.complete_flush(job)
        if self.log.topic.flush_policy == "ack":
            self._report(self.role.leader, self.log.flushed_offset)
        if self.replication is not None:
            self.replication.flushed(self)

    def when_written(self, offset: int, waiter: Waiter) -> None:
        """Call back when all records below an offset are in the page cache (acks=1)."""
        if offset > self.acknowledged_offset and isinstance(self.role, Leader):
            self.acknowledged_offset = offset
        self._wait(self._written_waiters, offset, self.log.written_offset, waiter)

    def when_committed(self, offset: int, waiter: Waiter) -> None:
        """Call back when the high watermark has reached an offset."""
        self._wait(self._committed_waiters, offset, self.high_watermark, waiter)

    def when_acknowledged(self, offset: int, waiter: Waiter) -> None:
        """As `when_committed`, for a client, which waits no longer than `commit_deadline` says."""
        self._wait(self._committed_waiters, offset, self.high_watermark, waiter, True)
        if self._has_followers and not self._deadline.is_checked and self._wants_checks is not None:
            self._deadline.is_checked = True
            self._wants_checks(self)
        if not self._has_enough_replicas:
            self._deadline.fail()

    def check_commits(self) -> bool:
        """Answer the clients that have waited too long; see `commit_deadline`. Returns whether others wait."""
        return self._deadline.check(self.log.log_end_offset, self.high_watermark)

    def watch(self, changed: Callable[[], None]) -> None:
        """Call back once: when the high watermark rises, the role changes, or the partition goes offline."""
        self._watchers.add(changed)

    def unwatch(self, changed: Callable[[], None]) -> None:
        self._watchers.remove(changed)

    def read(self, offset: int, max_bytes: int, *, at_least_one: bool) -> FileSlice | None:
        """Return committed records from an offset on; None if there are none yet. Raises RequestError."""
        self.check_online()
        if self.high_watermark < offset <= self.acknowledged_offset:
            return None
        try:
            return self.log.read(
                offset, max_bytes, self.high_watermark, at_least_one=at_least_one, failed=self.failed_read
            )
        except StorageFailure as failure:
            raise self.failed_read(failure) from failure

    def failed_read(self, failure: StorageFailure) -> RequestError:
        """Return the error for a failed read. Takes the partition offline unless a later read may succeed."""
        if isinstance(failure, ReadLater):
            log.warning("read failed partition=%s reason=%s", self.identity, failure)
            return RequestError(ErrorKind.PARTITION_OFFLINE, f"{self.identity} cannot be read now: {failure}")
        self.go_offline(failure)
        return self.offline_error()

    def offline_error(self) -> RequestError:
        """Return the error for calls while the partition is offline."""
        return RequestError(ErrorKind.PARTITION_OFFLINE, f"{self.identity} is offline: {self.offline_reason}")

    def check_online(self) -> None:
        """Check that this broker serves the partition. Raises RequestError: PARTITION_OFFLINE, NOT_LEADER."""
        if self.offline_reason is not None:
            raise self.offline_error()
        if isinstance(self.role, Follower):
            raise refusals.not_leader(self.identity, self.role)

    def check_leader_epoch(self, epoch: int) -> None:
        """Check the client's epoch (-1: unknown), then the role. Raises RequestError. Source: KIP-320."""
        if 0 <= epoch < self.leader_epoch:
            raise fenced_epoch(self.role, f"{self.identity}: epoch is {self.leader_epoch}")
        if epoch > self.leader_epoch:
            raise RequestError(ErrorKind.UNKNOWN_LEADER_EPOCH, f"{self.identity}: epoch is {self.leader_epoch}")
        if isinstance(self.role, Follower):
            raise refusals.not_leader(self.identity, self.role)

    def check_replicas(self) -> None:
        """Check that the ISR is large enough for acks=all, and commits. Raises RequestError."""
        role = self.role
        if isinstance(role, Follower):
            raise refusals.not_leader(self.identity, role)
        needed, count = self.log.topic.min_insync_replicas, len(role.isr)
        if count < needed or count < role.min_isr:  # A companion has its owner's minimum, which only the role has.
            raise refusals.isr_too_small(self.identity, count, max(needed, role.min_isr))
        if self._deadline.overdue_offset > self.high_watermark:
            raise refusals.commits_stalled(self.identity)

    def use(self, topic: TopicSettings) -> None:
        """Use new settings of the topic. A new `flush.policy` counts for reports that were received before, too."""
        before, self.log.topic = self.log.topic, topic
        if topic.flush_policy == before.flush_policy or self.offline_reason is not None:
            return
        for node, report in self.reports.items():
            self._report(node, self._durable(report.written_offset, report.flushed_offset))
        self.want_flush()
        self._wait_for_replicas()

    def replica_reported(self, node: NodeId, epoch: int, report: ReplicaReport) -> None:
        """Count the progress of another replica, if it was made in the present epoch of this leader."""
        role = self.role
        if isinstance(role, Leader) and role.epoch == epoch and self.offline_reason is None:
            before = self.reports.get(node, report)
            self.reports[node] = report
            if report.flushed_offset < before.flushed_offset and self.replication is not None:
                self.replication.committed(self)  # Other followers must keep tombstones that this replica has lost.
            self._report(node, self._durable(report.written_offset, report.flushed_offset))

    def durable_offset_of(self, node: NodeId) -> int:
        """Return the end of what a replica has reported to be as durable as the policy demands; -1 if nothing."""
        report = self.reports.get(node)
        return -1 if report is None else self._durable(report.written_offset, report.flushed_offset)

    def may_join(self, node: NodeId) -> bool:
        """Return whether a replica has all that is committed, and all from before this leader's epoch, which may be
        (KAFKA-7128), and has deleted what this leader has: the deletion may have been acknowledged.
        """
        if log_start_of(self.reports, node) < self.log.log_start_offset:
            return False
        return self.durable_offset_of(node) >= max(self.high_watermark, self.epoch_start_offset)

    def join(self, node: NodeId, partition_epoch: int) -> None:
        """Wait for a replica from now on, because this leader is about to ask that it joins the ISR."""
        self.joining[node] = partition_epoch
        self._wait_for_replicas()
        if self.replication is not None:
            self.replication.written(self)  # Its records are sent with those of in-sync replicas from now on.

    def end_join(self, node: NodeId) -> None:
        """Stop waiting for a replica whose join was refused."""
        if self.joining.pop(node, None) is not None:
            self._wait_for_replicas()

    def append_as_follower(self, content: Bytes, now_ms: int) -> int:
        """Append a portion of the leader's batches; see `Log.append_as_follower`. Returns how many bytes were taken.

        Raises RefusedBatch, and StorageFailure after taking the partition offline.
        """
        was_idle = not self.log.needs_write
        try:
            info = self.log.append_as_follower(content, self.role.epoch, now_ms)
        except StorageFailure as failure:
            self.go_offline(failure)
            raise
        if was_idle:
            self._wants_write(self)
        return info.taken_bytes

    def follow_high_watermark(self, offset: int) -> None:
        """Take over the leader's high watermark, up to the end of this follower's log."""
        if self._progress.follow(min(offset, self.log.log_end_offset)):
            self.high_watermark = self._progress.offset
            if self.log.producers.transactions.undecided:
                self.log.producers.transactions.settle(self.high_watermark)
            self._watchers.notify()

    def cut_high_watermark(self) -> None:
        """Lower the high watermark to the end of a truncated log, or raise it to the start of a restarted one."""
        log = self.log
        self._progress.restart_at(max(log.log_start_offset, min(self.high_watermark, log.log_end_offset)))
        self.high_watermark = self._progress.offset

    @contextmanager
    def job(self) -> Iterator[None]:
        """Mark a job that changes the log's files off the loop. The log cannot be reopened until the job ends."""
        self._jobs_count += 1
        try:
            yield
        finally:
            self._jobs_count -= 1

    @property
    def remedy(self) -> Remedy | None:
        """What may bring an offline log back; None while a job uses its files, or if the partition is online."""
        return None if self._flushing or self._jobs_count or self.offline_reason is None else self._remedy

    def go_offline(self, failure: StorageFailure) -> None:
        """Stop serving: the disk is the truth, memory may differ from it.

        The exception is not kept: its traceback would keep the log's files open and their space in use.
        """
        if self.offline_reason is None:
            reason = str(failure)
            log.error("partition offline partition=%s reason=%s", self.identity, reason)
            self._remedy = remedy_of(failure)
            self.is_diverged = self._remedy is Remedy.NEW_LEADER
            self.end(reason)
            if self._went_offline is not None:
                self._went_offline(failure)

    def stay_offline(self, failure: StorageFailure) -> None:
        """Record that the log could not be reopened."""
        self._remedy = remedy_of(failure)
        self.offline_reason = str(failure)

    def end(self, reason: str) -> None:
        """Answer all waiters and release the log's files."""
        self.offline_reason = reason
        self._fail_waiters(self.offline_error)
        self._watchers.notify()
        if not self._flushing:
            self.log.abandon()

    def _begin_role(self, *, is_new_epoch: bool) -> None:
        """A leader records its epoch at the log's end at once, before the epoch has a record (KAFKA-7415).

        Earlier leaders may have acknowledged the whole log: a read below its end returns nothing yet rather than an
        error.
        """
        role, log = self.role, self.log
        self.leaders_tombstones_end_offset = 0
        if isinstance(role, Follower):
            return self._progress.begin((), is_new_epoch=is_new_epoch)
        if is_new_epoch:
            log.begin_epoch(role.epoch)
            self.acknowledged_offset = self.epoch_start_offset = log.log_end_offset
            self._deadline.overdue_offset = 0
            self._progress.begin((), is_new_epoch=True)
        self.joining = {node: epoch for node, epoch in self.joining.items() if epoch >= role.partition_epoch}
        self._progress.is_frozen = not role.may_commit
        self._wait_for_replicas()
        self._has_followers = len(role.replicas) > 1 or len(role.isr) > 1
        self._has_enough_replicas = role.has_enough_replicas
        if not role.has_enough_replicas:
            self._deadline.fail()

    def commit_again(self) -> None:
        """This broker is sure again that it leads: what was durable meanwhile is committed."""
        if self.offline_reason is None:
            self._wait_for_replicas()

    def _wait_for_replicas(self) -> None:
        """The high watermark rises if a replica that it waited for has left the ISR (KAFKA-13091)."""
        role, log = self.role, self.log
        if isinstance(role, Leader):
            self._progress.begin({*role.isr, *self.joining}, is_new_epoch=False)
            self._report(role.leader, self._durable(log.written_offset, log.flushed_offset))

    def _durable(self, written_offset: int, flushed_offset: int) -> int:
        return flushed_offset if self.log.topic.flush_policy == "ack" else written_offset

    def _report(self, node: NodeId | None, offset: int) -> None:
        """Count the offset of a replica. The high watermark rises if all other replicas have reached it."""
        role = self.role
        if not isinstance(role, Leader) or node is None:
            return
        if role.is_sure is not None:
            self._progress.is_frozen = not role.may_commit
        if self._progress.report(node, offset):
            self.high_watermark = self._progress.offset
            self._committed_waiters.release(self.high_watermark)
            self._watchers.notify()
            if self.replication is not None:
                self.replication.committed(self)

    def _wait(self, waiters: OffsetWaiters, offset: int, reached: int, waiter: Waiter, is_client: bool = False) -> None:
        if isinstance(self.role, Follower):
            waiter(self._unserved())
        elif offset <= reached:
            waiter(None)
        elif self.offline_reason is not None:
            waiter(self.offline_error())
        else:
            waiters.add(offset, waiter, is_client)

    def _fail_waiters(self, error: Callable[[], RequestError]) -> None:
        self._written_waiters.fail(error)
        self._committed_waiters.fail(error)

    def _append_error(self) -> RequestError:
        no_room = f"{self.identity}: there is no room to store its leader epoch"
        return self._unserved() or RequestError(ErrorKind.DISK_FULL, no_room)

    def _unserved(self) -> RequestError | None:
        if self.offline_reason is not None:
            return self.offline_error()
        return refusals.not_leader(self.identity, self.role) if isinstance(self.role, Follower) else None
