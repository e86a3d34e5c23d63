"""Transactions on one broker: from the coordinator's decision to the markers in the partitions."""

import asyncio
import gc

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.partitions.retention import HIGH_WATERMARK
from conveyor.broker.produce.publisher import ACKS_LEADER
from conveyor.broker.produce.verification import TransactionalBatch, Verification, VerifyPartitions
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.http_api.ops.transaction_metrics import transaction_metrics
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ids import TopicPartition
from conveyor.replication.transactions import last_stable_offset
from conveyor.transactions.transaction_value import TransactionState
from tests.callers import CALLER
from tests.unit.broker.markers.producers import (
    EACH_VERSION,
    PLACE,
    aborted_offsets,
    described,
    initialized,
    is_stable,
    send,
    until,
)
from tests.unit.broker.parts import Storage, running_parts

OTHER = TopicPartition("t", 1)


@EACH_VERSION
@pytest.mark.parametrize("commit", [True, False])
async def test_markers_end_a_transaction_in_all_its_partitions(broker: BrokerNode, commit: bool, version: int) -> None:
    client = await initialized(broker, version=version)
    await client.add(PLACE, OTHER)
    for place in (PLACE, OTHER):
        assert (await client.send(broker, place)).error is None
        assert last_stable_offset(broker.partitions.table.find(*place)) == 0
    await client.end(commit=commit)
    for place in (PLACE, OTHER):
        partition = broker.partitions.table.find(*place)
        await until(lambda partition=partition: is_stable(partition))  # type: ignore[misc]
        assert partition.log.log_end_offset == 2
        assert aborted_offsets(partition) == ([] if commit else [0])


@EACH_VERSION
async def test_one_transaction_follows_the_other(broker: BrokerNode, version: int) -> None:
    client = await initialized(broker, version=version)
    for _ in range(3):
        await client.add(PLACE)
        assert (await client.send(broker)).error is None
        assert (await client.send(broker)).error is None
        await client.end(commit=True)
    await until(lambda: is_stable(broker.partitions.table.find(*PLACE)))
    assert broker.partitions.table.find(*PLACE).log.log_end_offset == 9


async def test_the_next_transaction_waits_for_the_markers_of_the_one_before(broker: BrokerNode) -> None:
    client = await initialized(broker)
    for _ in range(3):
        await client.add_once(PLACE)
        assert (await client.send(broker)).error is None
        await client.end(commit=True)
    assert (await described(broker)).state is TransactionState.PREPARE_COMMIT


async def test_the_next_transaction_does_not_wait_long_for_markers(broker: BrokerNode, storage: Storage) -> None:
    client = await initialized(broker)
    await client.add(PLACE)
    assert (await client.send(broker)).error is None
    broker.partitions.table.find(*PLACE).go_offline(StorageFailure("the test says so"))
    await client.end(commit=True)
    adding = asyncio.ensure_future(client.add_once(PLACE))
    await asyncio.sleep(0)
    assert not adding.done()
    storage.clock.advance(seconds=0.1)
    with pytest.raises(RequestError) as refused:
        await adding
    assert refused.value.kind is ErrorKind.CONCURRENT_TRANSACTIONS


@EACH_VERSION
async def test_a_successor_aborts_the_transaction_of_a_zombie_and_fences_it(broker: BrokerNode, version: int) -> None:
    zombie = await initialized(broker, version=version)
    await zombie.add(PLACE)
    assert (await zombie.send(broker)).error is None
    successor = await initialized(broker, version=version)
    assert successor.producer.producer_epoch > zombie.producer.producer_epoch
    refused = (await zombie.send(broker)).error
    assert refused is not None
    assert refused.kind is ErrorKind.INVALID_PRODUCER_EPOCH
    with pytest.raises(RequestError) as fenced:
        await zombie.end(commit=True)
    assert fenced.value.kind is ErrorKind.PRODUCER_FENCED
    await successor.add(PLACE)
    assert (await successor.send(broker)).error is None
    await successor.end(commit=True)
    partition = broker.partitions.table.find(*PLACE)
    await until(lambda: is_stable(partition))
    assert aborted_offsets(partition) == [0]


@EACH_VERSION
async def test_a_transaction_that_takes_too_long_is_aborted(broker: BrokerNode, storage: Storage, version: int) -> None:
    client = await initialized(broker, timeout_ms=1_000, version=version)
    await client.add(PLACE)
    assert (await client.send(broker)).error is None
    partition = broker.partitions.table.find(*PLACE)
    storage.clock.advance(seconds=1.1)
    await until(lambda: is_stable(partition))
    assert aborted_offsets(partition) == [0]
    with pytest.raises(RequestError) as fenced:
        await client.end(commit=True)
    assert fenced.value.kind is ErrorKind.PRODUCER_FENCED


