"""The messages of one subscription that can be leased now, in delivery order.

Messages are ordered by priority, 9 first, or by priority and age; within a priority round-robin by group, if the
subscription is fair; within a group by offset. Adjacent messages share one run of a few bytes, so a backlog needs no
object per message.
"""

import heapq
from array import array
from collections import OrderedDict
from typing import NamedTuple

from conveyor.queues.messages.scan import NO_GROUP

PRIORITIES = range(9, -1, -1)
_FIELDS = 3
_COMPACT_AT = 3 * 1024
_GROUP_COST = 16
_RETURNED_COST = 5


class Runs:
    """Offsets in ascending order: ranges that were pushed in log order, and single offsets that returned."""

    __slots__ = ("_head", "_returned", "_runs", "cost", "count")

    def __init__(self) -> None:
        self._runs = array("q")  # start, end and since_ms of each run, from _head on
        self._head = 0
        self._returned: list[tuple[int, int]] = []
        self.count = 0
        self.cost = _GROUP_COST
        """Memory cost, in runs."""

    def push_range(self, start: int, end: int, since_ms: int, merge_ms: int) -> None:
        """Add [start, end), which follows all earlier ranges. Adjacent runs whose ages differ by less than merge_ms
        are merged.
        """
        runs = self._runs
        if len(runs) > self._head and runs[-2] == start and abs(since_ms - runs[-1]) < merge_ms:
            runs[-2] = end
        else:
            runs.extend((start, end, since_ms))
            self.cost += 1
        self.count += end - start

    @property
    def has_returned(self) -> bool:
        return bool(self._returned)

    def push(self, offset: int, since_ms: int) -> None:
        """Add one offset that was leased or withheld before. since_ms: when it began to wait; 0 if it does not age."""
        heapq.heappush(self._returned, (offset, since_ms))
        self.count += 1
        self.cost += _RETURNED_COST

    def first(self) -> tuple[int, int]:
        """Return the lowest offset and the time since which it waits. There must be one."""
        if self._returned and (self._head >= len(self._runs) or self._returned[0][0] < self._runs[self._head]):
            return self._returned[0]
        return self._runs[self._head], self._runs[self._head + 2]

    def pop(self, limit: int) -> tuple[int, int]:
        """Remove the lowest offset and its neighbours, up to a limit. Returns [start, end). There must be one."""
        runs, head = self._runs, self._head
        if self._returned and (head >= len(runs) or self._returned[0][0] < runs[head]):
            self.count -= 1
            self.cost -= _RETURNED_COST
            offset = heapq.heappop(self._returned)[0]
            return offset, offset + 1
        start = runs[head]
        end = min(start + limit, runs[head + 1])
        if self._returned:
            end = min(end, self._returned[0][0])
        assert start < end, f"offset {start} is available twice"
        self.count -= end - start
        if end < runs[head + 1]:
            runs[head] = end
        else:
            self._drop_first_run()
        return start, end

    def _drop_first_run(self) -> None:
        self._head += _FIELDS
        self.cost -= 1
        if self._head >= len(self._runs):
            self._runs, self._head = array("q"), 0
        elif self._head >= _COMPACT_AT and self._head * 2 > len(self._runs):
            del self._runs[: self._head]
            self._head = 0


class Popped(NamedTuple):
    """The offsets [start, end), which are delivered in this order."""

    start: int
    end: int
    priority: int
    group: str


class Available:
    """The available messages; see the module's docstring. ageing_ms: a message's priority rises by one for each
    such period of waiting.
    """

    def __init__(self, ageing_ms: int = 0) -> None:
        self._ageing_ms = ageing_ms
        self._merge_ms = max(1, ageing_ms // 8) if ageing_ms else 1 << 62
        self._levels: dict[int, OrderedDict[str, Runs]] = {}
        self.count = 0
        self.cost = 0
        """Memory cost, in runs."""

    def push_range(self, start: int, end: int, priority: int, since_ms: int, group: str = NO_GROUP) -> None:
        runs = self._runs(priority, group)
        before = runs.cost
        runs.push_range(start, end, since_ms, self._merge_ms)
        self.count += end - start
        self.cost += runs.cost - before

    def push(self, offset: int, priority: int, since_ms: int, group: str = NO_GROUP) -> None:
        self._runs(priority, group).push(offset, since_ms)
        self.count += 1
        self.cost += _RETURNED_COST

    @property
    def has_returned(self) -> bool:
        """Whether there are messages that were pushed one by one."""
        return any(runs.has_returned for groups in self._levels.values() for runs in groups.values())

    def first_priority(self, now_ms: int) -> int | None:
        """Return the aged priority of the message that `pop` would return; None if there is none."""
        level = self._first_level(now_ms)
        return None if level is None else self._effective(level, now_ms)

    def pop(self, now_ms: int, lowest: int = 0, limit: int = 1) -> Popped | None:
        """Remove the next message and its neighbours, up to a limit. Returns None if no message has at least
        priority `lowest`.
        """
        priority = self._first_level(now_ms)
        if priority is None or (lowest and self._effective(priority, now_ms) < lowest):
            return None
        groups = self._levels[priority]
        group, runs = next(iter(groups.items()))
        before = runs.cost
        takes_turns = len(groups) > 1 or (self._ageing_ms and len(self._levels) > 1)
        start, end = runs.pop(1 if takes_turns else limit)
        self.count -= end - start
        self.cost += runs.cost - before
        if not runs.count:
            del groups[group]
            self.cost -= _GROUP_COST
            if not groups:
                del self._levels[priority]
        elif len(groups) > 1:
            groups.move_to_end(group)
        return Popped(start, end, priority, group)

    def _first_level(self, now_ms: int) -> int | None:
        if not self._levels:
            return None
        if len(self._levels) == 1:
            return next(iter(self._levels))
        if not self._ageing_ms:
            return max(self._levels)
        return max(self._levels, key=lambda level: (self._effective(level, now_ms), level))

    def _effective(self, level: int, now_ms: int) -> int:
        if not self._ageing_ms:
            return level
        _, since_ms = next(iter(self._levels[level].values())).first()
        return level + (max(0, now_ms - since_ms) // self._ageing_ms if since_ms > 0 else 0)

    def _runs(self, priority: int, group: str) -> Runs:
        groups = self._levels.get(priority)
        if groups is None:
            groups = self._levels[priority] = OrderedDict()
        runs = groups.get(group)
        if runs is None:
            runs = groups[group] = Runs()
            self.cost += _GROUP_COST
        return runs
