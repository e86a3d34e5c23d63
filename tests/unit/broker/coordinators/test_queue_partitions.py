"""Which partitions have queues, as topics grow and subscriptions are created and deleted."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.coordinators.queue_partition import QueuePartition
from conveyor.broker.produce.outgoing_message import OutgoingMessage
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure, TransientFailure
from conveyor.kernel.ids import LeaderEpoch, TopicPartition
from conveyor.queues.subscription.policy import StartPosition
from conveyor.records.message_attributes import DELAY_MS
from conveyor.replication.partition import Partition
from conveyor.replication.roles import Leader
from tests.callers import CALLER, answer_of
from tests.unit.broker.markers.producers import until
from tests.unit.broker.parts import Storage, running_parts, stored_image

EARLIEST = StartPosition(kind="earliest")


async def publish(broker: BrokerNode, partition: int) -> None:
    await broker.produce.messages.publish(CALLER, "t", [OutgoingMessage(b"payload", partition=partition)])


async def leased(broker: BrokerNode, wait_ms: int = 0) -> list[str]:
    return [lease.message.message_id for lease in await broker.queues.leases.lease(CALLER, "s", 10, wait_ms, None)]


async def test_who_waits_is_given_messages_of_a_partition_that_was_added_meanwhile(broker: BrokerNode) -> None:
    await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
    waiting = asyncio.ensure_future(leased(broker, wait_ms=20_000))
    await asyncio.sleep(0)
    await broker.topics.add_partitions(CALLER, "t", 3, None)
    await publish(broker, 2)
    assert await waiting == ["2-0"]


async def test_topic_without_subscriptions_has_no_queues_loaded(broker: BrokerNode) -> None:
    await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
    await broker.queues.lifecycle.create(CALLER, "t", "other", EARLIEST, {})
    await publish(broker, 0)
    await broker.queues.lifecycle.delete(CALLER, "other")
    assert broker.coordinators.queues.find(TopicPartition("t", 0)) is not None
    await broker.queues.lifecycle.delete(CALLER, "s")
    assert broker.coordinators.queues.find(TopicPartition("t", 0)) is None
    await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
    assert await leased(broker) == ["0-0"]


async def test_subscription_made_while_the_last_is_deleted_has_its_queues(broker: BrokerNode) -> None:
    await broker.queues.lifecycle.create(CALLER, "t", "last", EARLIEST, {})
    await publish(broker, 1)
    await asyncio.gather(
        broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {}), broker.queues.lifecycle.delete(CALLER, "last")
    )
    assert await leased(broker) == ["1-0"]


async def test_policy_that_a_queue_refuses_is_passed_again(broker: BrokerNode, storage: Storage) -> None:
    """The queue's state log has too few in-sync replicas to commit the policy."""
    await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
    state = broker.partitions.table.find("__queue_state.t", 0)
    role = state.term.role
    assert isinstance(role, Leader)
    state.assume(replace(role, min_isr=2))
    with pytest.raises(RequestError, match="in-sync replica"):
        await broker.queues.lifecycle.change(CALLER, "s", {"max_deliveries": 7})
    queue = broker.coordinators.queues.find(TopicPartition("t", 0))
    assert queue is not None
    view = queue.machine.queue(broker.cluster.subscriptions.existing("s").id)
    assert view is not None
    await publish(broker, 0)
    with pytest.raises(RequestError) as refused:
        await leased(broker)
    assert refused.value.kind is ErrorKind.NOT_ENOUGH_REPLICAS
    state.assume(role)
    while view.subscription.policy.max_deliveries != 7:
        await asyncio.sleep(0)
        storage.clock.advance(seconds=5)
    assert await leased(broker) == ["0-0"]


async def test_rates_are_there_when_they_are_first_asked_for(broker: BrokerNode, storage: Storage) -> None:
    await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
    for _ in range(4):
        await publish(broker, 0)
    assert await answer_of(broker.queues.settlements.ack, CALLER, "s", await leased(broker)) == [None] * 4
    storage.clock.advance(seconds=20)
    assert (await broker.queues.statistics.stats(CALLER, "s")).ack_rate == 0.2
    storage.clock.advance(seconds=100)
    assert (await broker.queues.statistics.stats(CALLER, "s")).ack_rate == 0


async def test_queues_and_forwarders_share_the_cache_as_long_as_they_are_there(broker: BrokerNode) -> None:
    limit_bytes = broker.settings.broker.queue_cache_bytes
    await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
    assert broker.coordinators.queue_cache.bytes == limit_bytes // 2
    await broker.topics.create(CALLER, TopicRequest(name="due"))
    await broker.topics.create(CALLER, TopicRequest(name="d", config={"delay.target": "due"}))
    await broker.produce.messages.publish(CALLER, "d", [OutgoingMessage(b"waits", headers=((DELAY_MS, b"1000"),))])
    await broker.queues.delayed_messages.cancel(CALLER, "d", "0-0")
    assert broker.coordinators.queue_cache.bytes == limit_bytes // 3
    await broker.queues.lifecycle.delete(CALLER, "s")
    await broker.topics.delete(CALLER, "d")
    assert broker.coordinators.queue_cache.bytes == limit_bytes


async def test_queues_are_loaded_all_or_none(broker: BrokerNode, storage: Storage) -> None:
    """If one partition cannot be loaded, no other partition is half loaded."""
    await broker.topics.create(CALLER, TopicRequest(name="four", partitions=4))
    broker.partitions.table.find("four", 2).go_offline(StorageFailure("the disk is gone"))
    with pytest.raises(RequestError, match="four-2 is offline: the disk is gone"):
        await broker.queues.lifecycle.create(CALLER, "four", "s", EARLIEST, {})
    assert all(broker.coordinators.queues.find(TopicPartition("four", number)) is None for number in range(4))


