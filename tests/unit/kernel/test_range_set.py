"""A set of offsets stored as ranges behaves like a plain set."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.kernel import range_set
from conveyor.kernel.range_set import RangeSet, ranges_of

Batches = list[tuple[bool, list[tuple[int, int]]]]
CHANGES = st.lists(st.tuples(st.booleans(), st.integers(0, 40), st.integers(0, 12)), max_size=40)


def offsets(ranges: RangeSet) -> set[int]:
    return {offset for start, end in ranges for offset in range(start, end)}


@given(CHANGES, st.integers(0, 50), st.integers(0, 50))
def test_range_set_is_a_set_of_offsets(changes: list[tuple[bool, int, int]], low: int, high: int) -> None:
    ranges, model = RangeSet(), set[int]()
    for is_added, start, length in changes:
        if is_added:
            ranges.add(start, start + length)
            model |= set(range(start, start + length))
        else:
            ranges.remove(start, start + length)
            model -= set(range(start, start + length))
    assert offsets(ranges) == model
    assert ranges.count == len(model)
    assert [offset in ranges for offset in range(60)] == [offset in model for offset in range(60)]
    assert ranges.count_from(low) == sum(offset >= low for offset in model)
    gaps = {offset for start, end in ranges.gaps(low, high) for offset in range(start, end)}
    assert gaps == set(range(low, high)) - model
    assert ranges.end_of_range_at(low) == next(offset for offset in range(low, 100) if offset not in model)


BATCHES = st.lists(st.tuples(st.booleans(), st.lists(st.tuples(st.integers(0, 400), st.integers(-1, 9)))), max_size=6)


@given(st.sampled_from([0, 1, 64]), BATCHES)
def test_batches_of_ranges_change_a_set_as_their_offsets_do(few: int, batches: Batches) -> None:
    """few: batches of at most so many ranges are applied one by one."""
    ranges, model = RangeSet(), set[int]()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(range_set, "_FEW", few)
        for is_added, batch in batches:
            bounds = [(start, start + length) for start, length in batch]
            changed = {offset for start, end in bounds for offset in range(start, end)}
            if is_added:
                ranges.add_all(bounds)
                model |= changed
            else:
                ranges.remove_all(bounds)
                model -= changed
            assert list(ranges) == ranges_of(model)
            assert ranges.count == len(model)


def shifted_ranges(change: Callable[[RangeSet], None], count: int) -> int:
    """Return how many bounds of a set with so many ranges are copied or moved."""

    class Counting(list[int]):
        moved = 0

        def __setitem__(self, place: Any, value: Any) -> None:
            if isinstance(place, slice):
                Counting.moved += len(self) - place.start
            super().__setitem__(place, value)

        def __getitem__(self, place: Any) -> Any:
            found = super().__getitem__(place)
            Counting.moved += len(found) if isinstance(place, slice) else 0
            return found

    ranges = RangeSet((start, start + 1) for start in range(1, 2 * count, 2))
    ranges._starts, ranges._ends = Counting(ranges._starts), Counting(ranges._ends)
    change(ranges)
    return Counting.moved


def test_batch_shifts_the_ranges_behind_it_once() -> None:
    gaps = [(start, start + 1) for start in range(0, 2_000, 2)]
    members = [(start, start + 1) for start in range(1, 2_001, 2)]
    assert shifted_ranges(lambda ranges: ranges.add_all(gaps), 20_000) < 100_000
    assert shifted_ranges(lambda ranges: ranges.remove_all(members), 20_000) < 100_000


@given(CHANGES)
def test_ranges_ascend_and_never_touch(changes: list[tuple[bool, int, int]]) -> None:
    ranges = RangeSet()
    for is_added, start, length in changes:
        (ranges.add if is_added else ranges.remove)(start, start + length)
    members = list(ranges)
    assert all(start < end for start, end in members)
    assert all(before[1] < after[0] for before, after in pairwise(members))
    assert bool(ranges) == bool(members)


def test_neighbours_cost_one_range() -> None:
    ranges = RangeSet((offset, offset + 1) for offset in range(1_000))
    assert list(ranges) == [(0, 1_000)]


def test_clear_leaves_nothing() -> None:
    ranges = RangeSet([(1, 3), (5, 9)])
    ranges.clear()
    assert (list(ranges), ranges.count) == ([], 0)
