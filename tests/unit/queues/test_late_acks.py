"""Acknowledgements after the end of a lease, and the time of a message's first delivery."""

from typing import Any

import pytest

from conveyor.kernel.errors import ErrorKind
from conveyor.kernel.ids import ProducerEpoch, ProducerId, ProducerIdentity
from conveyor.queues.delivery import ended_leases
from conveyor.queues.queue_commands import Acknowledge, Extend, NackMessages, Reject, SeekSubscription, Target
from tests.unit.queues.model import kinds
from tests.unit.queues.stage import SUBSCRIPTION, VISIBILITY_MS, Stage, subscription, target

LOST = [ErrorKind.LEASE_LOST]
PRODUCER = ProducerIdentity(ProducerId(7), ProducerEpoch(0))


def stage_with(count: int = 1, **document: Any) -> Stage:
    stage = Stage(subscription(**document))
    stage.publish_plain(count)
    return stage


def ack_late(stage: Stage, *targets: Target) -> list[ErrorKind | None]:
    return kinds(stage.ask(Acknowledge(subscription=SUBSCRIPTION, targets=targets, accepts_late=True)))


def expired(stage: Stage) -> Target:
    """Lease a message until its lease has expired."""
    lease = target(stage.lease()[0])
    stage.pass_time(VISIBILITY_MS)
    return lease


def test_late_ack_settles_a_message_that_nobody_has_leased_since() -> None:
    stage = stage_with()
    lease = expired(stage)
    assert kinds(stage.ack(lease)) == LOST
    assert ack_late(stage, lease) == [None]
    assert stage.lease_offsets() == []
    assert stage.counts().unsettled == 0
    assert ack_late(stage, lease) == [None]
    stage.restart()
    assert stage.lease_offsets() == []


def test_late_ack_counts_as_an_ack() -> None:
    stage = stage_with()
    ack_late(stage, expired(stage))
    probe = stage.probes[SUBSCRIPTION]
    assert (probe.acknowledged, probe.ack_delays.sum_ms) == (1, VISIBILITY_MS)


def test_late_ack_is_refused_once_the_message_was_leased_again() -> None:
    stage = stage_with()
    first = expired(stage)
    second = expired(stage)
    assert ack_late(stage, first) == LOST
    assert ack_late(stage, second) == [None]


def test_late_ack_is_refused_while_another_consumer_holds_the_message() -> None:
    stage = stage_with()
    first = expired(stage)
    second = target(stage.lease()[0])
    assert ack_late(stage, first) == LOST
    assert kinds(stage.ack(second)) == [None]


def test_late_ack_names_its_lease() -> None:
    stage = stage_with()
    lease = expired(stage)
    assert ack_late(stage, Target(lease.offset)) == LOST
    assert ack_late(stage, Target(lease.offset, (99, 1))) == LOST


def test_ack_after_a_nack_is_refused() -> None:
    stage = stage_with()
    lease = target(stage.lease()[0])
    stage.nack(lease)
    assert ack_late(stage, lease) == LOST
    assert stage.lease_offsets() == [0]


def test_lease_that_was_shortened_to_nothing_has_expired() -> None:
    stage = stage_with()
    lease = target(stage.lease()[0])
    stage.ask(Extend(subscription=SUBSCRIPTION, targets=(lease,), visibility_ms=0))
    stage.pass_time(1)
    assert ack_late(stage, lease) == [None]


def test_late_ack_of_a_dead_letter_is_refused() -> None:
    stage = stage_with(2, max_deliveries=1)
    dying = expired(stage)
    assert ack_late(stage, dying) == LOST
    rejected = target(stage.lease()[0])
    stage.ask(Reject(subscription=SUBSCRIPTION, targets=(rejected,), reason="bad"))
    assert ack_late(stage, rejected) == LOST


@pytest.mark.parametrize("delivery", ["exactly_once"])
def test_exactly_once_delivery_accepts_no_late_ack(delivery: str) -> None:
    stage = stage_with(delivery=delivery)
    assert ack_late(stage, expired(stage)) == LOST


def test_transaction_accepts_no_late_ack() -> None:
    stage = stage_with()
    assert kinds(stage.ack_in_transaction(PRODUCER, expired(stage))) == LOST


