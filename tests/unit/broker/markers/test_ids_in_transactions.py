"""Message ids in transactions: an id counts once its transaction is committed, and never if it is aborted. Until then,
another producer's message with the id is refused.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from threading import Event
from typing import Any

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.produce import deduplication
from conveyor.broker.produce.outgoing_message import OutgoingMessage, PublishedMessage
from conveyor.broker.produce.publisher import ACKS_ALL, Published
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import LeaderEpoch, TopicPartition
from conveyor.records.batch import TRANSACTIONAL
from conveyor.records.checked_batch import own_batch
from conveyor.records.message_attributes import DEDUP_ID
from conveyor.records.record import encode_batch
from conveyor.replication.partition import Partition
from tests.callers import CALLER
from tests.unit.broker.markers.producers import TransactionalClient, initialized, is_stable, send, until
from tests.unit.broker.parts import NOW_MS, Storage, running_parts

ONCE = TopicPartition("once", 0)
A = (DEDUP_ID, b"a")
B = (DEDUP_ID, b"b")


@pytest.fixture
async def once(broker: BrokerNode) -> BrokerNode:
    await create(broker)
    return broker


async def create(broker: BrokerNode, **config: str) -> None:
    await broker.topics.create(
        CALLER, TopicRequest(name="once", partitions=1, config={"dedup.enable": "true", **config})
    )


async def begun(broker: BrokerNode, name: str = "first") -> TransactionalClient:
    client = await initialized(broker, transactional_id=name)
    await client.add(ONCE)
    return client


async def end(broker: BrokerNode, client: TransactionalClient, *, commit: bool) -> None:
    """End the only open transaction, and wait for its marker."""
    await client.end(commit=commit)
    await until(lambda: is_stable(broker.partitions.table.find(*ONCE)))


def produce(broker: BrokerNode, *ids: bytes, **producer: int) -> "asyncio.Future[Sequence[Published]]":
    """Produce a batch without a transaction."""
    batch = encode_batch([(NOW_MS, None, b"plain", ((DEDUP_ID, each),)) for each in ids], **producer)
    done: asyncio.Future[Sequence[Published]] = asyncio.get_running_loop().create_future()
    broker.produce.publisher.publish(CALLER, [("once", 0, batch)], ACKS_ALL, done.set_result)
    return done


async def publish(broker: BrokerNode, dedup_id: bytes = b"a") -> PublishedMessage | RequestError:
    message = OutgoingMessage(value=b"rest", headers=((DEDUP_ID, dedup_id),), partition=0)
    [result] = await broker.produce.messages.publish(CALLER, "once", [message])
    return result


def records_count(broker: BrokerNode) -> int:
    return broker.partitions.table.find(*ONCE).log.log_end_offset


async def test_republish_after_an_abort_is_not_lost(once: BrokerNode) -> None:
    client = await begun(once)
    assert (await client.send(once, ONCE, A)).error is None
    await end(once, client, commit=False)
    await client.add(ONCE)
    again = await client.send(once, ONCE, A)
    assert (again.error, again.duplicates, again.base_offset) == (None, {}, 2)
    await end(once, client, commit=False)
    [plain] = await produce(once, b"a")
    assert (plain.error, plain.duplicates, plain.base_offset) == (None, {}, 4)


async def test_id_of_a_committed_transaction_is_known(once: BrokerNode) -> None:
    client = await begun(once)
    await client.send(once, ONCE, A)
    await end(once, client, commit=True)
    [plain] = await produce(once, b"a", b"b")
    assert (plain.base_offset, plain.duplicates) == (2, {0: 0})
    other = await begun(once, "second")
    result = await other.send(once, ONCE, B)
    assert (result.error, result.duplicates) == (None, {0: 3})
    await end(once, other, commit=True)


async def test_batches_between_two_markers_do_not_look_at_all_open_transactions(
    once: BrokerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    is_open = deduplication._is_open

    def counted(partition: Partition, producer_id: int, offset: int) -> bool:
        looks.append(producer_id)
        return is_open(partition, producer_id, offset)

    first, second = await begun(once), await begun(once, "second")
    await first.send(once, ONCE, A)
    await second.send(once, ONCE, B)
    monkeypatch.setattr(deduplication, "_is_open", counted)
    for number in range(50):
        await produce(once, b"new %d" % number)
    assert len(looks) <= 2
    await first.end(commit=True)
    await until(lambda: records_count(once) == 53)
    [again] = await produce(once, b"a")
    assert again.duplicates == {0: 0}
    assert len(looks) <= 4
    await end(once, second, commit=False)


async def test_id_that_comes_twice_in_a_transaction_is_stored_once(once: BrokerNode) -> None:
    client = await begun(once)
    await client.send(once, ONCE, A)
    assert (await client.send(once, ONCE, A)).duplicates == {0: 0}
    assert (await client.send(once, ONCE, B)).duplicates == {}
    await end(once, client, commit=True)


def is_refused(result: Published) -> bool:
    error = result.error
    return error is not None and error.kind is ErrorKind.NOT_ENOUGH_REPLICAS and not result.may_be_stored


@pytest.mark.parametrize("commit", [True, False])
async def test_another_producer_is_refused_until_the_transaction_has_ended(once: BrokerNode, commit: bool) -> None:
    client = await begun(once)
    await client.send(once, ONCE, A)
    [refused] = await produce(once, b"a")
    assert is_refused(refused)
    assert "open transaction of producer" in str(refused.error)
    rest = await publish(once)
    assert isinstance(rest, RequestError)
    assert rest.kind is ErrorKind.NOT_ENOUGH_REPLICAS
    [beside] = await produce(once, b"b")
    assert beside.base_offset == 1
    assert (await client.send(once, ONCE)).error is None
    assert records_count(once) == 3
    await end(once, client, commit=commit)
    [result] = await produce(once, b"a")
    published = await publish(once)
    assert result.error is None
    assert isinstance(published, PublishedMessage)
    assert (result.base_offset, published.offset) == ((0, 0) if commit else (4, 4))
    assert published.duplicate


async def test_another_transaction_is_refused_and_goes_on(once: BrokerNode) -> None:
    holder, client = await begun(once), await begun(once, "second")
    await holder.send(once, ONCE, A)
    first, second = client.batch(ONCE, A), client.batch(ONCE, B)
    assert is_refused((await send(once, [(ONCE, first)], transactional_id="second"))[0])
    assert is_refused((await send(once, [(ONCE, second)], transactional_id="second"))[0])
    await holder.end(commit=True)
    await until(lambda: records_count(once) == 2)
    [result] = await send(once, [(ONCE, first)], transactional_id="second")
    assert (result.error, result.duplicates) == (None, {0: 0})
    [result] = await send(once, [(ONCE, second)], transactional_id="second")
    assert (result.error, result.base_offset) == (None, 3)
    await end(once, client, commit=True)


@pytest.mark.parametrize("is_new", [True, False])
async def test_later_batches_of_a_producer_do_not_overtake_a_refused_one(once: BrokerNode, is_new: bool) -> None:
    client = await begun(once)
    await client.send(once, ONCE, A)
    if not is_new:
        assert (await produce(once, b"x", producer_id=9_000, producer_epoch=0, base_sequence=0))[0].error is None
    count = records_count(once)
    batches = [
        (dedup_id, {"producer_id": 9_000, "producer_epoch": 0, "base_sequence": sequence + (not is_new)})
        for sequence, dedup_id in enumerate((b"a", b"b", b"c"))
    ]
    for dedup_id, producer in batches:
        [refused] = await produce(once, dedup_id, **producer)
        assert refused.error is not None
        assert refused.error.kind is ErrorKind.NOT_ENOUGH_REPLICAS
    assert records_count(once) == count
    await end(once, client, commit=False)
    places = [(await produce(once, dedup_id, **producer))[0].base_offset for dedup_id, producer in batches]
    assert places == [count + 1, count + 2, count + 3]


async def test_producer_with_a_new_epoch_does_not_repeat_a_refused_batch(once: BrokerNode) -> None:
    client = await begun(once)
    await client.send(once, ONCE, A)
    assert is_refused((await produce(once, b"a", producer_id=9_000, producer_epoch=0, base_sequence=5))[0])
    assert is_refused((await produce(once, b"b", producer_id=9_000, producer_epoch=0, base_sequence=6))[0])
    [result] = await produce(once, b"b", producer_id=9_000, producer_epoch=1, base_sequence=0)
    assert (result.error, result.base_offset) == (None, 1)
    await end(once, client, commit=False)


async def test_first_refused_batch_of_a_producer_is_the_one_with_the_lowest_sequence(once: BrokerNode) -> None:
    """Its earlier batch may have been refused for another reason, so that the broker does not expect it."""
    client = await begun(once)
    await client.send(once, ONCE, A)
    assert is_refused((await produce(once, b"a", producer_id=9_000, producer_epoch=0, base_sequence=1))[0])
    assert is_refused((await produce(once, b"a", producer_id=9_000, producer_epoch=0, base_sequence=0))[0])
    assert is_refused((await produce(once, b"b", producer_id=9_000, producer_epoch=0, base_sequence=1))[0])
    [result] = await produce(once, b"b", producer_id=9_000, producer_epoch=0, base_sequence=0)
    assert (result.error, result.base_offset) == (None, 1)
    await end(once, client, commit=False)


@pytest.mark.parametrize("commit", [True, False])
async def test_restart_rebuilds_provisional_ids(storage: Storage, commit: bool) -> None:
    async with running_parts(storage=storage) as broker:
        await create(broker)
        client = await begun(broker)
        await client.send(broker, ONCE, A)
    async with running_parts(storage=storage) as broker:
        client.asks = broker
        assert is_refused((await produce(broker, b"a"))[0])
        assert (await client.send(broker, ONCE, A)).duplicates == {0: 0}
        await end(broker, client, commit=commit)
        assert (await produce(broker, b"a"))[0].base_offset == (0 if commit else 3)
    async with running_parts(storage=storage) as broker:
        assert (await produce(broker, b"a"))[0].base_offset == (0 if commit else 3)


@pytest.mark.parametrize("commit", [True, False])
async def test_marker_that_is_appended_while_the_index_is_loaded_counts(storage: Storage, commit: bool) -> None:
    async with running_parts(storage=storage) as broker:
        await create(broker)
        client = await begun(broker)
        await client.send(broker, ONCE, A)
    async with running_parts(storage=storage) as broker:
        client.asks = broker
        held = HeldThreads()
        broker.produce.publisher._dedup_indexes._threads = held
        waiting = produce(broker, b"a")
        await until(lambda: held.is_asked)
        await end(broker, client, commit=commit)
        held.released.set()
        assert (await waiting)[0].base_offset == (0 if commit else 2)
        held.threads.shutdown()


class HeldThreads(Executor):
    """Threads whose work does not begin before it is released."""

    def __init__(self) -> None:
        self.is_asked = False
        self.released = Event()
        self.threads = ThreadPoolExecutor(1)

    def submit(self, work: Any, /, *arguments: Any, **named: Any) -> "Future[Any]":
        self.is_asked = True

        def later() -> Any:
            self.released.wait()
            return work(*arguments, **named)

        return self.threads.submit(later)


async def test_new_leader_epoch_reads_provisional_ids_again(once: BrokerNode) -> None:
    client = await begun(once)
    await client.send(once, ONCE, A)
    assert is_refused((await produce(once, b"a"))[0])
    partition = once.partitions.table.find(*ONCE)
    assert partition.leader_term is not None
    partition.assume(replace(partition.term.role, epoch=LeaderEpoch(partition.term.role.epoch + 1)))
    [beside] = await produce(once, b"b")
    assert beside.base_offset == 1
    assert is_refused((await produce(once, b"a"))[0])
    await end(once, client, commit=False)
    assert (await produce(once, b"a"))[0].duplicates == {}


@pytest.mark.parametrize("begins_again", [True, False])
async def test_batch_whose_transaction_ends_while_a_thread_inspects_it_is_refused(
    once: BrokerNode, begins_again: bool
) -> None:
    """The epoch of the next transaction may be the same."""
    client = await begun(once)
    await client.send(once, ONCE, B)
    held = HeldThreads()
    once.produce.publisher._inspected_appends._threads = held
    late = asyncio.create_task(client.send(once, ONCE, A, value=bytes(100_000)))
    await until(lambda: held.is_asked)
    await end(once, client, commit=False)
    if begins_again:
        await client.add(ONCE)
        batch = encode_batch(
            [(NOW_MS, None, b"next", ())] * 2, attributes=TRANSACTIONAL, base_sequence=1,
            producer_id=client.producer.producer_id, producer_epoch=client.producer.producer_epoch,
        )  # fmt: skip
        once.partitions.table.find(*ONCE).append(own_batch(batch), NOW_MS)
    held.released.set()
    refused = (await late).error
    assert refused is not None
    assert refused.kind is ErrorKind.NOT_ENOUGH_REPLICAS
    held.threads.shutdown()


@pytest.mark.parametrize("restarts", [True, False])
async def test_ids_of_a_topic_without_dedup_enable_follow_the_transaction_too(storage: Storage, restarts: bool) -> None:
    """Kafka's producers get what they send; messages of REST are always compared."""
    async with running_parts(storage=storage) as broker:
        await create(broker, **{"dedup.enable": "false"})
        await publish(broker, b"x")
        client = await begun(broker)
        await client.send(broker, ONCE, A)
        await end(broker, client, commit=False)
        await client.add(ONCE)
        await client.send(broker, ONCE, B)
        await end(broker, client, commit=True)
        if not restarts:
            await check_outcomes(broker)
    if restarts:
        async with running_parts(storage=storage) as broker:
            await check_outcomes(broker)


async def check_outcomes(broker: BrokerNode) -> None:
    for dedup_id, duplicate in ((b"a", False), (b"b", True), (b"a", True)):
        result = await publish(broker, dedup_id)
        assert isinstance(result, PublishedMessage)
        assert result.duplicate is duplicate
