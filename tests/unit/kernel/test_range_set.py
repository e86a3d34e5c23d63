"""A set of offsets stored as ranges behaves like a plain set."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from conveyor.kernel.range_set import RangeSet

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


@given(CHANGES)
def test_ranges_ascend_and_never_touch(changes: list[tuple[bool, int, int]]) -> None:
    ranges = RangeSet()
    for is_added, start, length in changes:
        (ranges.add if is_added else ranges.remove)(start, start + length)
    members = list(ranges)
    assert all(start < end for start, end in members)
    assert all(before[1] < after[0] for before, after in pairwise(members))
    assert ranges.range_count == len(members)
    assert bool(ranges) == bool(members)


def test_neighbours_cost_one_range() -> None:
    ranges = RangeSet((offset, offset + 1) for offset in range(1_000))
    assert list(ranges) == [(0, 1_000)]


def test_clear_leaves_nothing() -> None:
    ranges = RangeSet([(1, 3), (5, 9)])
    ranges.clear()
    assert (list(ranges), ranges.count) == ([], 0)
