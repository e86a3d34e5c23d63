"""Deadlines become due in their order, including replaced and removed ones."""

from random import Random
from uuid import UUID

from conveyor.queues.agenda import Timetable

A, B, C = (UUID(int=number) for number in range(3))


def test_first_is_the_earliest_that_still_holds() -> None:
    times = Timetable()
    for subscription, time_ms in ((A, 5), (B, 3), (B, 9), (C, 7), (A, None)):
        times.set(subscription, time_ms)
    assert times.first_ms() == 7
    assert times.pop_due(6) is None
    assert [times.pop_due(9) for _ in range(3)] == [C, B, None]
    assert times.first_ms() is None


def test_times_that_change_often_cost_no_memory_and_stay_right() -> None:
    random, times, expected = Random(7), Timetable(), dict[UUID, int]()
    for _ in range(20_000):
        subscription, time_ms = random.choice((A, B, C)), random.randrange(1_000_000)
        times.set(subscription, time_ms)
        expected[subscription] = time_ms
    assert len(times._heap) < 2_000
    assert times.first_ms() == min(expected.values())
    due = [times.pop_due(1_000_000) for _ in expected]
    assert due == sorted(expected, key=lambda subscription: expected[subscription])
