"""The forwarding of an inbox's records, decided without a log, a disk or a clock."""

import pytest

from conveyor.delay.forwarding import CancelForwarding, Forwarding, NextIntent
from conveyor.delay.forwarding_records import Cancelled, Intent, Range, note_record, read_note
from conveyor.delay.forwarding_scan import DueRun
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.state_machine import Outcome, Reply, Token

TAKER, CANCELLER = Token(1), Token(2)


def machine(
    *notes: Intent | Cancelled, topic_end: int = 100, at_once: int = 1000, may_forward: bool = True
) -> Forwarding:
    forwarding = Forwarding(lambda: topic_end, lambda: may_forward, at_once)
    for note in notes:
        forwarding.apply(note_record(note))
    forwarding.begin(0)
    return forwarding


def take(forwarding: Forwarding, *runs: tuple[int, int, int], now_ms: int = 0, honours_delay: bool = True) -> None:
    end = runs[-1][1]
    forwarding.take([DueRun(*run) for run in runs], end, now_ms=now_ms, honours_delay=honours_delay)


def applied(forwarding: Forwarding, outcome: Outcome) -> None:
    for record in outcome.records:
        forwarding.apply(record)


def next_intent(forwarding: Forwarding, now_ms: int) -> Intent | None:
    """Ask for the next intent, which confirms that the previous one is executed."""
    outcome = forwarding.handle(NextIntent(), TAKER, now_ms)
    applied(forwarding, outcome)
    if not outcome.replies:
        return None
    [record], [reply] = outcome.records, outcome.replies
    assert isinstance(reply.value, Intent)
    assert (reply.token, reply.value) == (TAKER, read_note(record))
    return reply.value


def ranges(forwarding: Forwarding, now_ms: int) -> tuple[Range, ...]:
    intent = next_intent(forwarding, now_ms)
    return () if intent is None else intent.ranges


def cancel(forwarding: Forwarding, offset: int, due_ms: int, now_ms: int) -> None:
    """Cancel a withheld record. Raises RequestError."""
    outcome = forwarding.handle(CancelForwarding(offset=offset, due_ms=due_ms), CANCELLER, now_ms)
    applied(forwarding, outcome)
    [reply] = outcome.replies
    if isinstance(reply.value, RequestError):
        assert not outcome.records
        raise reply.value
    assert [read_note(record) for record in outcome.records] == [Cancelled(offset)]


def test_what_asks_for_no_delay_goes_at_once_and_the_rest_in_the_order_of_its_times() -> None:
    forwarding = machine()
    take(forwarding, (0, 1, 50), (1, 4, 0), (4, 5, 30), (5, 6, 50))
    assert next_intent(forwarding, 10) == Intent(100, 10, ((1, 4),))
    assert next_intent(forwarding, 29) is None
    assert forwarding.next_deadline_ms() == 30
    assert ranges(forwarding, 50) == ((4, 5), (0, 1), (5, 6))
    assert next_intent(forwarding, 50) is None
    assert forwarding.next_deadline_ms() is None


def test_one_intent_is_under_way_at_a_time() -> None:
    forwarding = machine()
    take(forwarding, (0, 1, 0), (1, 2, 50))
    assert (forwarding.expire(10), forwarding.next_deadline_ms()) == (Outcome(), None)
    assert next_intent(forwarding, 10) == Intent(100, 10, ((0, 1),))
    assert (forwarding.expire(60), forwarding.next_deadline_ms()) == (Outcome(), None)
    assert next_intent(forwarding, 60) == Intent(100, 60, ((1, 2),))


def test_whoever_waits_for_the_next_intent_gets_it_when_something_is_due() -> None:
    forwarding = machine()
    take(forwarding, (0, 1, 50))
    assert next_intent(forwarding, 10) is None
    [reply] = forwarding.expire(50).replies
    assert reply == Reply(TAKER, Intent(100, 50, ((0, 1),)))


def test_nothing_goes_on_while_it_may_not() -> None:
    forwarding = machine(may_forward=False)
    take(forwarding, (0, 1, 0), (1, 2, 50))
    assert next_intent(forwarding, 60) is None
    assert (forwarding.expire(60), forwarding.next_deadline_ms()) == (Outcome(), None)


