"""Finds the least numbers of a heap in parts, while numbers are pushed and popped between the parts.

The search looks at the places of the heap from the last to the first. A pop moves numbers towards the first place,
where the search comes later, and one number from the last place, where it was already. A push moves the numbers above
the new one away from there: the search is told of them first, and of the new one.
"""

import heapq
from collections.abc import Callable, Iterable
from itertools import islice
from types import TracebackType
from typing import Self

PLACES_AT_ONCE = 10_000
"""The places of one part: about 2 ms."""


class SearchedHeap(list[int]):
    """A heap of numbers. `heappop` removes the least one."""

    def __init__(self) -> None:
        super().__init__()
        self.searches: set[HeapSearch] = set()
        """Those in progress."""

    def push(self, number: int) -> None:
        """Add a number."""
        if self.searches:
            self._tell(number)
        heapq.heappush(self, number)

    def replace(self, numbers: Iterable[int]) -> None:
        """Replace all numbers. Searches begin again."""
        self[:] = numbers
        heapq.heapify(self)
        for search in self.searches:
            search.begin()

    def _tell(self, number: int) -> None:
        """Tell the searches which numbers a push may move."""
        moved, place = [number], len(self)
        while place:
            place = (place - 1) >> 1
            moved.append(self[place])
        for search in self.searches:
            search.take(moved)


class HeapSearch:
    """A search for the first numbers above a bound, as a context. found: in ascending order, those so far.

    is_wanted: decides whether a number counts.
    """

    def __init__(self, heap: SearchedHeap, above: int, limit: int, is_wanted: Callable[[int], bool]) -> None:
        self.found: list[int] = []
        self._heap = heap
        self._above = above
        self._limit = limit
        self._is_wanted = is_wanted
        self._place = len(heap)

    def __enter__(self) -> Self:
        self._heap.searches.add(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._heap.searches.discard(self)

    def begin(self) -> None:
        """Begin again."""
        self.found = []
        self._place = len(self._heap)

    def go_on(self) -> bool:
        """Look at the next part. Returns whether it was the last one."""
        end = min(self._place, len(self._heap))
        self._place = max(0, end - PLACES_AT_ONCE)
        self.take(self._heap[self._place : end])
        return not self._place

    def take(self, numbers: Iterable[int]) -> None:
        """Look at numbers."""
        is_full = len(self.found) == self._limit
        last = self.found[-1] if is_full else None
        above = self._above
        if last is None:
            candidates = [number for number in numbers if number > above]
        else:
            candidates = [number for number in numbers if above < number < last]
        if candidates:
            ascending = sorted({*self.found, *candidates})
            self.found = list(islice(filter(self._is_wanted, ascending), self._limit))
