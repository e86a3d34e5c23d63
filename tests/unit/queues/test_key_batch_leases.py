"""Leases of several messages of one key: their order, and what happens to the others when one returns."""

from random import Random
from typing import Any

import pytest

from conveyor.kernel.ids import ProducerEpoch, ProducerId, ProducerIdentity
from conveyor.queues.queue_commands import Extend, LeasedMessage, Release
from tests.unit.queues.stage import SUBSCRIPTION, Stage, header, subscription, target

PRODUCER = ProducerIdentity(ProducerId(7), ProducerEpoch(0))


def stage_with(*keys: bytes | None, limit: int = 10, **policy: Any) -> Stage:
    """Return a stage with a message of each of these keys."""
    stage = Stage(subscription(ordering="key", max_in_flight_per_key=limit, **policy))
    stage.publish(*[(key, b"%d" % number, ()) for number, key in enumerate(keys)])
    return stage


def offsets(leases: tuple[LeasedMessage, ...]) -> list[int]:
    return [lease.message.offset for lease in leases]


def test_one_call_takes_several_messages_of_a_key_in_order() -> None:
    stage = stage_with(b"a", b"b", b"a", b"a", b"b")
    assert stage.lease_offsets() == [0, 1, 2, 3, 4]
    assert stage.lease_offsets() == []


def test_limit_of_one_is_the_default() -> None:
    stage = stage_with(b"a", b"a", b"b", limit=1)
    assert stage.lease_offsets() == [0, 2]


def test_call_takes_as_many_of_a_key_as_the_limit_says() -> None:
    stage = stage_with(b"a", b"a", b"a", b"b", b"a", limit=2)
    first = stage.lease(10)
    assert offsets(first) == [0, 1, 3]
    stage.ack(*map(target, first))
    assert stage.lease_offsets() == [2, 4]


def test_next_call_waits_until_the_whole_batch_is_settled() -> None:
    stage = stage_with(*[b"a"] * 4)
    first, second = stage.lease(2)
    assert stage.lease_offsets() == []
    stage.ack(target(second))
    assert stage.lease_offsets() == []
    stage.ack(target(first))
    assert stage.lease_offsets() == [2, 3]


def test_later_leases_of_a_batch_outlive_a_nack_of_an_earlier_one() -> None:
    stage = stage_with(*[b"a"] * 4)
    first, second, third = stage.lease(3)
    stage.nack(target(first))
    assert stage.lease_offsets() == []
    assert stage.ack(target(second)) == (None,)
    assert stage.lease_offsets() == []
    assert stage.ack(target(third)) == (None,)
    again = stage.lease(10)
    assert offsets(again) == [0, 3]
    assert [lease.delivery_count for lease in again] == [2, 1]


def test_later_leases_of_a_batch_outlive_the_expiry_of_an_earlier_one() -> None:
    stage = stage_with(*[b"a"] * 3)
    first, second = stage.lease(2, 1_000)
    extend(stage, second, 60_000)
    stage.pass_time(1_000)
    assert stage.lease_offsets() == []
    assert stage.ack(target(second)) == (None,)
    assert stage.lease_offsets() == [0, 2]
    assert first.delivery_count == 1


def extend(stage: Stage, lease: LeasedMessage, visibility_ms: int) -> None:
    assert stage.ask(Extend(subscription=SUBSCRIPTION, targets=(target(lease),), visibility_ms=visibility_ms)) == (
        None,
    )


def test_batch_that_returns_is_delivered_again_in_order() -> None:
    stage = stage_with(*[b"a"] * 3)
    leases = stage.lease(3)
    for lease in reversed(leases):
        stage.nack(target(lease))
    assert stage.lease_offsets() == [0, 1, 2]


def test_message_in_its_backoff_holds_back_later_ones() -> None:
    stage = stage_with(*[b"a"] * 4)
    first, second, third = stage.lease(3)
    stage.nack(target(second), delay_ms=5_000)
    stage.nack(target(first), target(third))
    assert stage.lease_offsets() == [0]
    stage.pass_time(5_000)
    assert stage.lease_offsets() == []
    stage.pass_time(25_000)
    assert stage.lease_offsets() == [0, 1, 2, 3]


def test_delayed_message_ends_the_batch_of_its_key() -> None:
    stage = Stage(subscription(ordering="key", max_in_flight_per_key=10))
    stage.publish((b"a", b"", ()), (b"a", b"", (header("delay-ms", 5_000),)), (b"a", b"", ()), (b"b", b"", ()))
    leases = stage.lease(10)
    assert offsets(leases) == [0, 3]
    stage.ack(*map(target, leases))
    assert stage.lease_offsets() == []
    stage.pass_time(5_000)
    assert stage.lease_offsets() == [1, 2]


