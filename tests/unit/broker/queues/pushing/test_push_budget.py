"""What a broker has in push requests at a time."""

from types import SimpleNamespace
from typing import Any

from conveyor.broker.queues.pushing.push_budget import PushBudget
from conveyor.settings.tree import from_sources


def _budget(connections: int, in_flight_bytes: int) -> PushBudget:
    settings = {"push.max_connections": connections, "push.max_in_flight_bytes": in_flight_bytes}
    services: Any = SimpleNamespace(settings=from_sources(settings))
    return PushBudget(services)


def test_requests_and_bytes_are_limited() -> None:
    budget = _budget(2, 100)
    budget.begin(60)
    assert (budget.free_count(), budget.free_bytes()) == (1, 40)
    budget.begin(70)
    assert (budget.free_count(), budget.free_bytes()) == (0, -30)
    budget.end(60)
    assert (budget.free_count(), budget.free_bytes()) == (1, 30)


def test_one_too_large_request_is_made_alone() -> None:
    budget = _budget(2, 100)
    budget.begin(500)
    assert budget.free_count() == 0


def test_those_that_wait_are_woken_in_turn_and_wake_the_next() -> None:
    budget, woken, idle = _budget(2, 100), list[str](), list[None]()
    budget.idle.listen(idle.append)
    for _ in range(2):
        budget.begin(10)

    def first() -> None:
        woken.append("first")

    def second() -> None:
        woken.append("second")

    for wake in (first, second, first):
        budget.wait(wake)
    budget.end(10)
    assert woken == ["first"]
    budget.wake_next()  # The first needs nothing.
    assert woken == ["first", "second"]
    budget.wake_next()
    assert woken == ["first", "second"]
    assert idle == []
    budget.end(10)
    assert idle == [None]


def test_nobody_is_woken_without_room() -> None:
    budget, woken = _budget(1, 100), list[None]()
    budget.wait(lambda: woken.append(None))
    budget.begin(10)
    budget.wake_next()
    assert woken == []
