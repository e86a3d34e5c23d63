"""The simulation finds bugs in the delivery of messages by HTTP POST."""

import pytest

from conveyor.broker.answers import ignored
from conveyor.broker.queues.pushing import push_delivery
from conveyor.broker.queues.pushing.push_secrets import PushSecrets
from conveyor.broker.queues.pushing.pusher import Pusher
from conveyor.queues.delivery.ordering import KeyOrder
from conveyor.queues.push.circuit_breaker import CircuitBreaker
from conveyor.queues.push.concurrency_limit import ConcurrencyLimit
from conveyor.queues.push.push_target import PushTarget
from conveyor.queues.push.push_verdict import Settlement, Verdict
from conveyor.queues.queue_commands import LeasedMessage
from tests.simulation.seeds import Found, Plant, troubled

SEEDS = 20


def acknowledge_whatever_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    def settle(self: Pusher, target: PushTarget, leases: list[LeasedMessage], verdict: Verdict) -> None:
        plain(self, target, leases, verdict._replace(settlement=Settlement.ACK))

    plain = Pusher._settle
    monkeypatch.setattr(Pusher, "_settle", settle)


def acknowledge_before_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(self: Pusher, leases: list[LeasedMessage]) -> None:
        names, caller = [lease.ack_id for lease in leases], self._target.owner.caller
        self._tools.settlements.ack(caller, self._subscription.name, names, ignored)
        plain(self, leases)

    plain = Pusher._begin
    monkeypatch.setattr(Pusher, "_begin", begin)


def forget_requests_that_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConcurrencyLimit, "free_count", property(lambda self: self.limit))


def name_each_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[object] = []

    def new_id(topic_id: object, messages: object) -> str:
        attempts.append(messages)
        return f"msg_{len(attempts)}"

    monkeypatch.setattr(push_delivery, "request_id", new_id)


def sign_by_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PushSecrets, "read", lambda *_: ())


def send_messages_of_a_key_together(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin_call(self: KeyOrder, limit: int) -> None:
        plain(self, 3)

    plain = KeyOrder.begin_call
    monkeypatch.setattr(KeyOrder, "begin_call", begin_call)


def stay_open_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing wakes the pusher when the breaker would let a request through."""
    monkeypatch.setattr(CircuitBreaker, "next_ms", lambda *_: None)


PLANTED: dict[Plant, Found] = {
    acknowledge_whatever_is_answered: Found(0, {"PushedInOrder", "EveryMessagePushed"}, troubled("push")),
    acknowledge_before_the_answer: Found(0, {"PushedInOrder", "EveryMessagePushed"}, troubled("push")),
    forget_requests_that_are_open: Found(0, {"PushedWithinConcurrency"}, troubled("push")),
    name_each_attempt: Found(0, {"OneIdForAllAttempts"}, troubled("push")),
    send_messages_of_a_key_together: Found(0, {"PushedInOrder"}, troubled("push")),
    sign_by_nothing: Found(0, {"SignedByTheSecret"}, troubled("push")),
    stay_open_for_ever: Found(2, {"EveryMessagePushed"}, troubled("push")),
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    PLANTED[plant].check(SEEDS)