def test_released_batch_is_available_again() -> None:
    stage = stage_with(*[b"a"] * 3)
    leases = stage.lease(2)
    stage.ask(Release(subscription=SUBSCRIPTION, targets=tuple(map(target, leases))))
    assert [lease.delivery_count for lease in stage.lease(10)] == [1, 1, 1]


def test_batch_ends_where_the_reply_is_full() -> None:
    stage = Stage(subscription(ordering="key", max_in_flight_per_key=10))
    stage.publish(*[(b"a", bytes(600), ())] * 3)
    leases = stage.lease(10, max_bytes=1_500)
    assert offsets(leases) == [0, 1]
    assert stage.lease_offsets() == []
    stage.ack(*map(target, leases))
    assert stage.lease_offsets() == [2]


def test_dead_letter_of_a_batch_does_not_hold_back_the_others() -> None:
    stage = stage_with(*[b"a"] * 3, max_deliveries=1)
    first, second = stage.lease(2)
    stage.nack(target(first))
    assert stage.lease_offsets() == []
    stage.ack(target(second))
    assert stage.lease_offsets() == [2]


def test_batch_that_a_transaction_acknowledges_stays_in_flight_over_a_restart() -> None:
    stage = stage_with(*[b"a"] * 4)
    leases = stage.lease(3)
    stage.ack_in_transaction(PRODUCER, *map(target, leases[:2]))
    stage.restart()
    assert stage.lease_offsets() == []
    stage.end_transaction(PRODUCER, commits=True)
    assert stage.lease_offsets() == [2, 3]


def test_batch_of_an_aborted_transaction_returns_in_order() -> None:
    stage = stage_with(*[b"a"] * 3)
    stage.ack_in_transaction(PRODUCER, *map(target, stage.lease(2)))
    stage.restart()
    assert stage.lease_offsets() == []
    stage.end_transaction(PRODUCER, commits=False)
    stage.pass_time(1)
    assert stage.lease_offsets() == [0, 1, 2]


def test_at_most_once_delivers_a_key_in_order() -> None:
    stage = stage_with(*[b"a"] * 3, delivery="at_most_once")
    assert stage.lease_offsets(2) == [0, 1]
    assert stage.lease_offsets() == [2]


def test_counts_and_states_of_a_batch() -> None:
    stage = stage_with(*[b"a"] * 4)
    first, second = stage.lease(2)
    assert [peeked.state.state for peeked in stage.peek()] == ["leased", "leased", "waiting", "waiting"]
    stage.nack(target(first))
    states = [peeked.state for peeked in stage.peek()]
    assert [(state.state, state.delivery_count) for state in states[:2]] == [("waiting", 1), ("leased", 1)]
    assert stage.lease_offsets() == []
    assert stage.counts().available == 0
    stage.ack(target(second))
    assert stage.peek()[0].state.state == "available"


@pytest.mark.parametrize("seed", range(20))
def test_order_of_each_key_holds_under_random_settlements(seed: int) -> None:
    """A lease never delivers a message while an earlier one of its key is neither settled nor in the same lease."""
    chance = Random(seed)
    stage = stage_with(*[chance.choice([b"a", b"b"]) for _ in range(40)], limit=3, max_deliveries=0)
    keys = {peeked.message.offset: peeked.message.key for peeked in stage.peek()}
    settled: set[int] = set()
    held: dict[int, LeasedMessage] = {}
    for _ in range(400):
        if len(settled) == len(keys):
            break
        leases = stage.lease(chance.randrange(1, 6))
        taken: set[int] = set()
        for lease in leases:
            offset, key = lease.message.offset, lease.message.key
            assert not [other for other in held if keys[other] == key and other not in taken]
            earlier = {other for other in keys if keys[other] == key and other < offset}
            assert earlier <= settled | taken
            taken.add(offset)
            held[offset] = lease
        assert all(sum(keys[offset] == key for offset in held) <= 3 for key in (b"a", b"b"))
        for offset in chance.sample(sorted(held), chance.randrange(len(held) + 1)):
            lease = held.pop(offset)
            if chance.random() < 0.5:
                assert stage.ack(target(lease)) == (None,)
                settled.add(offset)
            else:
                stage.nack(target(lease), delay_ms=chance.choice([0, 0, 100]))
        stage.pass_time(chance.choice([0, 50]))
    assert settled == keys.keys()
