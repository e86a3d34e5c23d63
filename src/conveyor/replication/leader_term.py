"""The term of a partition's leader: one leader epoch, in which this broker leads.

    append -> (end of the tick) write -> (policy `ack`) flush -> high watermark -> waiters

The high watermark is the lowest offset that every replica which the leader waits for has made as durable as the topic's
`flush.policy` demands: flushed (`ack`) or written (`os`). It never falls. While the ISR is too small it does not rise
(KAFKA-15583), nor while a leader that needs a lease does not hold it: a leader that is alone in its ISR may have been
replaced unseen.

Invariants: each waiter is called exactly once; after the term has ended, no record is acknowledged. A term of a higher
epoch takes over the waiters, because the appended records stay; otherwise the end of the term fails them, first those
for written records, then those for committed ones, each in the order of their offsets and arrival.
"""

from collections.abc import Callable, Mapping
from functools import partial

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NodeId, Offset
from conveyor.replication import partition_refusals as refusals
from conveyor.replication.commit_deadline import CommitDeadline
from conveyor.replication.follower_term import FollowerTerm
from conveyor.replication.replica_progress import ReplicaProgress
from conveyor.replication.roles import Leader
from conveyor.replication.term_context import TermContext
from conveyor.replication.waiters import OffsetWaiters, Waiter


