"""The state of a settled message: when and how it was settled, and after how many deliveries."""

from collections.abc import Sequence
from typing import Any

from conveyor.kernel.ids import ProducerEpoch, ProducerId, ProducerIdentity
from conveyor.queues.delivery.inspection import message_state
from conveyor.queues.queue_commands import (
    Cancel,
    DropDeadLetters,
    MessageState,
    MoveToDeadLetters,
    Redeliver,
    Reject,
    SeekSubscription,
)
from conveyor.records.record import Header
from tests.unit.queues.stage import SUBSCRIPTION, Stage, header, subscription, target

PRODUCER = ProducerIdentity(ProducerId(7), ProducerEpoch(0))


def published(*headers: Sequence[Header], **policy: Any) -> Stage:
    """A stage with a message for each list of headers."""
    stage = Stage(subscription(**policy))
    stage.publish(*[(None, b"", found) for found in headers or ((),)])
    return stage


def state_of(stage: Stage, offset: int = 0) -> MessageState:
    message = stage.source.get(offset)
    assert message is not None
    return message_state(stage.queue, message, stage.now_ms)


def acked_ms(stage: Stage) -> int:
    stage.ack(*map(target, stage.lease(10)))
    return stage.now_ms


def test_acknowledged_message_shows_when_and_at_which_delivery() -> None:
    stage = published((), ())
    stage.nack(*map(target, stage.lease(1)))
    stage.pass_time(1_000)
    settled_ms = acked_ms(stage)
    stage.pass_time(5_000)
    assert [state_of(stage, offset) for offset in (0, 1)] == [
        MessageState("acknowledged", 2, settled_ms=settled_ms),
        MessageState("acknowledged", 1, settled_ms=settled_ms),
    ]


def test_message_that_is_settled_with_its_delivery_counts_it() -> None:
    stage = published(delivery="at_most_once")
    stage.lease(1)
    assert state_of(stage) == MessageState("acknowledged", 1, settled_ms=stage.now_ms)


def test_message_of_a_transaction_is_settled_when_it_commits() -> None:
    stage = published()
    stage.ack_in_transaction(PRODUCER, *map(target, stage.lease()))
    stage.pass_time(700)
    stage.end_transaction(PRODUCER, commits=True)
    committed_ms = stage.now_ms
    assert state_of(stage) == MessageState("acknowledged", 1, settled_ms=committed_ms)
    stage.pass_time(5_000)
    stage.restart()
    assert state_of(stage) == MessageState("acknowledged", 1, settled_ms=committed_ms)


def test_filtered_and_expired_messages_were_not_delivered() -> None:
    stage = published((("wanted", b"0"),), (header("ttl-ms", 10),), filter='headers["wanted"] != "0"')
    stage.pass_time(10)
    stage.lease(10)
    assert state_of(stage, 0) == MessageState("filtered", 0, settled_ms=stage.now_ms)
    expired = state_of(stage, 1)
    assert (expired.state, expired.delivery_count, expired.settled_ms) == ("expired", 0, stage.now_ms)


def test_dead_letter_shows_when_it_was_moved_and_dropped() -> None:
    stage = published()
    stage.nack(*map(target, stage.lease()))
    leased = tuple(map(target, stage.lease()))
    stage.ask(Reject(subscription=SUBSCRIPTION, targets=leased, reason="bad"))
    stage.pass_time(10)
    stage.ask(MoveToDeadLetters(subscription=SUBSCRIPTION, offsets=(0,)))
    assert state_of(stage) == MessageState("dead", 2, settled_ms=stage.now_ms)
    stage.pass_time(10)
    stage.ask(DropDeadLetters(subscription=SUBSCRIPTION, offsets=(0,)))
    assert state_of(stage) == MessageState("dropped", None, settled_ms=stage.now_ms)


def test_dead_letter_that_is_delivered_again_counts_from_one() -> None:
    stage = published()
    stage.ask(Reject(subscription=SUBSCRIPTION, targets=tuple(map(target, stage.lease())), reason="bad"))
    stage.ask(MoveToDeadLetters(subscription=SUBSCRIPTION, offsets=(0,)))
    stage.ask(Redeliver(subscription=SUBSCRIPTION, offsets=(0,)))
    assert state_of(stage).settled_ms is None
    stage.pass_time(10)
    assert state_of(stage) == MessageState("available")
    settled_ms = acked_ms(stage)
    assert state_of(stage) == MessageState("acknowledged", 1, settled_ms=settled_ms)


def test_cancelled_message_shows_when_it_was_cancelled() -> None:
    stage = published((header("delay-ms", 1_000),))
    stage.ask(Cancel(offset=0))
    assert state_of(stage).settled_ms == stage.now_ms


def test_restart_knows_what_was_settled_since_the_last_snapshot() -> None:
    stage = published((), ())
    stage.ack(*map(target, stage.lease(1)))
    stage.snapshot()
    stage.pass_time(10)
    settled_ms = acked_ms(stage)
    assert state_of(stage, 0).settled_ms == settled_ms - 10
    stage.pass_time(10)
    stage.restart()
    assert state_of(stage, 0) == MessageState("acknowledged", None)
    assert state_of(stage, 1) == MessageState("acknowledged", 1, settled_ms=settled_ms)


def test_seek_settles_without_a_time() -> None:
    stage = published((), ())
    acked_ms(stage)
    stage.ask(SeekSubscription(subscription=SUBSCRIPTION, offset=0))
    stage.ask(SeekSubscription(subscription=SUBSCRIPTION, offset=1))
    assert [state_of(stage, offset) for offset in (0, 1)] == [
        MessageState("acknowledged", None),
        MessageState("available"),
    ]


def test_old_settlements_are_forgotten() -> None:
    stage = Stage(subscription())
    stage.publish_plain(1_100)
    for leased in stage.lease(1_100):
        if leased.message.offset % 2:
            stage.ack(target(leased))
    assert state_of(stage, 1) == MessageState("acknowledged", None)
    assert state_of(stage, 1_099).settled_ms == stage.now_ms
