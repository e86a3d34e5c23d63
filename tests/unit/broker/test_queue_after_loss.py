"""In a power failure a topic with `flush.policy=os` may lose messages that its subscriptions have settled."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.coordinators import queue_partitions
from conveyor.broker.produce.outgoing_message import OutgoingMessage
from conveyor.cluster.controller.elections import ElectionRequest
from conveyor.cluster.controller.partition_transition import Election
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import RequestError, TransientFailure
from conveyor.queues.subscription.policy import StartPosition
from conveyor.records.message_attributes import DELAY_MS
from conveyor.replication.trimming import delete_records
from tests.callers import CALLER, answer_of
from tests.unit.broker.parts import LosesAll, Storage, running_parts
from tests.unit.broker.replicas.brokers import BrokerCluster

LOSES_ALL = LosesAll()


def messages(*values: bytes) -> list[OutgoingMessage]:
    return [OutgoingMessage(value=value) for value in values]


async def publish(broker: BrokerNode, *values: bytes) -> None:
    published = await broker.produce.messages.publish(CALLER, "t", messages(*values))
    assert [message for message in published if isinstance(message, Exception)] == []


async def publish_when_online(broker: BrokerNode, value: bytes) -> None:
    while True:
        [result] = await broker.produce.messages.publish(CALLER, "t", messages(value))
        if not isinstance(result, RequestError):
            return
        await asyncio.sleep(0.001)


async def leased(broker: BrokerNode) -> list[bytes | None]:
    leases = await broker.queues.leases.lease(CALLER, "s", 100, 0, None)
    return [lease.message.value for lease in leases]


async def settle_all(broker: BrokerNode) -> list[bytes | None]:
    """Return the messages that were delivered, and are settled now."""
    leases = await broker.queues.leases.lease(CALLER, "s", 100, 0, None)
    assert {*await answer_of(broker.queues.settlements.ack, CALLER, "s", [lease.ack_id for lease in leases])} == {None}
    return [lease.message.value for lease in leases]


async def unsettled(broker: BrokerNode) -> int:
    return (await broker.queues.statistics.stats(CALLER, "s")).unsettled


async def create(broker: BrokerNode, flush_policy: str = "os") -> None:
    await broker.topics.create(CALLER, TopicRequest(name="t", partitions=1, config={"flush.policy": flush_policy}))
    await broker.queues.lifecycle.create(CALLER, "t", "s", StartPosition(kind="earliest"), {})


async def give_up(broker: BrokerNode) -> None:
    """Begin a lost log again."""
    election = ElectionRequest(topic="t", partition=0, election=Election.UNCLEAN)
    assert await broker.topics.operations.elect(CALLER, [election]) == [None]


async def settled_then_lost(storage: Storage) -> None:
    """Settle messages, then lose them with the power."""
    async with running_parts(storage=storage) as broker:
        await create(broker)
        await publish(broker, *[b"old-%d" % number for number in range(10)])
        await settle_all(broker)
        storage.disk = storage.disk.power_cut(LOSES_ALL)


def keep_from_scanning(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let no queue be loaded until the function is called that is returned."""
    gate, scan = threading.Event(), queue_partitions._scan

    def scan_later(*arguments: object) -> None:
        gate.wait(20)
        scan(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(queue_partitions, "_scan", scan_later)
    return gate.set


async def test_messages_in_the_place_of_lost_ones_are_delivered() -> None:
    storage = Storage()
    await settled_then_lost(storage)
    async with running_parts(storage=storage) as broker:
        await publish(broker, b"new")
        assert await leased(broker) == [b"new"]
        assert await unsettled(broker) == 1


@pytest.mark.parametrize("is_killed", [True, False])
async def test_messages_in_the_place_of_lost_ones_are_delivered_after_another_start(
    is_killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start comes before the queue is loaded, while the log has grown already."""
    storage = Storage()
    await settled_then_lost(storage)
    with monkeypatch.context() as patch:
        go_on = keep_from_scanning(patch)
        async with running_parts(storage=storage) as broker:
            await publish(broker, b"first", b"second")
            if is_killed:
                storage.disk = storage.disk.process_crash()
            go_on()
    async with running_parts(storage=storage) as broker:
        await publish(broker, b"third")
        assert await settle_all(broker) == [b"first", b"second", b"third"]
    async with running_parts(storage=storage) as broker:
        await publish(broker, b"fourth")
        assert await leased(broker) == [b"fourth"]


async def test_messages_in_the_place_of_lost_ones_are_delivered_after_the_log_is_opened_again() -> None:
    """The log goes offline for a passing reason, and comes back without its end. A producer waits for it."""
    storage, values = Storage(), [b"new %d" % number for number in range(5)]
    async with running_parts(storage=storage) as broker:
        await create(broker)
        await publish(broker, b"1", b"2", b"3")
        await settle_all(broker)
        partition = broker.partitions.table.find("t", 0)
        storage.disk.open(f"logs/t-0/{0:020}.log").lose(0)
        partition.go_offline(TransientFailure("the disk is full"))
        reopening = asyncio.create_task(broker.partitions.reconciler.reopen(partition.identity))
        for value in values:
            await publish_when_online(broker, value)
        await reopening
        assert await leased(broker) == values
        assert broker.partitions.table.find("t", 0).log.leader_epochs.entries == ((1, 0),)


def test_only_replica_in_a_cluster_begins_an_epoch_after_a_loss() -> None:
    """As above: no other broker has the records, so the log is opened as it is."""
    cluster, values = BrokerCluster(2, **{"topics.min_insync_replicas": 1}), [b"new %d" % number for number in range(5)]
    one = cluster.brokers[0]
    cluster.create(replicas=(1,), config={"flush.policy": "os"})
    one.run(one.node.queues.lifecycle.create(CALLER, "t", "s", StartPosition(kind="earliest"), {}))
    for value in (b"1", b"2", b"3"):
        one.run(publish_when_online(one.node, value))
    one.run(settle_all(one.node))
    before = one.partition()
    one.disk.open(f"logs/t-0/{0:020}.log").lose(0)
    before.go_offline(TransientFailure("the disk is full"))
    one.task(one.node.partitions.reconciler.reopen(before.identity))
    for value in values:
        one.run(publish_when_online(one.node, value))
    assert one.run(leased(one.node)) == values
    assert one.partition().term.epoch == before.term.epoch + 1
    cluster.stop()


async def test_messages_settled_before_a_loss_stay_settled_if_they_are_not_lost() -> None:
    storage = Storage()
    async with running_parts(storage=storage) as broker:
        await create(broker)
        await publish(broker, b"kept-1", b"kept-2")
        await settle_all(broker)
    async with running_parts(storage=storage) as broker:
        await publish(broker, b"lost-1", b"lost-2")
        await settle_all(broker)
        storage.disk = storage.disk.power_cut(LOSES_ALL)
    async with running_parts(storage=storage) as broker:
        assert broker.partitions.table.find("t", 0).log.log_end_offset == 2
        await publish(broker, b"new")
        assert await leased(broker) == [b"new"]


async def test_queue_begins_again_with_a_log_that_was_given_up() -> None:
    storage = Storage()
    async with running_parts(storage=storage) as broker:
        await create(broker, "ack")
        await publish(broker, b"old-1", b"old-2", b"old-3")
        await settle_all(broker)
    storage.disk.remove_tree("logs/t-0")
    async with running_parts(storage=storage) as broker:
        await give_up(broker)
        await publish(broker, b"new-1", b"new-2")
        assert await leased(broker) == [b"new-1", b"new-2"]


async def test_snapshot_says_which_messages_it_is_about() -> None:
    storage = Storage()
    async with running_parts(storage=storage) as broker:
        await create(broker)
        await publish(broker, b"old-1", b"old-2")
        await settle_all(broker)
        [queue] = await broker.coordinators.queues.load_topic("t")
        snapshot_offset = queue.append_applied(queue.machine.snapshot())
        assert snapshot_offset is not None
        queue.partition.write()
        await broker.partitions.flusher.drain()
        delete_records(queue.partition, snapshot_offset).run()
        storage.disk = storage.disk.power_cut(LOSES_ALL)
    for value in (b"new-1", b"new-2"):
        async with running_parts(storage=storage) as broker:
            await publish(broker, value)
    async with running_parts(storage=storage) as broker:
        assert await leased(broker) == [b"new-1", b"new-2"]


async def test_what_is_learnt_since_the_start_is_kept_when_queues_are_loaded_again() -> None:
    storage = Storage()
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=1))
        await broker.queues.lifecycle.create(CALLER, "t", "s", StartPosition(kind="earliest"), {})
        await broker.produce.messages.publish(
            CALLER, "t", [OutgoingMessage(value=b"late", headers=((DELAY_MS, b"60000"),))]
        )
        await broker.queues.delayed_messages.cancel(CALLER, "t", "0-0")
        await broker.queues.lifecycle.delete(CALLER, "s")
        await broker.queues.lifecycle.create(CALLER, "t", "s", StartPosition(kind="earliest"), {})
        storage.clock.advance(seconds=61)
        assert await broker.queues.leases.lease(CALLER, "s", 1, 0, None) == []
