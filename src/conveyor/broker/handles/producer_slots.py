"""The producers that transactions borrow, each in a slot of its own.

    free -> take -> (in use) -> give_back -> free
                             -> rest      -> (resting) -> free

A slot is used by one transaction at a time, and again by later ones: each producer id occupies memory in all partitions
that it has written to. After a transaction whose client has a handle, the slot rests, because the coordinator knows the
outcome of a producer's last transaction only: while the slot rests, the client can repeat its request. If all slots are
in use or rest, the one that has rested longest is taken early. Slots that were used last are taken first, so that few
are in use.
"""

from collections import deque

import msgspec

from conveyor.broker.handles.transaction_handle import SlotName
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import ProducerIdentity

REST_MS = 60_000
"""How long a client can repeat the request that ends its transaction, unless there are too many transactions."""
LEAST_REST_MS = 5_000
"""How long it can do so in any case."""


class Slot(msgspec.Struct, eq=False):
    """One slot.

    producer: the identity for the next transaction, if it is known; then with this timeout, and until this time on the
    steady clock.
    """

    name: SlotName
    producer: ProducerIdentity | None = None
    timeout_ms: int = 0
    known_until_ms: int = 0


class ProducerSlots:
    """See the module's docstring. first: the slot with number 0. All times are those of the steady clock."""

    def __init__(self, first: SlotName, max_count: int) -> None:
        self._first = first
        self._max_count = max_count
        self._count = 0
        self._free: list[Slot] = []
        self._resting: deque[tuple[int, Slot]] = deque()

    @property
    def used_count(self) -> int:
        """How many slots transactions use."""
        return self._count - len(self._free) - len(self._resting)

    @property
    def resting_count(self) -> int:
        """How many slots rest, or have rested and were not looked at since."""
        return len(self._resting)

    def take(self, now_ms: int) -> Slot:
        """Return a slot to use. Raises RequestError (THROTTLING_QUOTA_EXCEEDED)."""
        while self._resting and self._resting[0][0] <= now_ms:
            self._free.append(self._resting.popleft()[1])
        if self._free:
            return self._free.pop()
        if self._count < self._max_count:
            self._count += 1
            return Slot(self._first._replace(number=self._count - 1))
        if self._resting and self._resting[0][0] - REST_MS + LEAST_REST_MS <= now_ms:
            return self._resting.popleft()[1]
        raise RequestError(
            ErrorKind.THROTTLING_QUOTA_EXCEEDED,
            f"{self._count} transactions of this broker are open, or have ended in the last {LEAST_REST_MS // 1000} s:"
            " retry later, or begin the transaction on another broker",
        )

    def give_back(self, slot: Slot) -> None:
        """Let the next transaction use a slot."""
        self._free.append(slot)

    def rest(self, slot: Slot, now_ms: int) -> None:
        """Let no transaction use a slot for a while."""
        slot.producer = None
        self._resting.append((now_ms + REST_MS, slot))
