"""The term of a partition's follower: one leader epoch, in which another broker leads, or none.

The high watermark follows that of the leader. It falls only when the follower truncates its log after an unclean
election. Requests and waiters are refused: with the reason if the partition is offline, otherwise with NOT_LEADER.
"""

from typing import NoReturn

from conveyor.kernel.errors import RequestError
from conveyor.kernel.ids import Offset
from conveyor.replication import partition_refusals as refusals
from conveyor.replication.roles import Follower
from conveyor.replication.term_context import TermContext
from conveyor.replication.waiters import Waiter


class FollowerTerm:
    """See the module's docstring. tombstones_end_offset: the leader's; 0 while this follower has no link to it."""

    __slots__ = ("_context", "epoch", "high_watermark", "role", "tombstones_end_offset")

    def __init__(self, context: TermContext, role: Follower, high_watermark: Offset) -> None:
        self.role = role
        self.epoch = role.epoch
        self.high_watermark = high_watermark
        self.tombstones_end_offset = 0
        self._context = context

    @property
    def may_give_up_committed(self) -> bool:
        """True if an unclean election may have given up committed records of this log: its last record is older, and
        this replica has not caught up with the elected one since (KIP-704). The image keeps the mark of the election.
        """
        role = self.role
        return self._context.log.leader_epochs.latest < role.unclean_epoch and not role.has_all_committed

    def take(self, role: Follower) -> None:
        """Continue the term: the leader of the epoch is known now, or what this replica has committed."""
        self.role = role
        self.tombstones_end_offset = 0

    def follow(self, high_watermark: int, tombstones_end_offset: int) -> None:
        """Take over what the leader says. The high watermark rises to the end of this follower's log at most."""
        log, offset = self._context.log, Offset(high_watermark)
        offset = min(offset, log.log_end_offset)
        if offset > self.high_watermark:
            self.high_watermark = offset
            if log.producers.transactions.undecided:
                log.producers.transactions.forget_decided(offset)
            self._context.changed.emit(None)
        self.tombstones_end_offset = tombstones_end_offset

    def disconnected(self) -> None:
        """The link to the leader has ended: other replicas may lose tombstones unseen."""
        self.tombstones_end_offset = 0

    def cut(self) -> None:
        """Lower the high watermark to the end of a truncated log, or raise it to the start of a restarted one."""
        log = self._context.log
        self.high_watermark = max(log.log_start_offset, min(self.high_watermark, log.log_end_offset))

    def check_writable(self) -> NoReturn:
        """Raises RequestError: PARTITION_OFFLINE, NOT_LEADER."""
        raise self._refusal()

    def check_replicas(self) -> NoReturn:
        """Raises RequestError: NOT_LEADER."""
        raise refusals.not_leader(self._context.identity, self.role)

    def when_written(self, offset: int, waiter: Waiter) -> None:
        """Refuse a waiter."""
        waiter(self._refusal())

    def when_committed(self, offset: int, waiter: Waiter) -> None:
        """Refuse a waiter."""
        waiter(self._refusal())

    def when_acknowledged(self, offset: int, waiter: Waiter) -> None:
        """Refuse a waiter."""
        waiter(self._refusal())

    def written(self) -> None:
        """The log was written: a follower acknowledges nothing."""

    def advance(self) -> None:
        """The log was flushed: the high watermark follows the leader's, and not this log."""

    def _refusal(self) -> RequestError:
        offline = self._context.offline
        return offline.error() if offline.reason is not None else refusals.not_leader(self._context.identity, self.role)
