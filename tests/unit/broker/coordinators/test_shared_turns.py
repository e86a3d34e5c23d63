"""The work that the partitions of a broker have at the same moment takes several turns of the event loop. The tests
count work, not time.
"""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from conveyor.broker import slices as slices_module
from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.coordinators.forwarder import Forwarder
from conveyor.broker.coordinators.queue_partition import QueuePartition
from conveyor.broker.produce.outgoing_message import OutgoingMessage, PublishedMessage
from conveyor.broker.slices import CountsWork
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.queues.subscription.policy import StartPosition
from conveyor.records.message_attributes import DELAY_MS, TTL_MS
from conveyor.records.record import Header
from tests.callers import CALLER
from tests.unit.broker.parts import Storage, running_parts

EARLIEST = StartPosition(kind="earliest")
PARTITIONS, MESSAGES = 12, 5
WAIT_MS = 1_000
TURN_ITEMS = 30
PART_ITEMS = 40
"""More than the work of one partition here, which is done at once."""


@pytest.fixture(autouse=True)
def small_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices_module, "TURN_ITEMS", TURN_ITEMS)


async def queues_of(broker: BrokerNode) -> list[QueuePartition]:
    """Return the queues of a topic `many` with a subscription."""
    await broker.topics.create(CALLER, TopicRequest(name="many", partitions=PARTITIONS))
    await broker.queues.lifecycle.create(CALLER, "many", "s", EARLIEST, {})
    return broker.coordinators.queues.of(broker.topics.existing("many").topic_id)


async def publish(broker: BrokerNode, topic: str, *headers: Header) -> None:
    """Publish messages to all partitions at once."""
    numbers = [number for number in range(PARTITIONS) for _ in range(MESSAGES)]
    messages = [OutgoingMessage(b"%d" % number, headers=headers, partition=number) for number in numbers]
    results = await broker.produce.messages.publish(CALLER, topic, messages)
    assert all(isinstance(result, PublishedMessage) for result in results)


async def work_by_turns(machines: Sequence[CountsWork], is_done: Callable[[], bool]) -> list[list[int]]:
    """Return the work of each machine in each turn, until all is done."""
    before = [machine.work_count for machine in machines]
    turns: list[list[int]] = []
    while not is_done():
        await asyncio.sleep(0)
        after = [machine.work_count for machine in machines]
        turns.append([end - start for start, end in zip(before, after, strict=True)])
        before = after
    return turns


def check_shared(turns: list[list[int]]) -> None:
    """Each turn had little work, and some partitions worked later than others."""
    assert max(map(sum, turns)) < TURN_ITEMS + PART_ITEMS
    assert sum(any(turn) for turn in turns) >= PARTITIONS // 2


async def test_messages_of_many_partitions_are_scanned_in_several_turns() -> None:
    async with running_parts() as broker:
        queues = await queues_of(broker)
        subscription = broker.cluster.subscriptions.existing("s").id

        def is_scanned() -> bool:
            found = [queue.machine.queue(subscription) for queue in queues]
            return all(queue is not None and queue.deliveries.scanned_offset == MESSAGES for queue in found)

        published = asyncio.ensure_future(publish(broker, "many", (TTL_MS, b"%d" % WAIT_MS)))
        check_shared(await work_by_turns(queues, is_scanned))
        await published


async def test_messages_of_many_partitions_that_expire_at_once_are_settled_in_several_turns(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        queues = await queues_of(broker)
        await publish(broker, "many", (TTL_MS, b"%d" % WAIT_MS))
        await until_idle(broker)
        assert sum(queue.machine.settled_offset() for queue in queues) == 0
        asyncio.get_running_loop().call_soon(lambda: storage.clock.advance(ms=WAIT_MS))
        turns = await work_by_turns(queues, lambda: all(queue.machine.settled_offset() == MESSAGES for queue in queues))
        check_shared(turns)


async def test_delayed_messages_of_many_partitions_are_forwarded_in_several_turns(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="due", partitions=PARTITIONS))
        await broker.topics.create(CALLER, TopicRequest(name="later", config={"delay.target": "due"}))
        targets = [broker.partitions.table.find("due", number) for number in range(PARTITIONS)]
        await publish(broker, "later", (DELAY_MS, b"%d" % WAIT_MS))
        forwarders = await all_forwarders(broker)
        await until_idle(broker)
        assert not any(target.log.log_end_offset for target in targets)
        asyncio.get_running_loop().call_soon(lambda: storage.clock.advance(ms=WAIT_MS))
        check_shared(
            await work_by_turns(forwarders, lambda: all(target.log.log_end_offset >= MESSAGES for target in targets))
        )


async def all_forwarders(broker: BrokerNode) -> list[Forwarder]:
    table, forwarders = broker.partitions.table, broker.coordinators.forwarders
    return [await forwarders.loaded(table.find("later", number)) for number in range(PARTITIONS)]


async def until_idle(broker: BrokerNode) -> None:
    """Wait until no machine has work to do for now."""
    for _ in range(1_000):
        await asyncio.sleep(0)
        await broker.partitions.flusher.drain()
    assert not broker.slices._machine_work


async def test_work_of_a_lost_partition_does_not_wait_any_more(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        queues = await queues_of(broker)
        await publish(broker, "many", (TTL_MS, b"%d" % WAIT_MS))
        await until_idle(broker)
        storage.clock.advance(ms=WAIT_MS)
        lost, kept = [queue for queue in queues if queue in broker.slices._machine_work.values()][:2]
        before_counts = lost.work_count, kept.work_count
        broker.coordinators.queues.lost(lost.messages)
        assert lost not in broker.slices._machine_work.values()
        await until_idle(broker)
        assert lost.work_count == before_counts[0]
        assert kept.work_count > before_counts[1]
