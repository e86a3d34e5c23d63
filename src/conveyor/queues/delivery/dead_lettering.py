"""The messages of one subscription in one partition that are on their way to the dead-letter topic."""

from collections.abc import Iterable
from itertools import islice
from uuid import UUID

from conveyor.kernel.state_machine import LogRecord
from conveyor.queues.messages.dead_copies import copied_ranges
from conveyor.queues.queue_commands import DropDeadLetters, MoveToDeadLetters, SubscriptionProbe
from conveyor.queues.subscription.queue_records import (
    Attempt,
    Kind,
    copied_records,
    dead_lettering,
    settlement_records,
)
from conveyor.queues.subscription.subscription_progress import Progress


class DeadLettering(dict[int, Attempt]):
    """Their last attempts by offset, in the order in which they are moved. Methods return records to append.

    expired_in_place: dead letters whose entry is not popped yet from where they expired: available, withheld or
    blocked.
    """

    def __init__(self, subscription: UUID, progress: Progress, probe: SubscriptionProbe) -> None:
        super().__init__()
        self.expired_in_place: set[int] = set()
        self._subscription = subscription
        self._progress = progress
        self._probe = probe

    def first(self, limit: int) -> list[tuple[int, Attempt]]:
        """Return up to `limit` messages."""
        return list(islice(self.items(), limit))

    def add(self, offset: int, deliveries: int, reason: str, now_ms: int) -> LogRecord:
        """Send a message to the dead-letter topic."""
        attempt = Attempt(deliveries, self._progress.first_failure_ms(offset, now_ms), now_ms, now_ms, reason)
        self[offset] = attempt
        return dead_lettering(self._subscription, offset, attempt)

    def postpone(self, offsets: Iterable[int]) -> None:
        """Move these messages behind the others."""
        for offset in offsets:
            if offset in self:
                self[offset] = self.pop(offset)

    def arrived(self, command: MoveToDeadLetters) -> list[LogRecord]:
        """Settle messages that are still on their way."""
        copies = command.copies
        moved = [offset for offset in command.offsets if self.pop(offset, None) is not None]
        self._probe.dead_lettered += len(moved)
        copied = copied_ranges({offset: copies[offset] for offset in moved if offset in copies})
        uncopied = [offset for offset in moved if offset not in copies]
        records = settlement_records(self._subscription, Kind.DEAD, uncopied)
        return records + copied_records(self._subscription, copied)

    def dropped(self, command: DropDeadLetters) -> list[LogRecord]:
        """Drop dead letters."""
        dead = [offset for offset in command.offsets if offset in self._progress.dead]
        return settlement_records(self._subscription, Kind.DROPPED, dead)
