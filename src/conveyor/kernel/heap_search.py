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

PLACES_AT_ONCE = 4_000
"""The places of one part: 1 to 4 ms, by how many of them are among the first numbers so far."""


class SearchedHeap(list[int]):
    """A heap of numbers. `heappop` removes the least one."""

    def __init__(self) -> None:
        super().__init__()
        self.searches: tuple[HeapSearch, ...] = ()
        """Those in progress."""

    def push(self, number: int) -> None:
        """Add a number. Where each call counts, the caller does these steps itself."""
        if self.searches:
            self.tell(number)
        heapq.heappush(self, number)

    def replace(self, numbers: Iterable[int]) -> None:
        """Replace all numbers. Searches begin again."""
        self[:] = numbers
        heapq.heapify(self)
        for search in self.searches:
            search.begin()

    def tell(self, number: int) -> None:
        """Tell the searches of a number that is pushed next, and which numbers this may move."""
        moved, place = [number], len(self)
        while place:
            place = (place - 1) >> 1
            moved.append(self[place])
        for search in self.searches:
            search.told(moved)


class HeapSearch:
    """A search for the first numbers above a bound, as a context. found: in ascending order, those so far.

    is_wanted: decides whether a number counts, once for those that are found: fewer than `limit` are the last ones.
    """

    def __init__(self, heap: SearchedHeap, above: int, limit: int, is_wanted: Callable[[int], bool]) -> None:
        self.found: list[int] = []
        self._heap = heap
        self._above = above
        self._limit = limit
        self._is_wanted = is_wanted
        self._place = len(heap)
        self._told: list[int] = []
        """Numbers that pushes may have moved. The next part looks at them."""

    def __enter__(self) -> Self:
        self._heap.searches += (self,)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._heap.searches = tuple(search for search in self._heap.searches if search is not self)

    @property
    def places_count(self) -> int:
        """The places of the heap."""
        return len(self._heap)

    def begin(self) -> None:
        """Begin again."""
        self.found = []
        self._told = []
        self._place = len(self._heap)

    def go_on(self) -> bool:
        """Look at the next part. Returns whether it was the last one."""
        end = min(self._place, len(self._heap))
        self._place = max(0, end - PLACES_AT_ONCE)
        self._take(self._heap[self._place : end] + self._told)
        self._told = []
        return not self._place

    def told(self, numbers: Iterable[int]) -> None:
        """Note numbers that a push may move."""
        self._told += numbers
        if len(self._told) >= PLACES_AT_ONCE:
            self._take(self._told)
            self._told = []

    def _take(self, numbers: Iterable[int]) -> None:
        is_full = len(self.found) == self._limit
        last = self.found[-1] if is_full else None
        above = self._above
        if last is None:
            candidates = [number for number in numbers if number > above]
        else:
            candidates = [number for number in numbers if above < number < last]
        if candidates:
            known = {*self.found}
            ascending = sorted(known.union(candidates))
            wanted = (number for number in ascending if number in known or self._is_wanted(number))
            self.found = list(islice(wanted, self._limit))