async def test_a_batch_outside_of_the_transaction_is_refused(broker: BrokerNode) -> None:
    client = await initialized(broker)
    await client.add(OTHER)
    refused = (await client.send(broker)).error
    assert refused is not None
    assert refused.kind is ErrorKind.TRANSACTION_ABORTABLE
    assert broker.partitions.table.find(*PLACE).log.log_end_offset == 0


async def test_batches_that_wait_for_the_coordinator_keep_their_order(broker: BrokerNode) -> None:
    client = await initialized(broker)
    await client.add(PLACE)
    first, second, third = client.batch(), client.batch(), client.batch()
    results = await send(broker, [(PLACE, first), (PLACE, second), (PLACE, third)])
    assert [result.base_offset for result in results] == [0, 1, 2]
    [again] = await send(broker, [(PLACE, second)])
    assert (again.error, again.base_offset) == (None, 1)


async def test_batch_that_is_verified_before_a_marker_and_arrives_after_it_is_refused(broker: BrokerNode) -> None:
    """Source: KAFKA-14884."""
    client = await initialized(broker)
    await client.add(PLACE)
    verifications = broker.produce.publisher._verifications
    verify = verifications._verify

    async def late(caller: Caller, request: VerifyPartitions) -> list[RequestError | None]:
        answer = await verify(caller, request)
        await client.end(commit=False)
        await until(lambda: broker.partitions.table.find(*PLACE).log.log_end_offset == 1)
        return answer

    verifications._verify = late  # type: ignore[method-assign]
    [result] = await send(broker, [(PLACE, client.batch())])
    refused = result.error
    assert refused is not None
    assert refused.kind is ErrorKind.NOT_ENOUGH_REPLICAS
    await until(lambda: is_stable(broker.partitions.table.find(*PLACE)))


async def test_verified_batches_are_freed_without_the_collector(broker: BrokerNode) -> None:
    client = await initialized(broker)
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            await client.add(PLACE)
            assert (await client.send(broker)).error is None
            await client.end(commit=True)
            await until(lambda: is_stable(broker.partitions.table.find(*PLACE)))
        left = [each for each in gc.get_objects() if isinstance(each, (TransactionalBatch, Verification))]
        assert left == []
    finally:
        gc.enable()


async def test_only_acks_all_is_accepted(broker: BrokerNode) -> None:
    client = await initialized(broker)
    with pytest.raises(RequestError) as refused:
        await send(broker, [(PLACE, client.batch())], ACKS_LEADER)
    assert refused.value.kind is ErrorKind.INVALID_REQUIRED_ACKS


async def test_compacted_topic_takes_part(broker: BrokerNode) -> None:
    """Its batches are inspected first, because each record needs a key."""
    await broker.topics.create(CALLER, TopicRequest(name="compacted", config={"cleanup.policy": "compact"}))
    place = TopicPartition("compacted", 0)
    client = await initialized(broker)
    for commit in (True, False):
        await client.add(place)
        assert (await client.send(broker, place)).error is None
        await client.end(commit=commit)
    partition = broker.partitions.table.find(*place)
    await until(lambda: is_stable(partition))
    assert aborted_offsets(partition) == [2]


async def test_deletion_above_the_last_stable_offset_does_not_keep_a_transaction_from_ending(
    broker: BrokerNode,
) -> None:
    client = await initialized(broker)
    await client.add(PLACE)
    assert (await client.send(broker)).error is None
    partition = broker.partitions.table.find(*PLACE)
    assert await broker.partitions.retention.delete_records(CALLER, *PLACE, HIGH_WATERMARK, 1_000) == 1
    assert last_stable_offset(partition) == 1
    assert (await client.send(broker)).error is None
    await client.end(commit=True)
    await until(lambda: is_stable(partition))
    assert (last_stable_offset(partition), partition.log.log_end_offset) == (3, 3)


