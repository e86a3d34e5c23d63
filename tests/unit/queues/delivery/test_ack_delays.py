"""The delay from publish to ack: which acks are observed, when, and in which bucket."""

from typing import Any

import pytest

from conveyor.kernel.ids import ProducerEpoch, ProducerId, ProducerIdentity
from conveyor.queues.delivery.ack_delays import DELAY_BOUNDS_MS, AckDelays, total_delays
from conveyor.queues.queue_commands import MoveToDeadLetters, Redeliver, Reject, Release
from tests.unit.queues.stage import SUBSCRIPTION, Stage, subscription, target

PRODUCER = ProducerIdentity(ProducerId(7), ProducerEpoch(0))
NOW_MS = 1_764_000_000_000


def stage_with(count: int = 1, **document: Any) -> Stage:
    stage = Stage(subscription(**document))
    stage.publish_plain(count)
    return stage


def observed(stage: Stage) -> dict[int | None, int]:
    """Return the counts of the buckets with messages, by their bounds."""
    counts = stage.probes[SUBSCRIPTION].ack_delays.counts
    return {bound: count for bound, count in zip((*DELAY_BOUNDS_MS, None), counts, strict=True) if count}


def sum_ms(stage: Stage) -> float:
    return stage.probes[SUBSCRIPTION].ack_delays.sum_ms


@pytest.mark.parametrize(
    ("delay_ms", "bound_ms", "counted_ms"),
    [
        (0, 5, 0),
        (5, 5, 5),
        (6, 10, 6),
        (86_400_000, 86_400_000, 86_400_000),
        (86_400_001, None, 86_400_001),
        (-60_000, 5, 0),
        (NOW_MS + 1, None, NOW_MS),
        (NOW_MS + (1 << 63), None, NOW_MS),
    ],
)
def test_delay_is_counted_in_its_bucket(delay_ms: int, bound_ms: int | None, counted_ms: int) -> None:
    delays = AckDelays()
    delays.observe([NOW_MS - delay_ms], NOW_MS)
    place = len(DELAY_BOUNDS_MS) if bound_ms is None else DELAY_BOUNDS_MS.index(bound_ms)
    assert [index for index, count in enumerate(delays.counts) if count] == [place]
    assert delays.sum_ms == counted_ms


def test_delays_of_several_brokers_are_added_up() -> None:
    here, there = AckDelays(), AckDelays()
    here.observe([NOW_MS - 7, NOW_MS], NOW_MS)
    there.observe([NOW_MS - 8], NOW_MS)
    total = total_delays([here, there])
    assert (total.counts[:3], sum(total.counts), total.sum_ms) == ([1, 2, 0], 3, 15)
    assert total_delays([]) == AckDelays()


def test_ack_is_observed_once() -> None:
    stage = stage_with()
    stage.pass_time(40)
    lease = target(stage.lease()[0])
    assert observed(stage) == {}
    stage.pass_time(20)
    stage.ack(lease, lease)
    stage.pass_time(1_000)
    stage.ack(lease)
    assert (observed(stage), sum_ms(stage)) == ({100: 1}, 60)


def test_each_message_of_a_batch_of_acks_is_observed() -> None:
    stage = stage_with(2)
    stage.pass_time(300)
    stage.publish_plain(1)
    leases = [target(leased) for leased in stage.lease(3)]
    stage.pass_time(7)
    stage.ack(*leases)
    assert (observed(stage), sum_ms(stage)) == ({10: 1, 500: 2}, 621)
    assert stage.probes[SUBSCRIPTION].acknowledged == 3


def test_redelivered_message_counts_from_its_publish() -> None:
    stage = stage_with()
    stage.nack(target(stage.lease()[0]))
    stage.pass_time(2_000)
    assert observed(stage) == {}
    stage.ack(target(stage.lease()[0]))
    assert (observed(stage), sum_ms(stage)) == ({2_500: 1}, 2_000)


