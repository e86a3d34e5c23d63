"""When the records of an inbox go on: decided here, without a log, a disk or a clock."""

import pytest

from conveyor.delay.forwarding import Forwarding
from conveyor.delay.forwarding_history import ForwardingHistory
from conveyor.delay.forwarding_records import Cancelled, Intent, Range
from conveyor.delay.forwarding_scan import DueRun
from conveyor.kernel.errors import ErrorKind, RequestError


def machine(*notes: Intent | Cancelled, topic_end: int = 100, at_once: int = 1000) -> Forwarding:
    history = ForwardingHistory()
    for note in notes:
        history.apply(note)
    return Forwarding(history, 0, topic_end, at_once)


def take(forwarding: Forwarding, *runs: tuple[int, int, int], now_ms: int = 0, honours_delay: bool = True) -> None:
    end = runs[-1][1]
    forwarding.take([DueRun(*each) for each in runs], end, now_ms=now_ms, honours_delay=honours_delay)


def ranges(forwarding: Forwarding, now_ms: int) -> tuple[Range, ...]:
    intent = forwarding.expire(now_ms, 100)
    return () if intent is None else intent.ranges


def test_what_asks_for_no_delay_goes_at_once_and_the_rest_in_the_order_of_its_times() -> None:
    forwarding = machine()
    take(forwarding, (0, 1, 50), (1, 4, 0), (4, 5, 30), (5, 6, 50))
    assert forwarding.expire(10, 100) == Intent(100, 10, ((1, 4),))
    assert forwarding.next_deadline_ms() == 30
    assert forwarding.expire(29, 103) is None
    assert ranges(forwarding, 50) == ((4, 5), (0, 1), (5, 6))
    assert forwarding.next_deadline_ms() is None


def test_an_intent_has_a_limit_and_the_next_goes_on() -> None:
    forwarding = machine(at_once=2)
    take(forwarding, (0, 1, 0), (1, 9, 0), (9, 10, 0))
    assert ranges(forwarding, 1) == ((0, 1), (1, 9))
    assert forwarding.next_deadline_ms() is not None
    assert ranges(forwarding, 1) == ((9, 10),)


def test_a_clock_that_goes_back_takes_nothing_back() -> None:
    forwarding = machine()
    take(forwarding, (0, 1, 50), (1, 2, 60))
    assert ranges(forwarding, 50) == ((0, 1),)
    assert ranges(forwarding, 41) == ()
    assert not forwarding.is_waiting(0, 50, 41)
    with pytest.raises(RequestError):
        forwarding.handle(Cancelled(0), 50, 41)


def test_a_record_is_not_forwarded_before_its_time_by_a_clock_that_was_set_back() -> None:
    forwarding = machine()
    take(forwarding, (0, 1, 50), (1, 2, 60))
    assert ranges(forwarding, 50) == ((0, 1),)
    take(forwarding, (2, 3, 45), (3, 4, 46), now_ms=40)
    assert forwarding.next_deadline_ms() == 45
    assert ranges(forwarding, 41) == ()
    assert forwarding.is_waiting(3, 46, 41)
    forwarding.apply(forwarding.handle(Cancelled(3), 46, 41))
    assert not forwarding.is_waiting(3, 46, 41)
    assert ranges(forwarding, 46) == ((2, 3),)
    assert not forwarding.is_waiting(2, 45, 46)


def test_a_record_is_cancelled_until_it_is_due() -> None:
    forwarding = machine()
    take(forwarding, (0, 1, 50), (1, 2, 60))
    forwarding.apply(forwarding.handle(Cancelled(0), 50, 49))
    assert not forwarding.is_waiting(0, 50, 49)
    assert forwarding.is_waiting(1, 60, 49)
    assert ranges(forwarding, 60) == ((1, 2),)
    with pytest.raises(RequestError) as refused:
        forwarding.handle(Cancelled(1), 60, 10)
    assert refused.value.kind is ErrorKind.MESSAGE_NOT_DELAYED


def test_what_goes_before_its_time_cannot_be_cancelled_any_more() -> None:
    forwarding = machine()
    take(forwarding, (0, 1, 50), honours_delay=False)
    assert forwarding.is_waiting(0, 50, 0)
    with pytest.raises(RequestError):
        forwarding.handle(Cancelled(0), 50, 10)
    intent = forwarding.expire(10, 100)
    assert intent == Intent(100, 10, ((0, 1),), is_early=True)
    forwarding.apply(intent)
    assert not forwarding.is_waiting(0, 50, 10)
    with pytest.raises(RequestError):
        forwarding.handle(Cancelled(0), 50, 10)
    with pytest.raises(RequestError):
        machine(intent, topic_end=101).handle(Cancelled(0), 50, 10)


def test_what_was_forwarded_before_a_restart_is_not_taken_again() -> None:
    forwarding = machine(Intent(100, 10, ((0, 2), (3, 4))), topic_end=103)
    take(forwarding, (0, 5, 0))
    assert ranges(forwarding, 20) == ((2, 3), (4, 5))


def test_what_was_noted_and_not_done_is_taken_again() -> None:
    intent = Intent(100, 10, ((0, 2), (3, 5)))
    forwarding = machine(intent, topic_end=103)
    take(forwarding, (0, 5, 0))
    assert ranges(forwarding, 20) == ((2, 3), (4, 5))
    forwarding = machine(intent, topic_end=100)
    take(forwarding, (0, 5, 0))
    assert ranges(forwarding, 20) == ((0, 5),)


def test_an_intent_undoes_those_before_it_that_reach_beyond_its_beginning() -> None:
    never = Intent(101, 10, ((7, 8),))
    halfway = Intent(99, 10, ((1, 4),))
    forwarding = machine(halfway, never, Intent(100, 10, ((5, 6),)), Intent(101, 10, ((6, 7),)), topic_end=102)
    take(forwarding, (0, 9, 0))
    assert ranges(forwarding, 20) == ((0, 1), (2, 5), (7, 9))


def test_what_is_needed_still_is_held() -> None:
    forwarding = machine()
    take(forwarding, (0, 5_000, 0), (5_000, 5_001, 50), (5_001, 20_000, 0))
    intent = forwarding.expire(1, 100)
    assert intent is not None
    assert forwarding.held_from() == 0
    for each in (intent, forwarding.expire(1, 5_100)):
        assert each is not None
        forwarding.release(each)
    assert 0 < forwarding.held_from() <= 5_000
    last = forwarding.expire(50, 19_999)
    assert last is not None
    forwarding.release(last)
    assert forwarding.held_from() == 20_000
