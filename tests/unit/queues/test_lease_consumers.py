"""The state of a leased message names the client that has leased it, and nobody once the lease has ended."""

from conveyor.kernel.access.caller import Caller
from conveyor.kernel.ids import ProducerEpoch, ProducerId, ProducerIdentity
from conveyor.queues.queue_commands import Consumer, Extend, LeasedMessage, LeaseMessages, Release
from tests.callers import ALICE, BOB
from tests.unit.queues.stage import SUBSCRIPTION, VISIBILITY_MS, Stage, subscription, target

PRODUCER = ProducerIdentity(ProducerId(7), ProducerEpoch(0))


def lease(stage: Stage, caller: Caller | None, client_id: str = "", count: int = 1) -> list[LeasedMessage]:
    command = LeaseMessages(
        subscription=SUBSCRIPTION,
        count=count,
        max_bytes=1 << 20,
        visibility_ms=VISIBILITY_MS,
        caller=caller,
        client_id=client_id,
    )
    return stage.ask(command)


def consumers(stage: Stage) -> list[Consumer | None]:
    return [peeked.state.consumer for peeked in stage.peek()]


def stage_with(count: int) -> Stage:
    stage = Stage(subscription())
    stage.publish_plain(count)
    return stage


def test_each_lease_names_its_own_consumer() -> None:
    stage = stage_with(5)
    lease(stage, ALICE, "worker-1", 2)
    lease(stage, BOB)
    lease(stage, None)
    alice = Consumer("User:alice", "worker-1", "192.0.2.7")
    assert consumers(stage) == [alice, alice, Consumer("User:bob", "", "192.0.2.8"), None, None]


def test_extended_lease_keeps_its_consumer_and_an_ended_one_has_none() -> None:
    stage = stage_with(3)
    leases = lease(stage, ALICE, "a", 3)
    one, two, three = map(target, leases)
    stage.ask(Extend(subscription=SUBSCRIPTION, targets=(one,), visibility_ms=10 * VISIBILITY_MS))
    stage.ask(Release(subscription=SUBSCRIPTION, targets=(two,)))
    stage.nack(three)
    assert consumers(stage) == [Consumer("User:alice", "a", "192.0.2.7"), None, None]
    stage.pass_time(10 * VISIBILITY_MS)
    assert consumers(stage) == [None, None, None]


def test_next_consumer_takes_the_place_of_the_first() -> None:
    stage = stage_with(1)
    lease(stage, ALICE)
    stage.pass_time(VISIBILITY_MS)
    lease(stage, BOB)
    assert consumers(stage) == [Consumer("User:bob", "", "192.0.2.8")]


def test_pending_message_names_its_consumer_until_a_crash() -> None:
    """A lease is not stored, so a machine that is loaded again knows the pending message but not who leased it."""
    stage = stage_with(1)
    (leased,) = lease(stage, ALICE, "a")
    stage.ack_in_transaction(PRODUCER, target(leased))
    assert consumers(stage) == [Consumer("User:alice", "a", "192.0.2.7")]
    stage.crash()
    assert [(peeked.state.state, peeked.state.consumer) for peeked in stage.peek()] == [("pending", None)]