def test_leases_that_end_or_are_released_are_not_observed() -> None:
    stage = stage_with(2)
    first, second = (target(leased) for leased in stage.lease(2, visibility_ms=1_000))
    stage.ask(Release(subscription=SUBSCRIPTION, targets=(first,)))
    stage.pass_time(1_000)
    stage.runner.expire()
    stage.ack(second)
    assert observed(stage) == {}


def test_dead_letter_is_not_observed_until_its_redelivery_is_acknowledged() -> None:
    stage = stage_with(2, max_deliveries=1)
    first, second = (target(leased) for leased in stage.lease(2))
    stage.nack(first)
    stage.ask(Reject(subscription=SUBSCRIPTION, targets=(second,), reason="no"))
    stage.ask(MoveToDeadLetters(subscription=SUBSCRIPTION, offsets=(0, 1)))
    assert (stage.counts().dead, observed(stage)) == (2, {})
    stage.ask(Redeliver(subscription=SUBSCRIPTION, offsets=(0,)))
    stage.pass_time(30)
    stage.ack(target(stage.lease()[0]))
    assert (observed(stage), sum_ms(stage)) == ({50: 1}, 30)


def test_delivery_at_most_once_has_no_acks_to_observe() -> None:
    stage = stage_with(delivery="at_most_once")
    stage.lease()
    assert (observed(stage), stage.probes[SUBSCRIPTION].acknowledged) == ({}, 0)


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_ack_in_a_transaction_is_observed_at_its_commit(delivery: str) -> None:
    stage = stage_with(3, delivery=delivery)
    leases = [target(leased) for leased in stage.lease(2)]
    stage.pass_time(40)
    stage.ack_in_transaction(PRODUCER, *leases)
    assert observed(stage) == {}
    stage.pass_time(40)
    stage.end_transaction(PRODUCER, commits=True)
    assert (observed(stage), sum_ms(stage)) == ({100: 2}, 160)


def test_aborted_ack_is_not_observed() -> None:
    stage = stage_with()
    stage.ack_in_transaction(PRODUCER, target(stage.lease()[0]))
    stage.pass_time(40)
    stage.end_transaction(PRODUCER, commits=False)
    assert observed(stage) == {}
    stage.runner.expire()
    stage.pass_time(40)
    stage.ack(target(stage.lease()[0]))
    assert (observed(stage), sum_ms(stage)) == ({100: 1}, 80)


def test_start_begins_at_zero_and_replays_no_ack() -> None:
    stage = stage_with(3)
    stage.ack(target(stage.lease()[0]))
    stage.ack_in_transaction(PRODUCER, target(stage.lease()[0]))
    stage.end_transaction(PRODUCER, commits=True)
    stage.probes.clear()
    stage.restart()
    assert stage.queue.progress.start_offset == 2
    assert observed(stage) == {}


def test_pending_message_of_an_earlier_start_is_observed_once_it_was_looked_at() -> None:
    stage = stage_with(2)
    stage.ack_in_transaction(PRODUCER, *(target(leased) for leased in stage.lease(2)))
    stage.restart()
    stage.publish_plain(1)
    assert stage.lease_offsets() == [2]
    stage.pass_time(40)
    stage.end_transaction(PRODUCER, commits=True)
    assert observed(stage) == {50: 2}


def test_pending_message_of_an_earlier_start_that_was_not_looked_at_is_left_out() -> None:
    stage = stage_with()
    stage.ack_in_transaction(PRODUCER, target(stage.lease()[0]))
    stage.restart()
    stage.end_transaction(PRODUCER, commits=True)
    assert (observed(stage), stage.probes[SUBSCRIPTION].acknowledged) == ({}, 1)


def test_keys_are_released_by_acks() -> None:
    stage = Stage(subscription(ordering="key"))
    stage.publish((b"k", b"a", ()), (b"k", b"b", ()))
    stage.ack(target(stage.lease()[0]))
    assert stage.lease_offsets() == [1]
    assert observed(stage) == {5: 1}
