"""The messages of one subscription that could be leased now, in the order in which they are handed out.

By priority, 9 first, or by priority and age; within a priority by turns of their groups, where the subscription is
fair; within a group by offset. A backlog costs a few bytes a run of neighbours, not an object a message.
"""

import heapq
from array import array
from collections import OrderedDict

NO_GROUP = ""
PRIORITIES = range(9, -1, -1)
_FIELDS = 3
_COMPACT_AT = 3 * 1024
_GROUP_COST = 16
_RETURNED_COST = 5


class Runs:
    """Offsets in ascending order: ranges that came one after the other, and single ones that came back."""

    __slots__ = ("_head", "_returned", "_runs", "count")

    def __init__(self) -> None:
        self._runs = array("q")  # start, end and since_ms of each run, from _head on
        self._head = 0
        self._returned: list[tuple[int, int]] = []
        self.count = 0

    def push_range(self, start: int, end: int, since_ms: int, merge_ms: int) -> None:
        """Add [start, end), which lies behind all ranges so far. Runs whose ages differ by less than merge_ms join."""
        runs = self._runs
        if len(runs) > self._head and runs[-2] == start and abs(since_ms - runs[-1]) < merge_ms:
            runs[-2] = end
        else:
            runs.extend((start, end, since_ms))
        self.count += end - start

    @property
    def runs_count(self) -> int:
        return (len(self._runs) - self._head) // _FIELDS

    @property
    def returned_count(self) -> int:
        return len(self._returned)

    def push(self, offset: int, since_ms: int) -> None:
        """Add one offset that has been handed out before, or was withheld."""
        heapq.heappush(self._returned, (offset, since_ms))
        self.count += 1

    def first(self) -> tuple[int, int]:
        """The lowest offset, and since when it waits; there must be one."""
        if self._returned and (self._head >= len(self._runs) or self._returned[0][0] < self._runs[self._head]):
            return self._returned[0]
        return self._runs[self._head], self._runs[self._head + 2]

    def pop(self) -> int:
        """Take the lowest offset out; there must be one."""
        self.count -= 1
        runs, head = self._runs, self._head
        if self._returned and (head >= len(runs) or self._returned[0][0] < runs[head]):
            return heapq.heappop(self._returned)[0]
        offset = runs[head]
        if offset + 1 < runs[head + 1]:
            runs[head] = offset + 1
        else:
            self._drop_first_run()
        return offset

    def _drop_first_run(self) -> None:
        self._head += _FIELDS
        if self._head >= len(self._runs):
            self._runs, self._head = array("q"), 0
        elif self._head >= _COMPACT_AT and self._head * 2 > len(self._runs):
            del self._runs[: self._head]
            self._head = 0


class Available:
    """See the module's docstring. ageing_ms: a message counts one priority higher for each such time it has waited."""

    def __init__(self, ageing_ms: int = 0) -> None:
        self._ageing_ms = ageing_ms
        self._merge_ms = max(1, ageing_ms // 8) if ageing_ms else 1 << 62
        self._levels: dict[int, OrderedDict[str, Runs]] = {}
        self.count = 0
        self.returned_count = 0
        """Messages that were pushed one by one."""
        self._cost = 0

    def push_range(self, start: int, end: int, priority: int, since_ms: int, group: str = NO_GROUP) -> None:
        runs = self._runs(priority, group)
        before = runs.runs_count
        runs.push_range(start, end, since_ms, self._merge_ms)
        self.count += end - start
        self._cost += runs.runs_count - before

    def push(self, offset: int, priority: int, since_ms: int, group: str = NO_GROUP) -> None:
        self._runs(priority, group).push(offset, since_ms)
        self.count += 1
        self.returned_count += 1

    @property
    def cost(self) -> int:
        """What all this takes in memory, in runs."""
        return self._cost + _RETURNED_COST * self.returned_count

    def first_priority(self, now_ms: int) -> int | None:
        """The priority, aged, of what `pop` would take; None if there is nothing."""
        level = self._first_level(now_ms)
        return None if level is None else self._effective(level, now_ms)

    def pop(self, now_ms: int, lowest: int = 0) -> tuple[int, int, str] | None:
        """Take the next message out: its offset, priority and group; None if there is none so urgent."""
        priority = self._first_level(now_ms)
        if priority is None or (lowest and self._effective(priority, now_ms) < lowest):
            return None
        groups = self._levels[priority]
        group, runs = next(iter(groups.items()))
        before = runs.runs_count, runs.returned_count
        offset = runs.pop()
        self.count -= 1
        self._cost += runs.runs_count - before[0]
        self.returned_count += runs.returned_count - before[1]
        if not runs.count:
            del groups[group]
            self._cost -= _GROUP_COST
            if not groups:
                del self._levels[priority]
        elif len(groups) > 1:
            groups.move_to_end(group)
        return offset, priority, group

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
        return level + max(0, now_ms - since_ms) // self._ageing_ms

    def _runs(self, priority: int, group: str) -> Runs:
        groups = self._levels.get(priority)
        if groups is None:
            groups = self._levels[priority] = OrderedDict()
        runs = groups.get(group)
        if runs is None:
            runs = groups[group] = Runs()
            self._cost += _GROUP_COST
        return runs
