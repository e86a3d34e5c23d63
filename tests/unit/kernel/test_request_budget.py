"""Large requests wait for their share in order, and every request gets one."""

from hypothesis import given
from hypothesis import strategies as st

from conveyor.kernel.request_budget import RequestBudget, Share


def ask(budget: RequestBudget, size_bytes: int, granted: list[int]) -> Share:
    return budget.ask(size_bytes, lambda: granted.append(size_bytes))


def test_share_is_granted_at_once_where_there_is_room() -> None:
    budget, granted = RequestBudget(100), list[int]()
    ask(budget, 60, granted)
    ask(budget, 40, granted)
    assert granted == [60, 40]
    assert budget.held_bytes == 100


def test_shares_are_granted_in_the_order_in_which_they_were_asked_for() -> None:
    budget, granted = RequestBudget(100), list[int]()
    first = ask(budget, 60, granted)
    ask(budget, 50, granted)
    ask(budget, 10, granted)
    assert granted == [60], "the smaller one does not overtake"
    budget.give_back(first)
    assert granted == [60, 50, 10]


def test_share_that_is_given_up_makes_way_for_the_next() -> None:
    budget, granted = RequestBudget(100), list[int]()
    ask(budget, 60, granted)
    waiting = ask(budget, 50, granted)
    ask(budget, 10, granted)
    budget.give_back(waiting)
    assert granted == [60, 10]
    assert (budget.waiting_count, budget.held_bytes) == (0, 70)


def test_small_requests_keep_large_ones_waiting_but_not_the_only_one() -> None:
    budget, granted = RequestBudget(100), list[int]()
    budget.count(90)
    first = ask(budget, 100, granted)
    ask(budget, 20, granted)
    assert granted == [100]
    budget.give_back(first)
    assert granted == [100, 20]
    ask(budget, 5, granted)
    budget.count(-20)
    assert granted == [100, 20, 5]


def test_requests_that_go_on_without_their_connections_leave_less_room_but_are_no_reason_to_close_others() -> None:
    budget, granted = RequestBudget(100), list[int]()
    ask(budget, 10, granted)
    budget.count_lasting(200)
    assert (budget.used_bytes, budget.is_over_limit) == (210, False)
    ask(budget, 20, granted)
    assert granted == [10]
    budget.count_lasting(-200)
    assert granted == [10, 20]
    budget.count(101)
    assert budget.is_over_limit


def test_bytes_of_a_request_that_are_counted_do_not_delay_its_own_share() -> None:
    budget, granted = RequestBudget(100), list[int]()
    first = ask(budget, 60, granted)
    budget.count_lasting(20)
    budget.ask(40, lambda: granted.append(40), counted_bytes=20)
    assert granted == [60, 40]
    ask(budget, 10, granted)
    budget.give_back(first)
    assert granted == [60, 40, 10]


@given(st.lists(st.tuples(st.integers(1, 100), st.booleans()), max_size=40))
def test_all_shares_are_granted_in_the_end_and_never_too_many(steps: list[tuple[int, bool]]) -> None:
    budget, granted, shares = RequestBudget(100), list[int](), list[Share]()
    for size_bytes, gives_back in steps:
        shares.append(ask(budget, size_bytes, granted))
        if gives_back:
            budget.give_back(shares.pop(0))
        assert budget.held_bytes <= 100
    while shares:
        assert shares[0].granted is None, "the first in the queue gets its share"
        budget.give_back(shares.pop(0))
    assert (budget.held_bytes, budget.waiting_count) == (0, 0)
