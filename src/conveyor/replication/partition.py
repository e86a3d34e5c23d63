"""One partition that this broker holds: its log, whether it is online, and the present term.

    assume -> LeaderTerm      serves; a read-only leader refuses appends, because its next epoch is not stored yet
           -> FollowerTerm    another broker leads, or none: every call and every waiter gets NOT_LEADER
    offline                   in either term, after a StorageFailure: every call and every waiter gets the reason

All that belongs to a leader epoch lives in its term and ends with it. The high watermark passes from term to term. It
begins with the lower bound that the data directory knows (`replica_facts`), and rises with the reports of the ISR or
with the leader's high watermark.

An offline partition stays offline. The owner replaces it by another `Partition`: with the same log after a
TransientFailure, or in another epoch after LogDiverged; with a copy of the leader's log after any other failure.

Invariants: after a StorageFailure, and on a broker that does not lead, no record is appended or acknowledged. Callers:
the broker, from the loop's thread; only the owner of the roles calls `assume` and `end`. The owner is
`broker.partitions`, which gives the `calls`; the observer is `broker.replicas.Replicator`. No caller keeps a term
longer than one call: an `await` may end it.
"""

import logging
from collections.abc import Mapping

from conveyor.kernel.errors import ErrorKind, ReadLater, RequestError, StorageFailure
from conveyor.kernel.ids import NodeId, TopicPartition
from conveyor.kernel.ports import Bytes
from conveyor.kernel.signal import Signal
from conveyor.log.append_info import AppendInfo
from conveyor.log.flush import FlushJob
from conveyor.log.log import Log
from conveyor.log.segments.segment_indexes import IndexUnavailable
from conveyor.records.checked_batch import CheckedBatch
from conveyor.replication import partition_refusals as refusals
from conveyor.replication.follower_term import FollowerTerm
from conveyor.replication.leader_term import LeaderTerm
from conveyor.replication.observer import ReplicationObserver
from conveyor.replication.offline_state import OfflineState
from conveyor.replication.roles import Follower, Leader, Role, check_succession
from conveyor.replication.term_context import OwnerCalls, TermContext, reported_offset
from conveyor.settings.tree import TopicSettings

log = logging.getLogger(__name__)


