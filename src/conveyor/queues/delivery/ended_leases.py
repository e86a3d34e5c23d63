"""The last leases of messages that have returned: after a nack, or because the lease has expired.

Soft state of limited size. A message that is leased again keeps its entry, which states when it was first delivered; a
late ack does not find it there any more.
"""

from collections.abc import Iterable

from conveyor.queues.delivery.held_leases import Lease

MAX_ENDED = 100_000
"""Of one subscription in one partition. The oldest are forgotten."""


class EndedLeases:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._leases: dict[int, Lease] = {}
        self._expired: set[int] = set()
        """The messages that nobody has leased since their lease expired."""

    def add(self, offset: int, lease: Lease, *, is_expired: bool) -> None:
        """A message has returned."""
        self._leases.pop(offset, None)
        self._leases[offset] = lease
        if is_expired:
            self._expired.add(offset)
        if len(self._leases) > MAX_ENDED:
            self.forget((next(iter(self._leases)),))

    def expired(self, offset: int) -> Lease | None:
        """Return the lease of a message that has expired, unless the message was leased again, or settled."""
        return self._leases[offset] if offset in self._expired else None

    def first_delivered_ms(self, offset: int) -> int | None:
        """Return when a message was first delivered, if that is known."""
        lease = self._leases.get(offset)
        return None if lease is None else lease.first_delivered_ms

    def leased(self, offset: int) -> None:
        """A message is leased again."""
        self._expired.discard(offset)

    def forget(self, offsets: Iterable[int]) -> None:
        """Messages are settled, or on their way to the dead-letter topic."""
        if self._leases:
            for offset in offsets:
                self._leases.pop(offset, None)
                self._expired.discard(offset)
