"""The delivery order of available messages, and its cost."""

from hypothesis import given
from hypothesis import strategies as st

from conveyor.queues.delivery.available import Available

NOW_MS = 1_000_000


def pop_all(available: Available, now_ms: int = NOW_MS) -> list[int]:
    found = []
    while (popped := available.pop(now_ms)) is not None:
        found.append(popped[0])
    return found


def test_messages_of_one_priority_come_by_offset() -> None:
    available = Available()
    available.push_range(0, 3, 4, NOW_MS)
    available.push_range(7, 9, 4, NOW_MS)
    available.push(5, 4, NOW_MS)
    assert pop_all(available) == [0, 1, 2, 5, 7, 8]


def test_more_urgent_messages_come_first() -> None:
    available = Available()
    available.push_range(0, 2, 0, NOW_MS)
    available.push_range(2, 4, 9, NOW_MS)
    available.push_range(4, 6, 4, NOW_MS)
    assert pop_all(available) == [2, 3, 4, 5, 0, 1]


def test_priority_is_strict_over_a_backlog_of_a_million() -> None:
    available = Available()
    available.push_range(0, 1_000_000, 4, NOW_MS)
    available.push_range(1_000_000, 1_000_001, 5, NOW_MS)
    assert available.pop(NOW_MS) == (1_000_000, 1_000_001, 5, "")


def test_pop_says_priority_and_group() -> None:
    available = Available()
    available.push_range(3, 4, 7, NOW_MS, "g")
    assert available.pop(NOW_MS) == (3, 4, 7, "g")
    assert available.pop(NOW_MS) is None


def test_pop_takes_nothing_below_the_lowest_priority() -> None:
    available = Available()
    available.push_range(0, 1, 3, NOW_MS)
    assert available.pop(NOW_MS, lowest=4) is None
    assert available.pop(NOW_MS, lowest=3) == (0, 1, 3, "")


def test_message_counts_one_priority_higher_for_each_ageing_time() -> None:
    available = Available(ageing_ms=1_000)
    available.push_range(0, 1, 2, NOW_MS - 3_000)
    available.push_range(1, 2, 4, NOW_MS)
    assert available.first_priority(NOW_MS) == 5
    assert pop_all(available) == [0, 1]


def test_with_equal_age_the_higher_priority_wins() -> None:
    available = Available(ageing_ms=1_000)
    available.push_range(0, 1, 2, NOW_MS - 2_000)
    available.push_range(1, 2, 4, NOW_MS)
    assert pop_all(available) == [1, 0]


def test_runs_of_different_age_stay_apart_where_age_counts() -> None:
    available = Available(ageing_ms=8_000)
    available.push_range(0, 1, 4, NOW_MS)
    available.push_range(1, 2, 4, NOW_MS + 500)
    available.push_range(2, 3, 4, NOW_MS - 9_000)
    assert available.cost - cost_of_a_group() == 2


def cost_of_a_group() -> int:
    available = Available()
    available.push_range(0, 1, 4, NOW_MS)
    return available.cost - 1


def test_groups_take_turns() -> None:
    available = Available()
    available.push_range(0, 4, 4, NOW_MS, "a")
    available.push_range(4, 6, 4, NOW_MS, "b")
    available.push_range(6, 7, 4, NOW_MS, "c")
    assert pop_all(available) == [0, 4, 6, 1, 5, 2, 3]


def test_turns_hold_within_a_priority() -> None:
    available = Available()
    available.push_range(0, 2, 4, NOW_MS, "a")
    available.push_range(2, 4, 9, NOW_MS, "a")
    available.push_range(4, 5, 9, NOW_MS, "b")
    assert pop_all(available) == [2, 4, 3, 0, 1]


def test_ten_million_neighbours_cost_one_run() -> None:
    available = Available()
    for start in range(0, 10_000_000, 10_000):
        available.push_range(start, start + 10_000, 4, NOW_MS)
    assert available.count == 10_000_000
    assert available.cost - cost_of_a_group() == 1


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["", "g"]), st.booleans()), max_size=30))
def test_everything_comes_out_once_and_costs_nothing_then(pushed: list[tuple[int, str, bool]]) -> None:
    available = Available()
    for offset, (priority, group, is_single) in enumerate(pushed):
        if is_single:
            available.push(2 * offset, priority, NOW_MS, group)
        else:
            available.push_range(2 * offset, 2 * offset + 1, priority, NOW_MS, group)
    assert available.count == len(pushed)
    assert available.has_returned == any(push[2] for push in pushed)
    assert sorted(pop_all(available)) == [2 * offset for offset in range(len(pushed))]
    assert (available.count, available.has_returned, available.cost) == (0, False, 0)
    assert available.first_priority(NOW_MS) is None


def test_many_runs_are_forgotten_as_they_are_taken() -> None:
    available = Available()
    for offset in range(0, 20_000, 2):
        available.push_range(offset, offset + 1, 4, NOW_MS)
    assert pop_all(available) == list(range(0, 20_000, 2))
