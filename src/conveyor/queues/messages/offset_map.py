"""A map from offsets to offsets, stored as runs: adjacent offsets with adjacent images take one entry."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Run(NamedTuple):
    """[start, end) maps to as many offsets from `image` on."""

    start: int
    end: int
    image: int

    def part(self, start: int, end: int) -> "Run":
        """Return the part of the run within [start, end), which must overlap it."""
        first = max(self.start, start)
        return Run(first, min(self.end, end), self.image + first - self.start)

    @property
    def image_end(self) -> int:
        return self.image + self.end - self.start


class OffsetMap:
    """Disjoint runs in ascending order, 24 bytes each."""

    __slots__ = ("_ends", "_images", "_starts")

    def __init__(self) -> None:
        self._starts = array("q")
        self._ends = array("q")
        self._images = array("q")

    def __len__(self) -> int:
        return len(self._starts)

    def put(self, run: Run) -> None:
        """Add a run of offsets that are not in the map."""
        place = bisect_left(self._starts, run.start)
        if place:
            before = self._run(place - 1)
            if (before.end, before.image_end) == (run.start, run.image):
                self._ends[place - 1] = run.end
                return
        self._replace(place, place, [run])

    def take(self, start: int, end: int) -> list[Run]:
        """Remove the offsets [start, end). Returns their runs."""
        first, last = bisect_right(self._ends, start), bisect_left(self._starts, end)
        if first >= last:
            return []
        runs = [self._run(place) for place in range(first, last)]
        kept = [runs[0].part(runs[0].start, start)] if runs[0].start < start else []
        if runs[-1].end > end:
            kept.append(runs[-1].part(end, runs[-1].end))
        self._replace(first, last, kept)
        return [run.part(start, end) for run in runs]

    def runs(self, start: int, end: int) -> Iterator[Run]:
        """Yield the runs of the offsets [start, end), ascending. The map must not change meanwhile."""
        for place in range(bisect_right(self._ends, start), len(self._starts)):
            if self._starts[place] >= end:
                return
            yield self._run(place).part(start, end)

    def _run(self, place: int) -> Run:
        return Run(self._starts[place], self._ends[place], self._images[place])

    def _replace(self, first: int, last: int, runs: Sequence[Run]) -> None:
        self._starts[first:last] = array("q", [run.start for run in runs])
        self._ends[first:last] = array("q", [run.end for run in runs])
        self._images[first:last] = array("q", [run.image for run in runs])
