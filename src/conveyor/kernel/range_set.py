"""A set of offsets, stored as half-open ranges: compact if members are adjacent, as settled messages are."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

_FEW = 64
"""So many ranges are added or removed one by one: to copy what lies between them can cost more than to shift it."""


class RangeSet:
    """Ranges are disjoint, ascending and not adjacent.

    `add` and `remove` cost a binary search and a shift of later ranges. `add_all` and `remove_all` cost a binary search
    for each of their ranges, and one copy of the ranges between the first and the last of them.
    """

    __slots__ = ("_ends", "_starts", "count")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self.count = 0
        """The number of offsets in the set."""
        for start, end in ranges:
            self.add(start, end)

    def __contains__(self, offset: int) -> bool:
        place = bisect_right(self._starts, offset) - 1
        return place >= 0 and offset < self._ends[place]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._ends, strict=True)

    def __bool__(self) -> bool:
        return bool(self._starts)

    def add(self, start: int, end: int) -> None:
        """Add [start, end) to the set. Offsets that are already members stay."""
        if start >= end:
            return
        starts, ends = self._starts, self._ends
        if ends and start == ends[-1]:  # The usual case: messages are settled in order.
            ends[-1] = end
            self.count += end - start
            return
        first = bisect_left(ends, start)
        last = bisect_right(starts, end)
        if first < last:
            self.count -= sum(ends[first:last]) - sum(starts[first:last])
            start, end = min(start, starts[first]), max(end, ends[last - 1])
        starts[first:last] = [start]
        ends[first:last] = [end]
        self.count += end - start

    def remove(self, start: int, end: int) -> None:
        """Remove [start, end) from the set. Offsets that are not members are ignored."""
        starts, ends = self._starts, self._ends
        first = bisect_right(ends, start)
        last = bisect_left(starts, end)
        if start >= end or first >= last:
            return
        self.count -= sum(ends[first:last]) - sum(starts[first:last])
        left = [(starts[first], start)] if starts[first] < start else []
        right = [(end, ends[last - 1])] if ends[last - 1] > end else []
        kept = left + right
        starts[first:last] = [bounds[0] for bounds in kept]
        ends[first:last] = [bounds[1] for bounds in kept]
        self.count += sum(bounds[1] - bounds[0] for bounds in kept)

    def add_all(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Add ranges, in any order."""
        ordered = sorted((start, end) for start, end in ranges if start < end)
        if len(ordered) <= _FEW:
            for start, end in ordered:
                self.add(start, end)
            return
        starts, ends = self._starts, self._ends
        begin = place = bisect_left(ends, ordered[0][0])
        new_starts: list[int] = []
        new_ends: list[int] = []
        for start, end in ordered:
            first = bisect_left(ends, start, place)
            new_starts += starts[place:first]
            new_ends += ends[place:first]
            place = bisect_right(starts, end, first)
            if first < place:
                self.count -= sum(ends[first:place]) - sum(starts[first:place])
                start, end = min(start, starts[first]), max(end, ends[place - 1])
            if new_ends and start <= new_ends[-1]:
                self.count += max(0, end - new_ends[-1])
                new_ends[-1] = max(end, new_ends[-1])
            else:
                self.count += end - start
                new_starts.append(start)
                new_ends.append(end)
        starts[begin:place] = new_starts
        ends[begin:place] = new_ends

    def remove_all(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Remove ranges, in any order."""
        ordered = sorted((start, end) for start, end in ranges if start < end) if self._starts else []
        if len(ordered) <= _FEW:
            for start, end in ordered:
                self.remove(start, end)
            return
        starts, ends = self._starts, self._ends
        begin = place = bisect_right(ends, ordered[0][0])
        new_starts: list[int] = []
        new_ends: list[int] = []
        for start, end in ordered:
            first = bisect_right(ends, start, place)
            last = bisect_left(starts, end, first)
            new_starts += starts[place:first]
            new_ends += ends[place:first]
            place = last
            if first == last:
                continue
            self.count -= sum(ends[first:last]) - sum(starts[first:last])
            if starts[first] < start:
                self.count += start - starts[first]
                new_starts.append(starts[first])
                new_ends.append(start)
            if ends[last - 1] > end:  # The next range to remove may begin in the rest.
                self.count += ends[last - 1] - end
                starts[last - 1] = end
                place = last - 1
        starts[begin:place] = new_starts
        ends[begin:place] = new_ends

    def clear(self) -> None:
        self._starts, self._ends, self.count = [], [], 0

    def end_of_range_at(self, offset: int) -> int:
        """Return the first offset at or after this one that is not in the set."""
        place = bisect_right(self._starts, offset) - 1
        return self._ends[place] if place >= 0 and offset < self._ends[place] else offset

    def count_from(self, offset: int) -> int:
        """Return the number of members at or above this offset."""
        place = bisect_right(self._ends, offset)
        inside = offset - self._starts[place] if place < len(self._starts) and self._starts[place] < offset else 0
        return sum(self._ends[place:]) - sum(self._starts[place:]) - inside

    def members(self, start: int, end: int) -> Iterator[int]:
        """Yield the members of [start, end), ascending. The caller must not change the set during the iteration."""
        for place in range(bisect_right(self._ends, start), len(self._starts)):
            if self._starts[place] >= end:
                return
            yield from range(max(start, self._starts[place]), min(end, self._ends[place]))

    def gaps(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of [start, end) that are not in the set, ascending."""
        place = bisect_right(self._ends, start)
        while start < end and place < len(self._starts) and self._starts[place] < end:
            if start < self._starts[place]:
                yield start, self._starts[place]
            start = self._ends[place]
            place += 1
        if start < end:
            yield start, end


def ranges_of(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """Return the offsets as ascending half-open ranges, adjacent offsets joined."""
    ranges: list[tuple[int, int]] = []
    for offset in sorted(offsets):
        if ranges and ranges[-1][1] == offset:
            ranges[-1] = (ranges[-1][0], offset + 1)
        else:
            ranges.append((offset, offset + 1))
    return ranges
