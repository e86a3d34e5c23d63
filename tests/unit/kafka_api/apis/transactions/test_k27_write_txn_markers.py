"""WriteTxnMarkers and DescribeProducers: an administrator ends a hanging transaction (KIP-664)."""

from dataclasses import replace
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from kio.schema.errors import ErrorCode

from conveyor.cluster.image import TRANSACTIONS_TOPIC, TopicImage
from conveyor.kernel.ids import LeaderEpoch, TopicId
from conveyor.records.batch import TRANSACTIONAL
from conveyor.records.checked_batch import own_batch
from conveyor.records.record import encode_batch
from conveyor.records.transaction_marker import TransactionMarker, encode_marker
from conveyor.replication.transactions import last_stable_offset
from tests.unit.broker.parts import NOW_MS
from tests.unit.kafka_api.client import MemoryClient

PRODUCER_ID, EPOCH = 7, 3


def begin(client: MemoryClient, *, epoch: int = EPOCH) -> int:
    """Append a batch of a transaction that no coordinator knows. Returns its offset."""
    partition = client.broker.partitions.table.find("t", 0)
    attributes = {"attributes": TRANSACTIONAL, "producer_id": PRODUCER_ID, "producer_epoch": epoch}
    batch = own_batch(encode_batch([(NOW_MS, None, b"value", ())], base_sequence=0, **attributes))
    return partition.append(batch, NOW_MS).first_offset


async def producer(client: MemoryClient) -> Any:
    answer = await client.ask(61, 0, topics=[{"name": "t", "partition_indexes": (0,)}])
    [described] = answer.topics[0].partitions[0].active_producers
    return described


async def abort(client: MemoryClient, version: int, *topics: str, **fields: int) -> list[ErrorCode]:
    """Abort the producer's transaction in partition 0 of topics."""
    marker = {"producer_id": PRODUCER_ID, "producer_epoch": EPOCH, "coordinator_epoch": 0, "transaction_result": False}
    places = [{"name": topic, "partition_indexes": (0,)} for topic in topics]
    answer = await client.ask(27, version, markers=[marker | {"topics": places} | fields])
    [result] = answer.markers
    assert (result.producer_id, [topic.name for topic in result.topics]) == (PRODUCER_ID, list(topics))
    return [partition.error_code for topic in result.topics for partition in topic.partitions]


@pytest.mark.parametrize("version", [1, 2])
async def test_hanging_transaction_is_found_and_aborted(client: MemoryClient, version: int) -> None:
    begun = begin(client)
    hanging = await producer(client)
    assert (hanging.current_txn_start_offset, hanging.producer_epoch, hanging.coordinator_epoch) == (begun, EPOCH, -1)
    assert last_stable_offset(client.broker.partitions.table.find("t", 0)) == begun
    results = await abort(client, version, "__transaction_state", "t", "nothing")
    assert results == [ErrorCode.invalid_topic_exception, ErrorCode.none, ErrorCode.unknown_topic_or_partition]
    ended = await producer(client)
    assert (ended.current_txn_start_offset, ended.coordinator_epoch) == (-1, 0)
    assert last_stable_offset(client.broker.partitions.table.find("t", 0)) == begun + 2


async def test_old_marker_does_not_end_the_transaction_of_a_successor(client: MemoryClient) -> None:
    begun = begin(client, epoch=EPOCH + 1)
    assert await abort(client, 2, "t") == [ErrorCode.invalid_producer_epoch]
    assert await abort(client, 2, "t", producer_epoch=EPOCH + 1, transaction_version=2) == [
        ErrorCode.invalid_producer_epoch
    ]
    assert (await producer(client)).current_txn_start_offset == begun


def give_coordinators_epochs(client: MemoryClient, *epochs: int) -> None:
    image = client.broker.metadata.image
    [partition] = image.topics["t"].partitions[:1]
    partitions = tuple(msgspec.structs.replace(partition, leader_epoch=LeaderEpoch(epoch)) for epoch in epochs)
    topic = TopicImage(name=TRANSACTIONS_TOPIC, topic_id=TopicId(uuid4()), partitions=partitions)
    client.broker.metadata.image = replace(image, topics={**image.topics, TRANSACTIONS_TOPIC: topic})


async def test_marker_cannot_fence_a_coordinator_of_a_lower_epoch(client: MemoryClient) -> None:
    give_coordinators_epochs(client, 9, 2)
    begun = begin(client)
    assert await abort(client, 2, "t", coordinator_epoch=9) == [ErrorCode.invalid_request]
    assert await abort(client, 2, "t", coordinator_epoch=3) == [ErrorCode.invalid_request]
    assert (await producer(client)).current_txn_start_offset == begun
    assert await abort(client, 2, "t", coordinator_epoch=2) == [ErrorCode.none]


async def test_marker_may_have_the_epoch_that_the_partition_knows(client: MemoryClient) -> None:
    give_coordinators_epochs(client, 9, 2)
    marker = TransactionMarker(producer_id=PRODUCER_ID, producer_epoch=EPOCH - 1, coordinator_epoch=8, commits=True)
    client.broker.partitions.table.find("t", 0).append(own_batch(encode_marker(marker, NOW_MS)), NOW_MS)
    begin(client)
    assert await abort(client, 2, "t", coordinator_epoch=9) == [ErrorCode.invalid_request]
    assert await abort(client, 2, "t", coordinator_epoch=(await producer(client)).coordinator_epoch) == [ErrorCode.none]
