"""Requests for a partition that another broker leads get NOT_LEADER_OR_FOLLOWER and the leader's endpoint."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from conveyor.cluster.changes import BrokerRegistered, partition_changed, topic_put
from conveyor.cluster.image import PartitionImage
from conveyor.kernel.ids import LeaderEpoch, NodeId, Offset, TopicPartition
from tests.unit.broker.parts import BATCH, NOW_MS, propose, publish
from tests.unit.kafka_api.client import MemoryClient
from tests.unit.kafka_api.requests import FETCH, LIST_OFFSETS, PRODUCE, request, response

NOT_LEADER_OR_FOLLOWER, UNKNOWN_TOPIC_OR_PARTITION, FENCED_LEADER_EPOCH = 6, 3, 74
LEADER_NOT_AVAILABLE, OFFSET_NOT_AVAILABLE = 5, 78
LATEST, EARLIEST, NEWEST = -1, -2, -3
ME, OTHER = NodeId(1), NodeId(2)
OTHER_REGISTERED = BrokerRegistered(node_id=OTHER, host="other.example", port=9093)
LED_ELSEWHERE = PartitionImage(leader=OTHER, leader_epoch=LeaderEpoch(5), replicas=(OTHER, ME), isr=(OTHER, ME))
PRODUCED_BY_NAME, FETCHED_BY_ID = 12, 17


async def hand_over(client: MemoryClient) -> None:
    """Make another broker the leader of `t`."""
    await propose(client.broker, OTHER_REGISTERED, partition_changed("t", 0, LED_ELSEWHERE))


async def produce(client: MemoryClient, number: int = 0) -> Any:
    topics = [{"name": "t", "partition_data": [{"index": number, "records": BATCH}]}]
    client.send(request(PRODUCE, PRODUCED_BY_NAME, acks=-1, timeout=1000, topic_data=topics))
    return response(PRODUCE, PRODUCED_BY_NAME, await client.answers.get())


def fetch(client: MemoryClient, offset: int, epoch: int = -1, wait_ms: int = 0) -> bytes:
    position = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1000, "current_leader_epoch": epoch}
    topic = {"topic_id": client.broker.metadata.image.topics["t"].topic_id, "partitions": [position]}
    limits = {"max_wait": wait_ms, "min_bytes": 1, "max_bytes": 1000}
    return request(FETCH, FETCHED_BY_ID, **limits, topics=[topic], forgotten_topics_data=[])


async def fetched(client: MemoryClient) -> Any:
    return response(FETCH, FETCHED_BY_ID, await client.answers.get())


def refusal(answer: Any) -> tuple[int, int, int]:
    """Return the error code, leader and epoch of the only partition of a response."""
    [topic] = answer.responses
    [partition] = getattr(topic, "partition_responses", None) or topic.partitions
    return int(partition.error_code), partition.current_leader.leader_id, partition.current_leader.leader_epoch


def leaders(answer: Any) -> list[tuple[int, str, int]]:
    return [(node.node_id, node.host, node.port) for node in answer.node_endpoints]


async def test_produce_names_the_leader(client: MemoryClient) -> None:
    await hand_over(client)
    answer = await produce(client)
    assert refusal(answer) == (NOT_LEADER_OR_FOLLOWER, 2, 5)
    assert leaders(answer) == [(2, "other.example", 9093)]


async def test_fetch_names_the_leader(client: MemoryClient) -> None:
    await hand_over(client)
    client.send(fetch(client, 0))
    answer = await fetched(client)
    assert refusal(answer) == (NOT_LEADER_OR_FOLLOWER, 2, 5)
    assert leaders(answer) == [(2, "other.example", 9093)]


async def test_a_fetch_that_waits_is_answered_when_the_leader_hands_over(client: MemoryClient) -> None:
    client.send(fetch(client, 0, wait_ms=60_000))
    assert await client.answered_ids() == []
    await hand_over(client)
    assert refusal(await fetched(client)) == (NOT_LEADER_OR_FOLLOWER, 2, 5)


async def test_a_fetch_with_an_older_epoch_is_fenced(client: MemoryClient) -> None:
    await publish(client.broker, ("t", 0))
    await hand_over(client)
    client.send(fetch(client, 0, epoch=0))
    answer = await fetched(client)
    assert refusal(answer) == (FENCED_LEADER_EPOCH, 2, 5)
    assert leaders(answer) == [(2, "other.example", 9093)]


async def test_only_the_leader_returns_offsets(client: MemoryClient) -> None:
    await hand_over(client)
    partition = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}
    topics = [{"name": "t", "partitions": [partition]}]
    answer = await client.ask(LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=topics)
    assert int(answer.topics[0].partitions[0].error_code) == NOT_LEADER_OR_FOLLOWER


async def test_a_partition_that_is_not_open_yet_is_not_unknown(client: MemoryClient) -> None:
    """A client treats an unknown topic as deleted, but this one opens soon, or another broker leads it."""
    topic = client.broker.topics.existing("t")
    grown = replace(
        topic, partitions=(*topic.partitions, msgspec.structs.replace(LED_ELSEWHERE, replicas=(OTHER,), isr=(OTHER,)))
    )
    await propose(client.broker, OTHER_REGISTERED, topic_put(grown))
    assert client.broker.partitions.table.get(*TopicPartition("t", 1)) is None
    assert refusal(await produce(client, 1))[0] == NOT_LEADER_OR_FOLLOWER
    assert refusal(await produce(client, 2))[0] == UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", [9, 10])
async def test_older_versions_have_no_leader_hints(client: MemoryClient, version: int) -> None:
    await hand_over(client)
    topics = [{"name": "t", "partition_data": [{"index": 0, "records": BATCH}]}]
    answer = await client.ask(PRODUCE, version, acks=-1, timeout=1000, topic_data=topics)
    assert int(answer.responses[0].partition_responses[0].error_code) == NOT_LEADER_OR_FOLLOWER
    assert len(getattr(answer, "node_endpoints", ())) == (1 if version == 10 else 0)


async def listed(client: MemoryClient, version: int, timestamp: int) -> tuple[int, int]:
    partition = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
    topics = [{"name": "t", "partitions": [partition]}]
    answer = await client.ask(LIST_OFFSETS, version, replica_id=-1, isolation_level=0, topics=topics, timeout=1000)
    return int(answer.topics[0].partitions[0].error_code), answer.topics[0].partitions[0].offset


@pytest.mark.parametrize(("version", "code"), [(4, LEADER_NOT_AVAILABLE), (5, OFFSET_NOT_AVAILABLE), (11, 78)])
async def test_a_new_leader_returns_no_end_offset_until_it_knows_the_committed_records(
    client: MemoryClient, version: int, code: int
) -> None:
    await publish(client.broker, ("t", 0))
    await hand_over(client)
    elected = msgspec.structs.replace(LED_ELSEWHERE, leader=ME, leader_epoch=LeaderEpoch(6))
    client.broker.partitions.table.find("t", 0).term.high_watermark = Offset(0)
    await propose(client.broker, partition_changed("t", 0, elected))
    assert await listed(client, version, LATEST) == (code, -1)
    assert await listed(client, version, NOW_MS + 1) == (code, -1)
    assert await listed(client, version, EARLIEST) == (0, 0)
    if version >= 7:
        assert await listed(client, version, NEWEST) == (code, -1)
    alone = msgspec.structs.replace(elected, isr=(ME,), partition_epoch=1)
    await propose(client.broker, partition_changed("t", 0, alone))
    client.broker.partitions.table.find("t", 0).term.high_watermark = Offset(1)
    assert await listed(client, version, LATEST) == (0, 1)
