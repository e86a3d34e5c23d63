"""The offsets that wait, compared with a plain set."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.delay.waiting_offsets import WaitingOffsets

LIMIT = 1_200
OFFSETS = st.integers(0, 1_000)
STEPS = st.lists(
    st.tuples(st.sampled_from(["extend", "remove", "remove_below", "cut"]), OFFSETS, st.integers(0, 300)), max_size=30
)


@pytest.mark.slow
@given(STEPS)
def test_waiting_offsets_are_a_set_without_an_end(steps: list[tuple[str, int, int]]) -> None:
    waiting, model = WaitingOffsets(), set(range(LIMIT))
    for action, offset, count in steps:
        if action == "extend":
            waiting.extend(offset)
        elif action == "remove":
            waiting.remove(offset, offset + count)
            model -= set(range(offset, offset + count))
        elif action == "cut":
            waiting.cut(offset)
            model |= set(range(offset, LIMIT))
        else:
            waiting.remove_below(offset)
            model -= set(range(offset))
        check(waiting, model)
        check(WaitingOffsets.decoded(waiting.encoded(), waiting.end_offset), model)


def check(waiting: WaitingOffsets, model: set[int]) -> None:
    assert [offset for offset in range(LIMIT) if offset in waiting] == sorted(model)
    assert waiting.first == min(model) if model else waiting.first >= LIMIT
    ranges = list(waiting.ranges(0, LIMIT))
    assert {offset for start, end in ranges for offset in range(start, end)} == model
    assert all(end < start for (_, end), (start, _) in pairwise(ranges)), "adjacent ranges"
    assert list(waiting.ranges(7, 7)) == []


@pytest.mark.parametrize(
    ("removed", "encoded"),
    [
        (range(2, 256), "0000000000000000 02 00 01"),
        (range(2), "0000000000000000 ff" + "ff" * 31 + "fc"),
        (range(256), ""),
    ],
)
def test_form_of_a_stored_group(removed: range, encoded: str) -> None:
    waiting = WaitingOffsets()
    waiting.extend(256)
    waiting.remove(removed.start, removed.stop)
    assert waiting.encoded() == bytes.fromhex(encoded)


def test_records_that_do_not_wait_take_no_memory() -> None:
    waiting = WaitingOffsets()
    waiting.remove(0, 1_000_000)
    waiting.extend(1_000_001)
    assert len(waiting.encoded()) == 10
