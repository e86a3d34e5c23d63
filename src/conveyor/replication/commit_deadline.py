"""Limits how long clients wait for the high watermark: to COMMIT_TIMEOUT_MS, and at most one check more.

The owner of a partition calls `LeaderTerm.check_commits` every CHECK_MS while clients wait. Each check marks the log's
end. What was in the log at a check and is not committed COMMIT_TIMEOUT_MS later is overdue: the clients that wait for
it are answered, and new requests are refused until it is committed, which bounds the number of requests that wait.

A partition with one replica is not checked: it waits for its own disk only.

The time is longer than the default of `replica.lag.time.max.ms` (10 s), after which a replica that does not answer has
left the ISR, and shorter than the 30 seconds that Kafka's clients and other brokers wait for an answer.
"""

from collections import deque

from conveyor.kernel.ids import TopicPartition
from conveyor.replication import partition_refusals as refusals
from conveyor.replication.waiters import OffsetWaiters

CHECK_MS = 2_500
_CHECKS = refusals.COMMIT_TIMEOUT_MS // CHECK_MS


class CommitDeadline:
    """The clients of one partition that wait for the high watermark.

    waiters: also has waiters that are no clients. is_checked: whether the owner calls `check`. overdue_offset: the end
    of what was found to be overdue.
    """

    __slots__ = ("_ends", "_identity", "_waiters", "is_checked", "overdue_offset")

    def __init__(self, identity: TopicPartition, waiters: OffsetWaiters) -> None:
        self.is_checked = False
        self.overdue_offset = 0
        self._identity = identity
        self._waiters = waiters
        self._ends: deque[int] = deque(maxlen=_CHECKS)

    def check(self, end_offset: int, high_watermark: int) -> bool:
        """Mark the log's end and answer the clients that have waited too long. Returns whether others wait."""
        before = self._ends[0] if len(self._ends) == _CHECKS else 0
        self._ends.append(end_offset)
        if before > high_watermark:
            self.overdue_offset = before
            self._waiters.fail_clients(lambda: refusals.commit_overdue(self._identity), before)
        self.is_checked = self._waiters.has_clients
        if not self.is_checked:
            self._ends.clear()
        return self.is_checked

    def fail(self) -> None:
        """Answer all clients: the ISR has become too small to commit."""
        self._waiters.fail_clients(lambda: refusals.isr_shrank(self._identity))
