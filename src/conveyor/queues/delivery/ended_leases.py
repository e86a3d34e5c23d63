"""The last leases of messages that have returned: after a nack, or because the lease has expired.

Soft state of limited size. A message that is leased again keeps its entry, which states when it was first delivered; a
late ack does not find it there any more.
"""

from collections import OrderedDict
from collections.abc import Iterable

from conveyor.queues.delivery.held_leases import Lease

MAX_ENDED = 100_000
"""Of one subscription in one partition. The oldest are forgotten."""


class EndedLeases:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._first_delivered_ms: OrderedDict[int, int] = OrderedDict()
        """Of each message that has returned, the oldest one first: a plain dict gets slow at its front."""
        self._expired: dict[int, Lease] = {}
        """The expired leases of messages that nobody has leased since."""

    def add(self, offset: int, lease: Lease, *, is_expired: bool) -> None:
        """A message has returned."""
        self._first_delivered_ms[offset] = lease.first_delivered_ms
        self._first_delivered_ms.move_to_end(offset)
        if is_expired:
            self._expired[offset] = lease
        if len(self._first_delivered_ms) > MAX_ENDED:
            oldest, _ = self._first_delivered_ms.popitem(last=False)
            self._expired.pop(oldest, None)

    def expired(self, offset: int) -> Lease | None:
        """Return the lease of a message that has expired, unless the message was leased again, or settled."""
        return self._expired.get(offset)

    def first_delivered_ms(self, offset: int) -> int | None:
        """Return when a message was first delivered, if that is known."""
        return self._first_delivered_ms.get(offset)

    def leased(self, offset: int) -> None:
        """A message is leased again."""
        self._expired.pop(offset, None)

    def forget(self, offsets: Iterable[int]) -> None:
        """Messages are settled, or on their way to the dead-letter topic."""
        if self._first_delivered_ms:
            for offset in offsets:
                if self._first_delivered_ms.pop(offset, None) is not None:
                    self._expired.pop(offset, None)