class LeaderTerm:
    """See the module's docstring. before: the term that this one follows; None when the log has just been opened.

    acknowledged_offset: the end of the records acknowledged under acks=1. It is ahead of the high watermark until they
    are flushed. epoch_start_offset: the log end offset when the epoch began.
    """

    __slots__ = (
        "_committed_waiters", "_context", "_deadline", "_end_error", "_followed_waiters", "_has_begun",
        "_has_enough_replicas", "_has_followers", "_holds_lease", "_written_waiters", "acknowledged_offset", "epoch",
        "epoch_start_offset", "high_watermark", "replicas", "role",
    )  # fmt: skip

    def __init__(
        self,
        context: TermContext,
        role: Leader,
        before: "LeaderTerm | FollowerTerm | None",
        joining: Mapping[NodeId, int],
    ) -> None:
        log = context.log
        self.role = role
        self.epoch = role.epoch
        self.high_watermark: Offset = log.recovered.high_watermark if before is None else before.high_watermark
        self.replicas = ReplicaProgress(context, role, joining, self.advance)
        self.acknowledged_offset: int = log.log_end_offset
        self.epoch_start_offset: int = log.log_end_offset
        self._context = context
        self._written_waiters, self._committed_waiters = OffsetWaiters(), OffsetWaiters()
        self._followed_waiters = OffsetWaiters()
        self._deadline = CommitDeadline(context.identity, self._committed_waiters)
        self._end_error = None if context.offline.reason is None else context.offline.error
        self._has_begun = False
        self._has_enough_replicas, self._has_followers = True, False
        self._holds_lease: Callable[[], bool] | None = None
        if isinstance(before, LeaderTerm):
            self._succeed(before)
        if self._end_error is not None:  # The term of an offline partition has ended before it begins.
            self.replicas.stop()

    @property
    def tombstones_end_offset(self) -> int:
        """The end of what all assigned replicas have flushed; 0 while a replica has not reported in this epoch."""
        return self.replicas.flushed_by_all(self.role)

    def take(self, role: Leader) -> None:
        """Begin the term, or continue it with another ISR, another minimum, or the right to append.

        A leader records its epoch at the log's end at once, before the epoch has a record (KAFKA-7415). Earlier leaders
        may have acknowledged the whole log, so it counts as acknowledged. The high watermark rises if a replica that it
        waited for has left the ISR.
        """
        context = self._context
        self.role = role
        self.replicas.wait_for(role)
        if context.offline.reason is not None:
            return
        if not self._has_begun:
            self._has_begun = True
            context.log.copying.begin_epoch(role.epoch)
            self.acknowledged_offset = self.epoch_start_offset = context.log.log_end_offset
            self._deadline.overdue_offset = 0
        self._holds_lease = context.holds_lease if role.needs_lease else None
        self._has_followers = len(role.replicas) > 1 or len(role.isr) > 1
        self._has_enough_replicas = role.has_enough_replicas
        self.advance()
        if not self._has_enough_replicas:
            self._deadline.fail()

    def end(self, error: Callable[[], RequestError]) -> None:
        """Fail all waiters, now and later. error: creates one error for each waiter."""
        self._end_error = error
        self.replicas.stop()
        self._written_waiters.fail(error)
        self._committed_waiters.fail(error)
        self._followed_waiters.fail(error)

    def check_writable(self) -> None:
        """Check that this broker can append. Raises RequestError: PARTITION_OFFLINE, NOT_LEADER, DISK_FULL."""
        offline = self._context.offline
        if offline.reason is not None:
            raise offline.error()
        if self.role.is_read_only:
            no_room = f"{self._context.identity}: there is no room to store its leader epoch"
            raise RequestError(ErrorKind.DISK_FULL, no_room)
        if self._holds_lease is not None and not self._holds_lease():
            raise self._leadership_uncertain()

    def check_replicas(self) -> None:
        """Check that the ISR is large enough for acks=all, and commits. Raises RequestError."""
        role, context = self.role, self._context
        needed, count = context.log.topic.min_insync_replicas, len(role.isr)
        if count < needed or count < role.min_isr:  # A companion has its owner's minimum, which only the role has.
            raise refusals.isr_too_small(context.identity, count, max(needed, role.min_isr))
        if self._deadline.overdue_offset > self.high_watermark:
            raise refusals.commits_stalled(context.identity)

    def when_written(self, offset: int, waiter: Waiter) -> None:
        """Call back when all records below an offset are in the page cache (acks=1)."""
        if offset > self.acknowledged_offset:
            self.acknowledged_offset = offset
        if offset <= self._context.log.written_offset:
            waiter(None)
        elif self._end_error is not None:
            waiter(self._end_error())
        else:
            self._written_waiters.add(offset, waiter)

    def when_committed(self, offset: int, waiter: Waiter) -> None:
        """Call back when the high watermark has reached an offset."""
        if offset <= self.high_watermark:
            waiter(None)
        elif self._end_error is not None:
            waiter(self._end_error())
        else:
            self._committed_waiters.add(offset, waiter)

    def when_followed(self, offset: int, waiter: Waiter) -> None:
        """Call back when all replicas that the leader waits for have reported an offset in its epoch.

        A high watermark of an earlier epoch says less: another replica may still have records above it that this
        leader has not, and be elected with them. From now on none has such records.
        """
        if self._end_error is not None:
            waiter(self._end_error())
        else:
            self._followed_waiters.add(offset, waiter)
            self.advance()

    def when_acknowledged(self, offset: int, waiter: Waiter) -> None:
        """As `when_committed`, for a client, which waits no longer than `commit_deadline` says."""
        if offset <= self.high_watermark:
            waiter(None)
        elif self._end_error is not None:
            waiter(self._end_error())
        else:
            self._committed_waiters.add(offset, waiter, True)
        if self._has_followers and not self._deadline.is_checked:
            self._deadline.is_checked = True
            self._context.wants_checks(self._context.identity)
        if not self._has_enough_replicas:
            self._deadline.fail()

    def check_commits(self) -> bool:
        """Answer the clients that have waited too long; see `commit_deadline`. Returns whether others wait."""
        return self._deadline.check(self._context.log.log_end_offset, self.high_watermark)

    def may_join(self, node: NodeId) -> bool:
        """Return whether a replica has all that is committed, and all from before this leader's epoch, which may be
        (KAFKA-7128), and has deleted what this leader has: the deletion may have been acknowledged. A replica that ends
        below removed tombstones may be about to begin its copy again.
        """
        log = self._context.log
        if self.replicas.log_start_of(node) < log.log_start_offset:
            return False
        needed = max(self.high_watermark, self.epoch_start_offset, log.compaction.removed_end_offset)
        return self.replicas.durable_offset_of(node) >= needed

    def written(self) -> None:
        """The log was written: call the waiters, unless the lease has ended since their records were appended."""
        if self._holds_lease is not None and not self._holds_lease():
            self._written_waiters.fail(self._leadership_uncertain)
        log = self._context.log
        self._written_waiters.release(log.written_offset)
        if log.topic.flush_policy != "ack":
            self.advance()

    def advance(self) -> None:
        """Raise the high watermark to what all replicas have, if it may rise: after a report, a write or a flush of
        this broker, a change of the policy, or when the lease was renewed.
        """
        context = self._context
        lowest = self.replicas.lowest()
        if not self.role.is_read_only:  # Its epoch is about to rise, because others may have more in this one.
            self._followed_waiters.release(lowest)
        if lowest <= self.high_watermark or not self._has_enough_replicas or self._end_error is not None:
            return
        if self._holds_lease is not None and not self._holds_lease():
            return
        self.high_watermark = Offset(lowest)
        self._committed_waiters.release(lowest)
        context.changed.emit(None)

    def _succeed(self, before: "LeaderTerm") -> None:
        """Take over the waiters of this broker's previous term, and end it."""
        self.acknowledged_offset, self.epoch_start_offset = before.acknowledged_offset, before.epoch_start_offset
        # The private fields are those of the same class, and no other class may reach the waiters.
        self._written_waiters, before._written_waiters = before._written_waiters, self._written_waiters  # noqa: SLF001
        self._committed_waiters, before._committed_waiters = before._committed_waiters, self._committed_waiters  # noqa: SLF001
        self._followed_waiters, before._followed_waiters = before._followed_waiters, self._followed_waiters  # noqa: SLF001
        self._deadline = before._deadline  # noqa: SLF001
        before.end(partial(refusals.not_leader, self._context.identity, self.role))

    def _leadership_uncertain(self) -> RequestError:
        return refusals.leadership_uncertain(self._context.identity, self.role)
