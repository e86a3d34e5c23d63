"""The order in which messages may be delivered: any, or one unsettled message of each key at a time."""

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import ClassVar

from conveyor.queues.delivery.available import Available
from conveyor.queues.subscription.policy import Policy

_MAX_WAITING = 100_000


class NoOrder:
    """Messages do not wait for each other."""

    is_by_offset: ClassVar[bool] = False
    """Whether a message takes its place by offset, whatever its priority, and waits until it is due at the head of its
    key only.
    """
    waiting_count = 0
    """Messages that wait behind another message of their key."""

    def run_limit(self, available: Available, count: int) -> int:
        """Return how many adjacent messages may be leased next, of `count` that are wanted."""
        return count

    def admit(self, offset: int, key: bytes | None) -> bool:
        """Return whether a message is deliverable now. If not, it waits until `settled` returns it."""
        return True

    def is_behind(self, offset: int, key: bytes | None) -> bool:
        """Return whether another message of the key comes first."""
        return False

    def settled(self, offsets: Iterable[int]) -> Sequence[int]:
        """Settle messages. Returns the messages of their keys that are deliverable next."""
        return ()


class _Line:
    """The messages of one key: the deliverable one, and a heap of those behind it."""

    __slots__ = ("behind", "first")

    def __init__(self, first: int) -> None:
        self.first = first
        self.behind: list[int] = []


class KeyOrder(NoOrder):
    """At most one unsettled message of a key is deliverable; later messages of the key wait until it is settled.
    Messages without a key are not ordered.
    """

    is_by_offset = True

    def __init__(self) -> None:
        self._lines: dict[bytes, _Line] = {}
        self._keys: dict[int, bytes] = {}
        self.waiting_count = 0

    def run_limit(self, available: Available, count: int) -> int:
        """See `NoOrder`. While very many messages wait, only those that have returned may be leased."""
        return 0 if self.waiting_count >= _MAX_WAITING and not available.has_returned else 1

    def admit(self, offset: int, key: bytes | None) -> bool:
        if key is None:
            return True
        line = self._lines.get(key)
        if line is None:
            self._lines[key] = _Line(offset)
            self._keys[offset] = key
            return True
        if line.first == offset:
            return True
        heappush(line.behind, offset)
        self.waiting_count += 1
        return False

    def is_behind(self, offset: int, key: bytes | None) -> bool:
        line = None if key is None else self._lines.get(key)
        return line is not None and line.first != offset

    def settled(self, offsets: Iterable[int]) -> Sequence[int]:
        following: list[int] = []
        for key in [self._keys.pop(offset) for offset in offsets if offset in self._keys]:
            line = self._lines[key]
            if line.behind:
                line.first = heappop(line.behind)
                self._keys[line.first] = key
                self.waiting_count -= 1
                following.append(line.first)
            else:
                del self._lines[key]
        return following


def ordering_of(policy: Policy) -> NoOrder:
    return KeyOrder() if policy.ordering == "key" else NoOrder()