def test_ack_after_an_aborted_transaction_is_refused() -> None:
    stage = stage_with()
    lease = target(stage.lease()[0])
    stage.ack_in_transaction(PRODUCER, lease)
    assert ack_late(stage, lease) == LOST
    stage.end_transaction(PRODUCER, commits=False)
    stage.pass_time(1)
    assert ack_late(stage, lease) == LOST


def test_late_ack_is_refused_after_a_seek_or_a_restart() -> None:
    stage = stage_with()
    lease = expired(stage)
    stage.ask(SeekSubscription(subscription=SUBSCRIPTION, offset=0))
    assert ack_late(stage, lease) == LOST
    lease = expired(stage)
    stage.restart()
    assert ack_late(stage, lease) == LOST
    assert stage.lease_offsets() == [0]


def test_late_ack_lets_the_next_message_of_the_key_go() -> None:
    stage = Stage(subscription(ordering="key"))
    stage.publish((b"k", b"", ()), (b"k", b"", ()))
    lease = expired(stage)
    assert ack_late(stage, lease) == [None]
    assert stage.lease_offsets() == [1]


def test_late_ack_of_a_withheld_message_leaves_no_count() -> None:
    """With a backoff of its own, an expired message would be withheld; a released one is."""
    stage = stage_with(2)
    lease = expired(stage)
    assert ack_late(stage, lease) == [None]
    counts = stage.counts()
    assert (counts.withheld, counts.available, counts.unsettled) == (0, 1, 1)


def test_late_and_timely_acks_of_one_request_have_their_own_results() -> None:
    stage = stage_with(2)
    first = expired(stage)
    held = [lease for lease in stage.lease(2) if lease.message.offset != first.offset]
    assert ack_late(stage, first, *map(target, held)) == [*LOST, None]


def test_memory_of_expired_leases_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ended_leases, "MAX_ENDED", 2)
    stage = stage_with(3)
    leases = list(map(target, stage.lease(3)))
    stage.pass_time(VISIBILITY_MS)
    assert ack_late(stage, *leases) == [*LOST, None, None]


def test_lease_states_when_the_message_was_first_delivered() -> None:
    stage = stage_with()
    first_ms = stage.now_ms
    lease = stage.lease()[0]
    assert lease.first_delivered_ms == first_ms
    stage.pass_time(1_000)
    stage.nack(target(lease))
    again = stage.lease()[0]
    assert again.first_delivered_ms == first_ms
    stage.pass_time(VISIBILITY_MS)
    assert stage.lease()[0].first_delivered_ms == first_ms


def test_first_delivery_is_the_first_failure_after_a_restart() -> None:
    stage = stage_with()
    lease = stage.lease()[0]
    stage.pass_time(1_000)
    failed_ms = stage.now_ms
    stage.nack(target(lease))
    stage.pass_time(1_000)
    stage.restart()
    assert stage.lease()[0].first_delivered_ms == failed_ms


def test_lease_that_a_crash_has_ended_leaves_no_first_delivery() -> None:
    stage = stage_with()
    stage.lease()
    stage.pass_time(1_000)
    stage.restart()
    assert stage.lease()[0].first_delivered_ms == stage.now_ms


def test_ended_lease_stands_for_the_current_one_on_demand() -> None:
    stage = stage_with()
    first = expired(stage)
    late: dict[str, Any] = {"subscription": SUBSCRIPTION, "targets": (first,), "accepts_late": True}
    extend = Extend(visibility_ms=3 * VISIBILITY_MS, **late)
    assert kinds(stage.ask(extend)) == [None]
    second = target(stage.lease()[0])
    assert kinds(stage.ask(extend)) == [None]
    stage.pass_time(2 * VISIBILITY_MS)
    assert stage.lease_offsets() == []
    assert kinds(stage.ask(NackMessages(delay_ms=0, **late))) == [None]
    assert kinds(stage.ack(second)) == LOST
    assert kinds(stage.ack(target(stage.lease()[0]))) == [None]
    assert kinds(stage.ask(extend)) == LOST
    beyond = Extend(subscription=SUBSCRIPTION, targets=(Target(9, (1, 1)),), visibility_ms=1, accepts_late=True)
    assert kinds(stage.ask(beyond)) == LOST


def test_command_for_the_current_lease_is_not_repeated() -> None:
    command: dict[str, Any] = {"subscription": SUBSCRIPTION, "targets": (Target(0, (1, 1)),), "visibility_ms": 1}
    assert Extend(**command).is_repeatable
    assert not Extend(**command, accepts_late=True).is_repeatable
