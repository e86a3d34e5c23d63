"""Waiters are called once and in order, and may wait again while they are called."""

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.replication.waiters import OffsetWaiters
from tests.unit.replication.parts import Calls


def refusal() -> RequestError:
    return RequestError(ErrorKind.NOT_LEADER, "")


def test_waiters_below_an_offset_are_released_in_their_order() -> None:
    waiters, calls = OffsetWaiters(), Calls()
    for offset in (1, 2, 3):
        waiters.add(offset, calls.named(str(offset)))
    waiters.release(2)
    assert calls.seen == [("1", None), ("2", None)]
    waiters.release(9)
    waiters.release(9)
    assert calls.seen[2:] == [("3", None)]


def test_a_waiter_for_a_lower_offset_does_not_wait_for_those_before_it() -> None:
    waiters, calls = OffsetWaiters(), Calls()
    for offset in (3, 1, 2, 1):
        waiters.add(offset, calls.named(str(offset)))
    waiters.release(1)
    assert calls.seen == [("1", None), ("1", None)]
    waiters.release(3)
    assert calls.seen[2:] == [("2", None), ("3", None)]


def test_a_waiter_that_fails_the_others_leaves_none_to_be_released() -> None:
    waiters, calls = OffsetWaiters(), Calls()
    waiters.add(1, lambda _: waiters.fail(refusal))
    waiters.add(1, calls)
    waiters.release(1)
    assert calls.seen == [("", ErrorKind.NOT_LEADER)]


def test_a_waiter_that_waits_again_while_it_fails_waits_for_the_next_leader() -> None:
    waiters, calls = OffsetWaiters(), Calls()
    waiters.add(1, lambda _: waiters.add(2, calls))
    waiters.fail(refusal)
    assert calls.seen == []
    waiters.release(2)
    assert calls.seen == [("", None)]


def test_clients_fail_and_other_waiters_go_on() -> None:
    waiters, calls = OffsetWaiters(), Calls()
    waiters.add(1, calls.named("reader"))
    waiters.add(2, calls.named("producer"), True)
    waiters.fail_clients(refusal)
    assert calls.seen == [("producer", ErrorKind.NOT_LEADER)]
    waiters.release(2)
    assert calls.seen[1:] == [("reader", None)]


def test_clients_up_to_an_offset_fail() -> None:
    waiters, calls = OffsetWaiters(), Calls()
    waiters.add(1, calls.named("early"), True)
    waiters.add(2, calls.named("late"), True)
    waiters.fail_clients(refusal, 1)
    assert calls.seen == [("early", ErrorKind.NOT_LEADER)]
    assert waiters.has_clients
    waiters.release(2)
    assert calls.seen[1:] == [("late", None)]
    assert not waiters.has_clients