def test_an_intent_has_a_limit_and_the_next_goes_on() -> None:
    forwarding = machine(at_once=2)
    take(forwarding, (0, 1, 0), (1, 9, 0), (9, 10, 0))
    assert ranges(forwarding, 1) == ((0, 1), (1, 9))
    assert ranges(forwarding, 1) == ((9, 10),)


def test_a_clock_that_goes_back_takes_nothing_back() -> None:
    forwarding = machine()
    take(forwarding, (0, 1, 50), (1, 2, 60))
    assert ranges(forwarding, 50) == ((0, 1),)
    assert ranges(forwarding, 41) == ()
    assert not forwarding.is_waiting(0, 50, 41)
    with pytest.raises(RequestError):
        cancel(forwarding, 0, 50, 41)


def test_a_record_is_not_forwarded_before_its_time_by_a_clock_that_was_set_back() -> None:
    forwarding = machine()
    take(forwarding, (0, 1, 50), (1, 2, 60))
    assert ranges(forwarding, 50) == ((0, 1),)
    take(forwarding, (2, 3, 45), (3, 4, 46), now_ms=40)
    assert ranges(forwarding, 41) == ()
    assert forwarding.next_deadline_ms() == 45
    assert forwarding.is_waiting(3, 46, 41)
    cancel(forwarding, 3, 46, 41)
    assert not forwarding.is_waiting(3, 46, 41)
    assert ranges(forwarding, 46) == ((2, 3),)
    assert not forwarding.is_waiting(2, 45, 46)


def test_a_record_is_cancelled_until_it_is_due() -> None:
    forwarding = machine()
    take(forwarding, (0, 1, 50), (1, 2, 60))
    cancel(forwarding, 0, 50, 49)
    assert not forwarding.is_waiting(0, 50, 49)
    assert forwarding.is_waiting(1, 60, 49)
    assert ranges(forwarding, 60) == ((1, 2),)
    with pytest.raises(RequestError) as refused:
        cancel(forwarding, 1, 60, 10)
    assert refused.value.kind is ErrorKind.MESSAGE_NOT_DELAYED


def test_what_goes_before_its_time_cannot_be_cancelled_any_more() -> None:
    forwarding = machine()
    take(forwarding, (0, 1, 50), honours_delay=False)
    assert forwarding.is_waiting(0, 50, 0)
    with pytest.raises(RequestError):
        cancel(forwarding, 0, 50, 10)
    intent = next_intent(forwarding, 10)
    assert intent == Intent(100, 10, ((0, 1),), is_early=True)
    assert not forwarding.is_waiting(0, 50, 10)
    with pytest.raises(RequestError):
        cancel(forwarding, 0, 50, 10)
    with pytest.raises(RequestError):
        cancel(machine(intent, topic_end=101), 0, 50, 10)


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
    intent = next_intent(forwarding, 1)
    assert intent is not None
    assert forwarding.retain_from_offset() == 0
    for next_one in (intent, next_intent(forwarding, 1)):
        assert next_one is not None
        forwarding.release(next_one)
    assert 0 < forwarding.retain_from_offset() <= 5_000
    last = next_intent(forwarding, 50)
    assert last is not None
    forwarding.release(last)
    assert forwarding.retain_from_offset() == 20_000


def test_forwarder_is_idle_once_all_intents_are_executed() -> None:
    forwarding = machine(Intent(98, 10, ((0, 2),)), topic_end=100)
    assert next_intent(forwarding, 10) is None
    assert is_idle(forwarding)
    take(forwarding, (2, 3, 0))
    applied(forwarding, forwarding.expire(10))
    assert not is_idle(forwarding)


def test_intent_that_was_cut_short_is_noted_before_the_forwarder_is_idle() -> None:
    """Another batch may be in the topic at the end of its records, and must not be taken for one of them."""
    cut = Intent(100, 10, ((0, 5),))
    forwarding = machine(cut, topic_end=102)
    end = next_intent(forwarding, 5)
    assert end == Intent(102, 10, ())
    assert not is_idle(forwarding)
    assert next_intent(forwarding, 5) is None
    assert is_idle(forwarding)
    again = machine(cut, end, topic_end=103)
    assert again.has_forwarded(0, 2)
    assert not again.has_forwarded(2, 3)


def is_idle(forwarding: Forwarding) -> bool:
    return forwarding.is_idle
