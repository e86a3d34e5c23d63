"""The order in which messages may be delivered: any, or by key.

The messages of a key that a queue has looked at are in three places. Those in flight are `out`. Those that come next,
or were in flight before, are `back`: each has an entry of its own among the available or withheld messages. The others
are `behind`, and have none. Invariant: while none of a key is out, the first one that is not settled is back.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import ClassVar

from conveyor.queues.delivery.available import Available
from conveyor.queues.subscription.policy import Policy

_MAX_WAITING = 100_000
_NO_CALL = 0


class NoOrder:
    """Messages do not wait for each other."""

    is_by_offset: ClassVar[bool] = False
    """Whether a message takes its place by offset, whatever its priority, and waits until it is due at the head of its
    key only.
    """
    waiting_count = 0
    """Messages that wait behind another message of their key."""

    def begin_call(self, limit: int) -> None:
        """Begin a call that leases messages, up to so many of each key."""

    def run_limit(self, available: Available, count: int) -> int:
        """Return how many adjacent messages may be leased next, of `count` that are wanted."""
        return count

    def following(self) -> int | None:
        """Return the message that follows the last admitted one in its key, if the call may lease it now. It is
        deliverable then, like those that `settled` returns.
        """
        return None

    def admit(self, offset: int, key: bytes | None) -> bool:
        """Return whether to deliver a message now. If not, it waits until `settled` or `returned` returns it."""
        return True

    def hold(self, offset: int, key: bytes | None) -> None:
        """Count a message as in flight, which an open transaction has acknowledged."""

    def is_behind(self, offset: int, key: bytes | None) -> bool:
        """Return whether another message of the key comes first."""
        return False

    def returned(self, offsets: Iterable[int]) -> Sequence[int]:
        """End leases of messages that are not settled, and stay deliverable. Returns what `settled` returns."""
        return ()

    def settled(self, offsets: Iterable[int]) -> Sequence[int]:
        """Settle messages. Returns the messages of their keys that are deliverable next."""
        return ()


class _Line:
    """The messages of one key; see the module's docstring. call: the call that leased those in flight."""

    __slots__ = ("back", "behind", "call", "key", "out")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.call = _NO_CALL
        self.out: list[int] = []
        """In ascending order."""
        self.back: list[int] = []
        """In ascending order."""
        self.behind: list[int] = []
        """A heap."""

    def first_is_behind(self) -> bool:
        """Return whether the first message that is not in flight has no entry."""
        return bool(self.behind) and not (self.back and self.back[0] < self.behind[0])

    def has_earlier(self, offset: int) -> bool:
        """Return whether a message before this one is neither settled nor in flight."""
        return bool(self.back and self.back[0] < offset) or bool(self.behind and self.behind[0] < offset)


class KeyOrder(NoOrder):
    """The messages of a key are delivered by offset, those of one call together. Later messages of the key wait until
    none of them is in flight. Messages without a key are not ordered.
    """

    is_by_offset = True

    def __init__(self) -> None:
        self._lines: dict[bytes, _Line] = {}
        self._places: dict[int, _Line] = {}
        """The keys of the messages that are out or back."""
        self._call = _NO_CALL
        self._limit = 1
        self._last: _Line | None = None
        """The key of the message that the call has admitted last."""
        self.waiting_count = 0

    def begin_call(self, limit: int) -> None:
        self._call += 1
        self._limit = limit
        self._last = None

    def run_limit(self, available: Available, count: int) -> int:
        """See `NoOrder`. While very many messages wait, only those that have returned may be leased."""
        return 0 if self.waiting_count >= _MAX_WAITING and not available.has_returned else 1

    def following(self) -> int | None:
        line = self._last
        if line is None or not line.out or not line.first_is_behind() or not self._may_join(line, line.behind[0]):
            return None
        return self._take_from_behind(line)

    def admit(self, offset: int, key: bytes | None) -> bool:
        if key is None:
            return True
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line(key)
        elif offset in self._places and _has(line.out, offset):
            return True
        elif line.has_earlier(offset) or (line.out and not self._may_join(line, offset)):
            if self._places.pop(offset, None) is not None:
                _discard(line.back, offset)
            heappush(line.behind, offset)
            self.waiting_count += 1
            return False
        else:
            _discard(line.back, offset)
        insort(line.out, offset)
        line.call = self._call
        self._places[offset] = line
        self._last = line
        return True

    def hold(self, offset: int, key: bytes | None) -> None:
        if key is None or offset in self._places:
            return
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line(key)
        insort(line.out, offset)
        line.call = _NO_CALL
        self._places[offset] = line

    def is_behind(self, offset: int, key: bytes | None) -> bool:
        line = None if key is None else self._lines.get(key)
        if line is None or _has(line.out, offset):
            return False
        return bool(line.out) or line.has_earlier(offset)

    def returned(self, offsets: Iterable[int]) -> Sequence[int]:
        following: list[int] = []
        for offset in offsets:
            line = self._places.get(offset)
            if line is not None and _discard(line.out, offset):
                insort(line.back, offset)
                following += self._next(line)
        return following

    def settled(self, offsets: Iterable[int]) -> Sequence[int]:
        following: list[int] = []
        for offset in offsets:
            line = self._places.pop(offset, None)
            if line is None:
                continue
            if line.out == [offset]:  # Nearly always, with a limit of one.
                line.out.clear()
            elif not _discard(line.out, offset):
                _discard(line.back, offset)
            if line.behind:
                following += self._next(line)
            elif not line.out and not line.back:
                del self._lines[line.key]
        return following

    def _may_join(self, line: _Line, offset: int) -> bool:
        """Return whether the current call may deliver a message behind those of its key that are in flight."""
        return line.call == self._call and len(line.out) < self._limit and line.out[-1] < offset

    def _next(self, line: _Line) -> Sequence[int]:
        """Return the first message of a key, if none is in flight and it has no entry. It is to get one."""
        if line.out:
            return ()
        if line.first_is_behind():
            return (self._take_from_behind(line),)
        if not line.back:
            del self._lines[line.key]
        return ()

    def _take_from_behind(self, line: _Line) -> int:
        offset = heappop(line.behind)
        insort(line.back, offset)
        self._places[offset] = line
        self.waiting_count -= 1
        return offset


def ordering_of(policy: Policy) -> NoOrder:
    return KeyOrder() if policy.ordering == "key" else NoOrder()


def _has(offsets: Sequence[int], offset: int) -> bool:
    index = bisect_left(offsets, offset)
    return index < len(offsets) and offsets[index] == offset


def _discard(offsets: list[int], offset: int) -> bool:
    """Remove an offset from a sorted list. Returns whether it was there."""
    index = bisect_left(offsets, offset)
    if index < len(offsets) and offsets[index] == offset:
        del offsets[index]
        return True
    return False
