"""A search of a heap that changes meanwhile: every number that stays is found."""

from collections.abc import Iterator
from heapq import heappop
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conveyor.kernel import heap_search
from conveyor.kernel.heap_search import HeapSearch, SearchedHeap

NUMBERS = st.integers(0, 100)
CHANGES = st.lists(st.one_of(NUMBERS, st.none()), max_size=12)
"""Pushes of numbers; None for a pop."""


@pytest.fixture(autouse=True, scope="module")
def _small_parts() -> Iterator[None]:
    with patch.object(heap_search, "PLACES_AT_ONCE", 3):
        yield


def heap_of(numbers: list[int]) -> SearchedHeap:
    heap = SearchedHeap()
    for number in numbers:
        heap.push(number)
    return heap


@settings(deadline=None)
@given(st.lists(NUMBERS, max_size=60), NUMBERS, st.integers(1, 20), st.lists(CHANGES, max_size=20))
def test_search_finds_what_stays(numbers: list[int], above: int, limit: int, changes: list[list[int | None]]) -> None:
    heap = heap_of(numbers)
    seen, lasting = set(numbers), set(numbers)
    with HeapSearch(heap, above, limit, lambda number: number % 7 != 0) as search:
        while not search.go_on():
            for change in changes.pop() if changes else ():
                if change is not None:
                    heap.push(change)
                    seen.add(change)
                elif heap:
                    heappop(heap)
            lasting &= set(heap)
    assert search.found == sorted(set(search.found))
    assert set(search.found) <= {number for number in seen if number > above and number % 7}
    last = search.found[-1] if len(search.found) == limit else 1_000
    assert {number for number in lasting if above < number <= last and number % 7} <= set(search.found)
    assert len(search.found) <= limit
    assert not heap.searches


def test_search_begins_again_when_all_numbers_are_replaced() -> None:
    heap = heap_of(list(range(20)))
    with HeapSearch(heap, 0, 100, lambda _: True) as search:
        search.go_on()
        heap.replace([number + 50 for number in heap])
        while not search.go_on():
            pass
    assert search.found == list(range(50, 70))


def test_part_looks_at_a_limited_number_of_places() -> None:
    heap = heap_of(list(range(20)))
    with HeapSearch(heap, -1, 100, lambda _: True) as search:
        found_counts = []
        while not search.go_on():
            found_counts.append(len(search.found))
    assert found_counts == [3, 6, 9, 12, 15, 18]


def test_number_that_is_not_wanted_any_more_does_not_shorten_the_result() -> None:
    heap, gone = heap_of(list(range(20))), set[int]()
    with HeapSearch(heap, -1, 4, lambda number: number not in gone) as search:
        while not search.go_on():
            gone.update(search.found)
    assert len(search.found) == 4
