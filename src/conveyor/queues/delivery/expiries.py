"""The ends of messages' times to live.

A leased message can still be settled, so it is checked again after its lease. A message that waits for a retry is
checked again when it is due, a pending one when its transaction has ended.
"""

from collections.abc import Iterator

from conveyor.queues.delivery.held_leases import HeldLeases
from conveyor.queues.delivery.timers import Timers
from conveyor.queues.subscription.subscription_progress import Progress

_READ_COST = 3
"""As many deadlines of messages that are not read take as long as to read a message."""


class Expiries(Timers):
    """See the module's docstring. A message at 0 comes ahead of the others."""

    def __init__(self, progress: Progress, leases: HeldLeases) -> None:
        super().__init__()
        self._progress = progress
        self._leases = leases
        self._overdue_pending: set[int] = set()

    def pop_overdue(self, now_ms: int, limit: int) -> Iterator[int]:
        """Yield messages past their time to live that are available or due. The caller reads them."""
        for offset, _, _ in self.pop_due(now_ms, limit):
            if self._progress.is_settled(offset):
                continue
            lease, attempt = self._leases.get(offset), self._progress.attempts.get(offset)
            if offset in self._progress.pending:
                self._overdue_pending.add(offset)
            elif lease is not None:
                self.add(offset, max(lease.ends_ms, now_ms + 1))
            elif attempt is not None and attempt.due_ms > now_ms:
                self.add(offset, attempt.due_ms)
            else:
                self.work_count += _READ_COST
                yield offset

    def end_pending(self, offset: int) -> None:
        """Check a message again that is not pending any more."""
        if offset in self._overdue_pending:
            self._overdue_pending.discard(offset)
            self.add(offset, 0)