async def test_queues_of_a_topic_that_is_deleted_while_they_are_loaded_leave_nothing(broker: BrokerNode) -> None:
    loading = asyncio.ensure_future(broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {}))
    await asyncio.sleep(0)
    await broker.topics.delete(CALLER, "t")
    with pytest.raises(RequestError) as refused:
        await loading
    assert refused.value.kind is ErrorKind.UNKNOWN_TOPIC
    assert [name for name in broker.metadata.image.topics if name.startswith("__")] == []


@pytest.mark.parametrize("turns", range(1, 12))
async def test_a_topic_that_is_made_anew_while_its_queues_are_loaded_has_its_own(
    broker: BrokerNode, turns: int
) -> None:
    loading = asyncio.ensure_future(broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {}))
    for _ in range(turns):
        await asyncio.sleep(0)
    await broker.topics.delete(CALLER, "t")
    await broker.topics.create(CALLER, TopicRequest(name="t", partitions=1))
    await asyncio.gather(loading, return_exceptions=True)
    assert "__queue_state.t" not in broker.metadata.image.topics or len(broker.cluster.subscriptions.all("t")) <= 1
    if not broker.cluster.subscriptions.all("t"):
        await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
    await publish(broker, 0)
    assert await leased(broker) == ["0-0"]


async def test_a_companion_goes_with_its_topic(storage: Storage) -> None:
    """One change deletes both, because the broker may stop right after it."""
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t"))
        await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
        await publish(broker, 0)
        await broker.topics.delete(CALLER, "t")
        assert dict((await stored_image(storage)).topics) == {}
    async with running_parts(storage=storage) as broker:
        assert dict(broker.metadata.image.topics) == {}
        await broker.topics.create(CALLER, TopicRequest(name="t"))
        await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
        await publish(broker, 0)
        assert await leased(broker) == ["0-0"]


async def test_a_cancelled_message_stays_cancelled_though_its_queue_is_loaded_again(broker: BrokerNode) -> None:
    await broker.queues.lifecycle.create(CALLER, "t", "last", EARLIEST, {})
    delayed = OutgoingMessage(b"payload", partition=0, headers=(("conveyor-delay-ms", b"60000"),))
    await broker.produce.messages.publish(CALLER, "t", [delayed])
    await broker.queues.delayed_messages.cancel(CALLER, "t", "0-0")
    await broker.queues.lifecycle.delete(CALLER, "last")
    await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
    assert (await broker.queues.statistics.stats(CALLER, "s")).unsettled == 0


async def test_unloaded_queues_are_told_while_their_topic_is_deleted(broker: BrokerNode) -> None:
    """/readyz may ask at any point of the deletion."""
    await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
    deleting = asyncio.ensure_future(broker.topics.delete(CALLER, "t"))
    while not deleting.done():
        assert broker.coordinators.queues.unloaded().keys() <= {"t"}
        await asyncio.sleep(0)
    await deleting
    assert broker.coordinators.queues.unloaded() == {}


async def test_queue_goes_on_with_messages_that_are_reopened_while_another_queue_is_loaded(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=2))
        await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
        await publish(broker, 1)
        queues, gate = broker.coordinators.queues, asyncio.Event()
        read = queues._read

        async def read_late(partition: Partition, *arguments: Any) -> Any:
            if partition.identity.partition == 0:
                await gate.wait()
            return await read(partition, *arguments)

        monkeypatch.setattr(queues, "_read", read_late)
        await reopen(broker, TopicPartition("__queue_state.t", 0))
        loading = asyncio.create_task(queues.load_topic("t"))
        for _ in range(50):
            await asyncio.sleep(0)
        await reopen(broker, TopicPartition("t", 1))
        gate.set()
        await loading
        assert await leased(broker) == ["1-0"]


async def reopen(broker: BrokerNode, identity: TopicPartition) -> None:
    broker.partitions.table.find(*identity).go_offline(TransientFailure("the disk was full"))
    await broker.partitions.reconciler.reopen(identity)


async def test_machine_of_a_discarded_load_decides_nothing_and_leaves_the_running_one_alone(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=1))
        await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
        queues, identity, gate = broker.coordinators.queues, TopicPartition("t", 0), asyncio.Event()
        begin, begun = queues.begin_subscriptions, list[QueuePartition]()

        async def begin_late(queue: QueuePartition) -> None:
            begun.append(queue)
            if len(begun) == 1:
                await gate.wait()
            await begin(queue)

        monkeypatch.setattr(queues, "begin_subscriptions", begin_late)
        elect_again(broker)
        await until(lambda: bool(begun))
        elect_again(broker)
        await until(lambda: queues.find(identity) is not None)
        running = queues.find(identity)
        assert begun[0].is_stopped
        gate.set()
        for _ in range(20):
            await asyncio.sleep(0)
        assert broker.coordinators.queues.find(identity) is running


def elect_again(broker: BrokerNode) -> None:
    for name in ("t", "__queue_state.t"):
        partition = broker.partitions.table.find(name, 0)
        role = partition.leading().role
        partition.assume(replace(role, epoch=LeaderEpoch(role.epoch + 1)))
    broker.partitions.reconciler.leadership.changed(TopicPartition("t", 0))
    broker.partitions.reconciler.leadership.notify()