@pytest.mark.parametrize(
    "config",
    [
        {"compression.type": "zstd"},
        {"message.timestamp.type": "LogAppendTime"},
        {"compression.type": "gzip", "message.timestamp.type": "LogAppendTime"},
        {"message.timestamp.before.max.ms": "1000"},
    ],
)
async def test_batches_that_the_broker_changes_or_inspects_stay_in_their_transaction(config: dict[str, str]) -> None:
    async with running_parts() as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", config=config))
        client = await initialized(broker)
        await client.add(PLACE)
        results = await send(broker, [(PLACE, client.batch()), (PLACE, client.batch())])
        assert [result.error for result in results] == [None, None]
        partition = broker.partitions.table.find(*PLACE)
        assert last_stable_offset(partition) == 0
        await client.end(commit=False)
        await until(lambda: is_stable(partition))
        assert aborted_offsets(partition) == [0]


async def test_markers_of_a_deleted_topic_are_done(broker: BrokerNode) -> None:
    client = await initialized(broker)
    await client.add(PLACE)
    await broker.topics.delete(CALLER, "t")
    await client.end(commit=True)
    await client_can_begin_again(broker)


async def client_can_begin_again(broker: BrokerNode) -> None:
    await initialized(broker)
    assert (await described(broker)).state is TransactionState.EMPTY


@EACH_VERSION
async def test_restart_continues_an_open_transaction(version: int) -> None:
    storage = Storage()
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t"))
        client = await initialized(broker, version=version)
        await client.add(PLACE)
        assert (await client.send(broker)).error is None
    async with running_parts(storage=storage) as broker:
        client.asks = broker
        assert (await client.send(broker)).error is None
        await client.end(commit=True)
        partition = broker.partitions.table.find(*PLACE)
        await until(lambda: is_stable(partition))
        assert (partition.log.log_end_offset, aborted_offsets(partition)) == (3, [])


@EACH_VERSION
async def test_restart_aborts_an_open_transaction_in_time(version: int) -> None:
    storage = Storage()
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t"))
        client = await initialized(broker, timeout_ms=1_000, version=version)
        await client.add(PLACE)
        assert (await client.send(broker)).error is None
    async with running_parts(storage=storage) as broker:
        partition = broker.partitions.table.find(*PLACE)

        def is_aborted() -> bool:
            storage.clock.advance(seconds=0.1)
            return is_stable(partition)

        await until(is_aborted)
        assert aborted_offsets(partition) == [0]


@EACH_VERSION
@pytest.mark.parametrize("commit", [True, False])
async def test_restart_sends_missing_markers(commit: bool, version: int) -> None:
    """No client asks the coordinator after the restart."""
    storage = Storage()
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t"))
        client = await initialized(broker, version=version)
        await client.add(PLACE)
        assert (await client.send(broker)).error is None
        for coordinator in broker.coordinators.transactions.list():
            coordinator._sender.stop()
        await client.end(commit=commit)
        state = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
        assert (await described(broker)).state is state
    async with running_parts(storage=storage) as broker:
        partition = broker.partitions.table.find(*PLACE)
        await until(lambda: is_stable(partition))
        assert aborted_offsets(partition) == ([] if commit else [0])


@EACH_VERSION
@pytest.mark.parametrize("commit", [True, False])
async def test_restart_remembers_a_complete_transaction(commit: bool, version: int) -> None:
    storage = Storage()
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t"))
        client = await initialized(broker, version=version)
        await client.add(PLACE)
        assert (await client.send(broker)).error is None
        await client.end(commit=commit)
        complete = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
        await until(lambda: broker.coordinators.transactions.state_counts()[complete] == 1)
    async with running_parts(storage=storage) as broker:
        client.asks = broker
        await client.add(PLACE)
        assert (await client.send(broker)).error is None
        await client.end(commit=commit)
        partition = broker.partitions.table.find(*PLACE)
        await until(lambda: is_stable(partition))
        assert aborted_offsets(partition) == ([] if commit else [0, 2])


async def test_metrics_show_what_is_open(broker: BrokerNode) -> None:
    def measured() -> dict[str, float]:
        return {
            "_".join([sample.name.removeprefix("conveyor_transactions_"), *sample.labels.values()]): sample.value
            for metric in transaction_metrics(broker)
            for sample in metric.samples
        }

    client = await initialized(broker)
    assert (measured()["open"], measured()["ids_empty"], measured()["ids_ongoing"]) == (0, 1, 0)
    await client.add(PLACE, OTHER)
    for place in (PLACE, OTHER):
        assert (await client.send(broker, place)).error is None
    assert (measured()["open"], measured()["ids_empty"], measured()["ids_ongoing"]) == (2, 0, 1)
    await client.end(commit=True)
    await until(lambda: measured()["open"] == 0)
    await until(lambda: measured()["ids_complete_commit"] == 1)
