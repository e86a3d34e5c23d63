"""The breaker of a target: when it opens, how long, and the requests that try."""

import pytest

from conveyor.queues.push.circuit_breaker import (
    CLOSED,
    FAILURES,
    FIRST_OPEN_MS,
    HALF_OPEN,
    LONGEST_OPEN_MS,
    OPEN,
    CircuitBreaker,
    CircuitBreakers,
)


def _fail(breaker: CircuitBreaker, now_ms: int, count: int = FAILURES) -> None:
    for _ in range(count):
        breaker.failed(breaker.began(now_ms), now_ms)


def test_closed_breaker_limits_nothing() -> None:
    breaker = CircuitBreaker()
    assert (breaker.state(0), breaker.permits(0), breaker.next_ms(0)) == (CLOSED, None, None)


def test_breaker_opens_after_failures_without_a_success_between() -> None:
    breaker = CircuitBreaker()
    _fail(breaker, 0, FAILURES - 1)
    breaker.succeeded(breaker.began(0))
    _fail(breaker, 0, FAILURES - 1)
    assert breaker.state(0) == CLOSED
    _fail(breaker, 0, 1)
    assert (breaker.state(0), breaker.permits(0), breaker.next_ms(0)) == (OPEN, 0, FIRST_OPEN_MS)


def test_half_open_breaker_lets_one_request_try() -> None:
    breaker = CircuitBreaker()
    _fail(breaker, 0)
    now_ms = FIRST_OPEN_MS
    assert (breaker.state(now_ms), breaker.permits(now_ms)) == (HALF_OPEN, 1)
    period = breaker.began(now_ms)
    assert breaker.permits(now_ms) == 0
    breaker.succeeded(period)
    assert (breaker.state(now_ms), breaker.permits(now_ms)) == (CLOSED, None)


def test_breaker_stays_open_twice_as_long_after_each_try_up_to_a_limit() -> None:
    breaker, now_ms, lengths_ms = CircuitBreaker(), 0, []
    _fail(breaker, now_ms)
    for _ in range(8):
        next_ms = breaker.next_ms(now_ms)
        assert next_ms is not None
        lengths_ms.append(next_ms - now_ms)
        now_ms = next_ms
        _fail(breaker, now_ms, 1)
    assert lengths_ms == [min(FIRST_OPEN_MS << number, LONGEST_OPEN_MS) for number in range(8)]
    now_ms = breaker.next_ms(now_ms) or 0
    breaker.succeeded(breaker.began(now_ms))
    _fail(breaker, now_ms)
    assert breaker.next_ms(now_ms) == now_ms + FIRST_OPEN_MS


def test_requests_of_an_earlier_period_count_no_more() -> None:
    breaker = CircuitBreaker()
    late = breaker.began(0)
    _fail(breaker, 0)
    breaker.failed(late, FIRST_OPEN_MS - 1)
    assert breaker.next_ms(0) == FIRST_OPEN_MS
    trying = breaker.began(FIRST_OPEN_MS)
    breaker.succeeded(late)
    assert breaker.permits(FIRST_OPEN_MS) == 0
    breaker.ended(late)
    assert breaker.permits(FIRST_OPEN_MS) == 0
    breaker.ended(trying)
    assert breaker.permits(FIRST_OPEN_MS) == 1


def test_target_that_asks_for_a_pause_gets_it_in_any_state() -> None:
    breaker = CircuitBreaker()
    breaker.hold(5_000)
    breaker.hold(2_000)
    assert (breaker.permits(4_999), breaker.next_ms(0), breaker.permits(5_000)) == (0, 5_000, None)
    _fail(breaker, 5_000)
    assert breaker.next_ms(5_000) == 5_000 + FIRST_OPEN_MS


@pytest.mark.parametrize("has_succeeded", [True, False])
def test_waiting_subscriptions_are_told_when_a_try_ends(has_succeeded: bool) -> None:
    breaker, told = CircuitBreaker(), list[None]()
    _fail(breaker, 0)
    breaker.changed.listen(told.append)
    period = breaker.began(FIRST_OPEN_MS)
    if has_succeeded:
        breaker.succeeded(period)
    else:
        breaker.ended(period)
    assert told == [None]


def test_subscriptions_with_one_url_share_a_breaker_while_any_uses_it() -> None:
    breakers = CircuitBreakers()
    (first, leave_first), (second, leave_second) = breakers.use("a"), breakers.use("a")
    assert first is second
    assert breakers.use("b")[0] is not first
    leave_first()
    assert breakers.use("a")[0] is first
    leave_second()
    breakers.use("a")[1]()
    breakers.use("a")[1]()
    assert breakers.use("a")[0] is first