class Partition:
    """See the module's docstring. Not here: the high watermark and its waiters, which `LeaderTerm` has (`advance`), and
    the reports of followers, which `ReplicaProgress` has.

    joining: the joins that a partition had asked for which this one replaces.

    changed: the high watermark has risen, the role has changed, the partition has gone offline, or a replica has lost
    flushed records. term: the present one; leader_term: the same if this broker leads. observer: None for a partition
    with one replica.
    """

    def __init__(
        self,
        identity: TopicPartition,
        log: Log,
        role: Role,
        calls: "OwnerCalls[Partition]",
        joining: Mapping[NodeId, int] | None = None,
    ) -> None:
        self.identity, self.log = identity, log
        self.offline = OfflineState(identity)
        self.changed: Signal[None] = Signal()
        self.observer: ReplicationObserver[Partition] | None = None
        self._calls = calls
        self._is_write_wanted = False
        self._reported_before = 0
        """The end of what was reported by an earlier `flush.policy`, see `reported_offset`. A leader may count it."""
        self._context = TermContext(
            identity=identity,
            log=log,
            offline=self.offline,
            changed=self.changed,
            wants_checks=calls.wants_checks,
            holds_lease=calls.holds_lease,
        )
        self.leader_term: LeaderTerm | None = None
        self.term: LeaderTerm | FollowerTerm
        if isinstance(role, Leader):
            self._lead(role, None, joining or {})
        else:
            self.term = FollowerTerm(self._context, role, log.recovered.high_watermark)

    def leading(self) -> LeaderTerm:
        """Return the term of a broker that serves the partition. Raises RequestError: PARTITION_OFFLINE, NOT_LEADER."""
        term = self.leader_term
        if self.offline.reason is not None:
            raise self.offline.error()
        if term is None:
            raise refusals.not_leader(self.identity, self.term.role)
        return term

    def assume(self, role: Role) -> None:
        """Change to another role. Raises AssertionError if the role cannot follow the present one; see `roles`.

        The end of a leader's term answers its waiters with NOT_LEADER, unless this broker leads in the next term, too.
        Listeners of `changed` are called in either case.
        """
        before = self.term
        if role == before.role:
            return
        check_succession(before.role, role)
        log.info(
            "role assumed partition=%s role=%s leader=%s leader_epoch=%d",
            self.identity, type(role).__name__, role.leader, role.epoch,
        )  # fmt: skip
        if role.epoch > before.epoch and self.offline.reason is not None:
            self.offline.epoch_began()
        if isinstance(role, Leader):
            self._lead(role, before, {})
        else:
            self._follow(role, before)
        if self.offline.reason is None:
            self.changed.emit(None)

    def append(self, batch: CheckedBatch, now_ms: int) -> AppendInfo:
        """Append one record batch; see `Log.append`. Raises RequestError, also if the partition is or goes offline."""
        term = self.term
        term.check_writable()
        try:
            info = self.log.append(batch, term.epoch, now_ms)
        except StorageFailure as failure:
            self.go_offline(failure)
            raise self.offline.error() from failure
        if not self._is_write_wanted:
            self._is_write_wanted = True
            self._calls.wants_write(self)
        return info

    def append_as_follower(self, content: Bytes, now_ms: int) -> int:
        """Append a portion of the leader's batches; see `LeaderCopy.append`. Returns how many bytes were taken.

        Raises RefusedBatch, and StorageFailure after taking the partition offline.
        """
        try:
            info = self.log.copying.append(content, self.term.epoch, now_ms)
        except StorageFailure as failure:
            self.go_offline(failure)
            raise
        if not self._is_write_wanted:
            self._is_write_wanted = True
            self._calls.wants_write(self)
        return info.taken_bytes

    def write(self) -> None:
        """Write the records appended in this tick, call their waiters, and request a flush if the policy does, or if a
        segment was closed.
        """
        self._is_write_wanted = False
        if self.offline.reason is not None:
            return
        try:
            self.log.write()
        except StorageFailure as failure:
            return self.go_offline(failure)
        self.term.written()
        if self.log.topic.flush_policy == "ack" or self.log.flushes.unflushed.closed:
            self._calls.wants_flush(self)
        if self.observer is not None:
            self.observer.written(self)

    def want_flush(self) -> None:
        """Request a flush if there are unflushed records."""
        if self.log.flushes.is_due:
            self._calls.wants_flush(self)

    def begin_flush(self) -> FlushJob | None:
        """Return a job to run off the loop; None if there is nothing to flush."""
        if self.offline.reason is not None or not self.log.flushes.is_due:
            return None
        self.offline.is_flushing = True
        return self.log.flushes.begin()

    def complete_flush(self, job: FlushJob, failure: StorageFailure | None) -> None:
        """Process the result of a flush."""
        self.offline.is_flushing = False
        if self.offline.reason is not None:
            if failure is not None:
                log.error("flush of an offline partition failed partition=%s reason=%s", self.identity, failure)
                self.offline.flush_failed(failure)
            return self.log.abandon()
        if failure is not None:
            return self.go_offline(failure)
        self.log.flushes.complete(job)
        if self.log.topic.flush_policy == "ack":
            self.term.advance()
        if self.observer is not None:
            self.observer.flushed(self)

    def use(self, topic: TopicSettings) -> None:
        """Use new settings of the topic. A new `flush.policy` counts for reports that were received before, too."""
        before, reported = self.log.topic, reported_offset(self.log)
        self.log.use(topic)
        if topic.flush_policy != before.flush_policy:
            self._reported_before = reported
            if self.offline.reason is None:
                self.want_flush()
                self.term.advance()

    def failed_read(self, failure: StorageFailure) -> RequestError:
        """Return the error for a failed read. Takes the partition offline unless a later read may succeed."""
        if isinstance(failure, IndexUnavailable):
            self._calls.wants_index(self, failure.indexes)
        if isinstance(failure, ReadLater):
            log.warning("read failed partition=%s reason=%s", self.identity, failure)
            return RequestError(ErrorKind.PARTITION_OFFLINE, f"{self.identity} cannot be read now: {failure}")
        self.go_offline(failure)
        return self.offline.error()

    def go_offline(self, failure: StorageFailure) -> None:
        """Stop serving: the disk is the truth, memory may differ from it."""
        if self.offline.reason is None:
            reason = str(failure)
            log.error("partition offline partition=%s reason=%s", self.identity, reason)
            self.offline.failed(failure, self._reported_end())
            self.end(reason)
            self._calls.went_offline(failure)

    def end(self, reason: str) -> None:
        """Answer all waiters and release the log's files."""
        self.offline.reason = reason
        if self.leader_term is not None:
            self.leader_term.end(self.offline.error)
        self.changed.emit(None)
        if not self.offline.is_flushing:
            self.log.abandon()

    def _reported_end(self) -> int:
        """Return the end of what leaders may have committed without this broker's knowledge. As a leader it knows what
        is committed, apart from what it had already when its epoch began.
        """
        log, term = self.log, self.leader_term
        if log.log_end_offset == log.log_start_offset:  # It may be about to begin again at a higher offset.
            return 0
        reported = max(reported_offset(log), min(self._reported_before, log.log_end_offset))
        return reported if term is None else min(reported, term.epoch_start_offset)

    def _lead(self, role: Leader, before: LeaderTerm | FollowerTerm | None, joining: Mapping[NodeId, int]) -> None:
        """Lead in the same term, or in a new one. The term is in place before its waiters are called."""
        term = self.leader_term
        if term is None or term.epoch != role.epoch:
            term = LeaderTerm(self._context, role, before, joining)
        self.term = self.leader_term = term
        term.take(role)

    def _follow(self, role: Follower, before: LeaderTerm | FollowerTerm) -> None:
        leader_term, self.leader_term = self.leader_term, None
        if isinstance(before, FollowerTerm) and before.epoch == role.epoch:
            return before.take(role)
        self.term = FollowerTerm(self._context, role, before.high_watermark)
        if leader_term is not None and self.offline.reason is None:
            leader_term.end(lambda: refusals.not_leader(self.identity, role))
