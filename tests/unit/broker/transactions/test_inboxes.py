"""Transactions on topics with an inbox: records wait there for their commit, and then for their time."""

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.partitions.active_producers import active_producers
from conveyor.broker.produce.outgoing_message import OutgoingMessage
from conveyor.cluster.image import INBOX, companion
from conveyor.cluster.topic_change import ConfigChange, Operation
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import TopicPartition
from conveyor.records.message_attributes import DEDUP_ID, DELAY_MS
from conveyor.replication.partition import Partition
from conveyor.replication.transactions import last_stable_offset
from tests.unit.broker.parts import Storage, running_parts
from tests.unit.broker.transactions.producers import (
    TransactionalClient,
    aborted_offsets,
    initialized,
    is_stable,
    send,
    until,
)

PLACE = TopicPartition("d", 0)
LATER = (DELAY_MS, b"500")
A = (DEDUP_ID, b"a")


async def create(broker: BrokerNode, **config: str) -> None:
    await broker.topics.create(TopicRequest(name="d", partitions=1, config={"delay.enable": "true", **config}))


@pytest.fixture
async def delaying(broker: BrokerNode) -> BrokerNode:
    await create(broker)
    return broker


async def begun(broker: BrokerNode, name: str = "first") -> TransactionalClient:
    client = await initialized(broker, transactional_id=name)
    await client.add(PLACE)
    return client


def topic(broker: BrokerNode) -> Partition:
    return broker.partitions.find(*PLACE)


def inbox(broker: BrokerNode) -> Partition:
    return broker.partitions.find(companion(INBOX, "d"), 0)


async def at_rest(broker: BrokerNode, count: int) -> list[bytes | None]:
    """Return the topic's values once it ends at an offset, and all transactions are decided."""
    await until(lambda: topic(broker).high_watermark >= count and is_stable(inbox(broker)) and is_stable(topic(broker)))
    return [message.value for message in await broker.message_browser.browse("d", 0, 0, 100)]


@pytest.mark.parametrize("commit", [True, False])
async def test_records_are_forwarded_after_the_commit_and_when_they_are_due(
    delaying: BrokerNode, storage: Storage, commit: bool
) -> None:
    client = await begun(delaying)
    first = await client.send(delaying, PLACE, value=b"now")
    await client.send(delaying, PLACE, LATER, value=b"later")
    assert (first.error, first.base_offset, first.inbox_offset) == (None, -1, 0)
    assert last_stable_offset(inbox(delaying)) == 0
    assert topic(delaying).log.log_end_offset == 0
    await client.end(commit=commit)
    assert await at_rest(delaying, int(commit)) == ([b"now"] if commit else [])
    storage.clock.advance(ms=500)
    assert await at_rest(delaying, 2 * commit) == ([b"now", b"later"] if commit else [])
    assert aborted_offsets(inbox(delaying)) == ([] if commit else [0])
    await client.add(PLACE)
    await client.send(delaying, PLACE, value=b"next")
    await client.end(commit=True)
    assert (await at_rest(delaying, 2 * commit + 1))[-1] == b"next"


async def test_message_of_a_transaction_is_found_once_it_is_committed(delaying: BrokerNode) -> None:
    """A message without a transaction is found at once, whatever is open."""
    aborted, client = await begun(delaying, "aborted"), await begun(delaying, "open")
    await aborted.send(delaying, PLACE, LATER)
    await aborted.end(commit=False)
    await until(lambda: is_stable(inbox(delaying)))
    await client.send(delaying, PLACE, LATER, value=b"x")
    await delaying.message_publisher.publish("d", [OutgoingMessage(value=b"plain", headers=(LATER,))])
    for offset in (0, 2):
        assert await delaying.inboxes.get("d", 0, offset) is None
        with pytest.raises(RequestError) as unknown:
            await delaying.inboxes.cancel("d", 0, offset)
        assert unknown.value.kind is ErrorKind.UNKNOWN_MESSAGE
    assert await value_at(delaying, 3) == b"plain"
    await delaying.inboxes.cancel("d", 0, 3)
    assert await value_at(delaying, 3) is None
    await client.end(commit=True)
    await until(lambda: is_stable(inbox(delaying)))
    assert await value_at(delaying, 2) == b"x"
    await delaying.inboxes.cancel("d", 0, 2)
    assert await value_at(delaying, 2) is None


async def value_at(broker: BrokerNode, offset: int) -> bytes | None:
    message = await broker.inboxes.get("d", 0, offset)
    return None if message is None else message.value


@pytest.mark.parametrize("commit", [True, False])
async def test_restart_keeps_what_is_undecided(storage: Storage, commit: bool) -> None:
    async with running_parts(storage=storage) as broker:
        await create(broker)
        client = await begun(broker)
        await client.send(broker, PLACE, value=b"before")
        await client.send(broker, PLACE, LATER, value=b"later")
    async with running_parts(storage=storage) as broker:
        client.asks = broker
        await client.send(broker, PLACE, value=b"after")
        assert topic(broker).log.log_end_offset == 0
        await client.end(commit=commit)
        assert await at_rest(broker, 2 * commit) == ([b"before", b"after"] if commit else [])
    async with running_parts(storage=storage) as broker:
        storage.clock.advance(ms=500)
        assert await at_rest(broker, 3 * commit) == ([b"before", b"after", b"later"] if commit else [])


async def test_id_of_an_open_transaction_in_the_inbox_is_refused(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        await create(broker, **{"dedup.enable": "true"})
        client, other = await begun(broker), await begun(broker, "second")
        await client.send(broker, PLACE, A, value=b"first")
        batch = other.batch(PLACE, A, value=b"second")
        [refused] = await send(broker, [(PLACE, batch)], transactional_id="second")
        assert refused.error is not None
        assert (refused.error.kind, refused.may_be_stored) == (ErrorKind.NOT_ENOUGH_REPLICAS, False)
        await client.end(commit=False)
        await until(lambda: is_stable(inbox(broker)))
        [again] = await send(broker, [(PLACE, batch)], transactional_id="second")
        assert again.error is None
        await other.end(commit=True)
        assert await at_rest(broker, 1) == [b"second"]


@pytest.mark.parametrize("commit", [True, False])
async def test_transaction_that_was_open_when_delay_was_enabled_ends_in_the_topic_too(
    storage: Storage, commit: bool
) -> None:
    async with running_parts(storage=storage) as broker:
        await create(broker, **{"delay.enable": "false"})
        client = await begun(broker)
        await client.send(broker, PLACE, value=b"direct")
        change = ConfigChange(name="delay.enable", operation=Operation.SET, value="true")
        await broker.topics.change_config("d", [change])
        sent = await client.send(broker, PLACE, value=b"through the inbox")
        assert (sent.error, sent.inbox_offset) == (None, 0)
        other = await begun(broker, "other")
        await other.send(broker, PLACE, value=b"other")
        await other.end(commit=True)
        await client.end(commit=commit)
        await until(lambda: topic(broker).high_watermark == (4 if commit else 3))
        values = await at_rest(broker, 3)
        assert values == ([b"direct", b"through the inbox", b"other"] if commit else [b"other"])
        assert aborted_offsets(topic(broker)) == ([] if commit else [0])


async def test_producers_of_the_inbox_are_described_as_those_of_the_partition(delaying: BrokerNode) -> None:
    client = await begun(delaying)
    await client.send(delaying, PLACE)
    [described] = active_producers(delaying.partitions, *PLACE)
    assert (described.producer_id, described.last_sequence) == (client.producer.producer_id, 0)
