"""Transactions on delayed topics: records wait there for their commit, and then for their time."""

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.produce.outgoing_message import OutgoingMessage
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import TopicPartition
from conveyor.records.message_attributes import DEDUP_ID, DELAY_MS
from conveyor.replication.partition import Partition
from conveyor.replication.transactions import last_stable_offset
from tests.callers import CALLER
from tests.unit.broker.markers.producers import (
    TransactionalClient,
    aborted_offsets,
    initialized,
    is_stable,
    send,
    until,
)
from tests.unit.broker.parts import Storage, running_parts

PLACE = TopicPartition("d", 0)
LATER = (DELAY_MS, b"500")
A = (DEDUP_ID, b"a")


async def create(broker: BrokerNode, **config: str) -> None:
    await broker.topics.create(CALLER, TopicRequest(name="orders", partitions=1))
    await broker.topics.create(CALLER, TopicRequest(name="d", config={"delay.target": "orders", **config}))


@pytest.fixture
async def delaying(broker: BrokerNode) -> BrokerNode:
    await create(broker)
    return broker


async def begun(broker: BrokerNode, name: str = "first") -> TransactionalClient:
    client = await initialized(broker, transactional_id=name)
    await client.add(PLACE)
    return client


def target(broker: BrokerNode) -> Partition:
    return broker.partitions.table.find("orders", 0)


def delayed(broker: BrokerNode) -> Partition:
    return broker.partitions.table.find(*PLACE)


async def at_rest(broker: BrokerNode, count: int) -> list[bytes | None]:
    """Return the target's values once it ends at an offset, and all transactions are decided."""
    await until(lambda: target(broker).term.high_watermark >= count and is_stable(delayed(broker)))
    return [message.value for message in await broker.fetch.browser.browse(CALLER, "orders", 0, 0, 100)]


@pytest.mark.parametrize("commit", [True, False])
async def test_records_are_forwarded_after_the_commit_and_when_they_are_due(
    delaying: BrokerNode, storage: Storage, commit: bool
) -> None:
    client = await begun(delaying)
    first = await client.send(delaying, PLACE, value=b"now")
    await client.send(delaying, PLACE, LATER, value=b"later")
    assert (first.error, first.base_offset) == (None, 0)
    assert last_stable_offset(delayed(delaying)) == 0
    assert target(delaying).log.log_end_offset == 0
    await client.end(commit=commit)
    assert await at_rest(delaying, int(commit)) == ([b"now"] if commit else [])
    storage.clock.advance(ms=500)
    assert await at_rest(delaying, 2 * commit) == ([b"now", b"later"] if commit else [])
    assert aborted_offsets(delayed(delaying)) == ([] if commit else [0])
    await client.add(PLACE)
    await client.send(delaying, PLACE, value=b"next")
    await client.end(commit=True)
    assert (await at_rest(delaying, 2 * commit + 1))[-1] == b"next"


async def test_message_is_cancelled_once_all_earlier_transactions_are_decided(
    delaying: BrokerNode, storage: Storage
) -> None:
    aborted, client = await begun(delaying, "aborted"), await begun(delaying, "open")
    await aborted.send(delaying, PLACE, LATER)
    await aborted.end(commit=False)
    await until(lambda: is_stable(delayed(delaying)))
    await client.send(delaying, PLACE, LATER, value=b"x")
    await client.send(delaying, PLACE, LATER, value=b"y")
    await delaying.produce.messages.publish(CALLER, "d", [OutgoingMessage(value=b"plain", headers=(LATER,))])
    refusals = {0: ErrorKind.MESSAGE_NOT_DELAYED, 2: ErrorKind.COORDINATOR_LOADING, 4: ErrorKind.COORDINATOR_LOADING}
    for offset, kind in refusals.items():
        with pytest.raises(RequestError) as refused:
            await delaying.queues.delayed_messages.cancel(CALLER, "d", f"0-{offset}")
        assert refused.value.kind is kind
    await client.end(commit=True)
    await until(lambda: is_stable(delayed(delaying)))
    for offset in (2, 4):
        await delaying.queues.delayed_messages.cancel(CALLER, "d", f"0-{offset}")
    storage.clock.advance(ms=500)
    assert await at_rest(delaying, 1) == [b"y"]


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
        assert target(broker).log.log_end_offset == 0
        await client.end(commit=commit)
        assert await at_rest(broker, 2 * commit) == ([b"before", b"after"] if commit else [])
    async with running_parts(storage=storage) as broker:
        storage.clock.advance(ms=500)
        assert await at_rest(broker, 3 * commit) == ([b"before", b"after", b"later"] if commit else [])


async def test_id_of_an_open_transaction_in_the_delayed_topic_is_refused(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        await create(broker, **{"dedup.enable": "true"})
        client, other = await begun(broker), await begun(broker, "second")
        await client.send(broker, PLACE, A, value=b"first")
        batch = other.batch(PLACE, A, value=b"second")
        [refused] = await send(broker, [(PLACE, batch)], transactional_id="second")
        assert refused.error is not None
        assert (refused.error.kind, refused.may_be_stored) == (ErrorKind.NOT_ENOUGH_REPLICAS, False)
        await client.end(commit=False)
        await until(lambda: is_stable(delayed(broker)))
        [again] = await send(broker, [(PLACE, batch)], transactional_id="second")
        assert again.error is None
        await other.end(commit=True)
        assert await at_rest(broker, 1) == [b"second"]


async def test_target_has_transactions_of_its_own(delaying: BrokerNode, storage: Storage) -> None:
    """Records are forwarded into the target while a transaction is open there."""
    client = await initialized(delaying, transactional_id="direct")
    place = TopicPartition("orders", 0)
    await client.add(place)
    await client.send(delaying, place, value=b"direct")
    await delaying.produce.messages.publish(CALLER, "d", [OutgoingMessage(value=b"forwarded")])
    await until(lambda: target(delaying).term.high_watermark == 2)
    assert last_stable_offset(target(delaying)) == 0
    await client.end(commit=True)
    await until(lambda: is_stable(target(delaying)))
    assert await at_rest(delaying, 3) == [b"direct", b"forwarded"]
