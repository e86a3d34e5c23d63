"""In a power failure a topic with `flush.policy=os` may lose messages that its subscriptions have settled."""

from conveyor.broker.produce.outgoing_message import OutgoingMessage
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.queues.subscription.policy import StartPosition
from conveyor.records.message_attributes import DELAY_MS
from tests.callers import CALLER, answer_of
from tests.unit.broker.parts import LosesAll, Storage, running_parts

LOSES_ALL = LosesAll()


def messages(*values: bytes) -> list[OutgoingMessage]:
    return [OutgoingMessage(value=value) for value in values]


async def test_messages_in_the_place_of_lost_ones_are_delivered() -> None:
    storage = Storage()
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=1, config={"flush.policy": "os"}))
        await broker.queues.lifecycle.create(CALLER, "t", "s", StartPosition(kind="earliest"), {})
        await broker.produce.messages.publish(CALLER, "t", messages(b"a", b"b", b"c"))
        leases = await broker.queues.leases.lease(CALLER, "s", 3, 0, None)
        assert (
            await answer_of(broker.queues.settlements.ack, CALLER, "s", [lease.ack_id for lease in leases])
            == [None] * 3
        )
        storage.disk = storage.disk.power_cut(LOSES_ALL)
    async with running_parts(storage=storage) as broker:
        await broker.produce.messages.publish(CALLER, "t", messages(b"d"))
        assert [lease.message.value for lease in await broker.queues.leases.lease(CALLER, "s", 3, 0, None)] == [b"d"]
        assert (await broker.queues.statistics.stats(CALLER, "s")).unsettled == 1


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
