"""Elections, reassignments and removed brokers, requested from a broker that is one of three."""

from typing import Any

import pytest

from conveyor.cluster.image import NO_LEADER, QUEUE_STATE, PartitionImage, companion
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.ids import NodeId
from tests.callers import CALLER
from tests.unit.broker.other_brokers import join, join_two, other_broker, put_partition
from tests.unit.cluster.controller.clusters import partition as assigned
from tests.unit.kafka_api.client import MemoryClient

CREATE_TOPICS, CREATE_PARTITIONS = 19, 37
ELECT_LEADERS, REASSIGN, LIST_REASSIGNMENTS, UNREGISTER = 43, 45, 46, 64
PREFERRED, UNCLEAN = 0, 1
UNKNOWN, INVALID_TOPIC, FACTOR, ASSIGNMENT, INVALID_REQUEST = 3, 17, 38, 39, 42
PREFERRED_NOT_AVAILABLE, NOT_ELIGIBLE, NOT_NEEDED, NO_REASSIGNMENT, NOT_REGISTERED = 80, 83, 84, 85, 102

Results = list[tuple[str, int, int]]


@pytest.fixture
async def client(client: MemoryClient) -> MemoryClient:
    """Yield a client of a broker that is one of three, with topics `t` and `p`."""
    await client.broker.topics.create(CALLER, TopicRequest(name="p", partitions=2))
    await join_two(client.broker)
    return client


def state(client: MemoryClient, topic: str = "t", number: int = 0) -> PartitionImage:
    return client.broker.metadata.image.topics[topic].partitions[number]


async def elected(client: MemoryClient, kind: int, *partitions: tuple[str, int]) -> Results:
    """Return topic, partition and error code of each result. No partitions: request all."""
    topics = [{"topic": topic, "partitions": (number,)} for topic, number in partitions] or None
    answer = await client.ask(ELECT_LEADERS, 2, election_type=kind, topic_partitions=topics, timeout=1000)
    assert int(answer.error_code) == 0
    return [
        (topic.topic, result.partition_id, int(result.error_code))
        for topic in answer.replica_election_results
        for result in topic.partition_result
    ]


async def reassigned(client: MemoryClient, *wanted: tuple[str, int, tuple[int, ...] | None], **more: Any) -> Results:
    topics = [
        {"name": topic, "partitions": [{"partition_index": number, "replicas": replicas}]}
        for topic, number, replicas in wanted
    ]
    answer = await client.ask(REASSIGN, 1, timeout=1000, topics=topics, **more)
    assert int(answer.error_code) == 0
    return [
        (topic.name, result.partition_index, int(result.error_code))
        for topic in answer.responses
        for result in topic.partitions
    ]


async def listed(client: MemoryClient, topics: list[dict[str, Any]] | None = None) -> list[tuple[Any, ...]]:
    answer = await client.ask(LIST_REASSIGNMENTS, 0, timeout=1000, topics=topics)
    return [
        (topic.name, item.partition_index, item.replicas, item.adding_replicas, item.removing_replicas)
        for topic in answer.topics
        for item in topic.partitions
    ]


async def unregistered(client: MemoryClient, node_id: int) -> int:
    return int((await client.ask(UNREGISTER, 0, broker_id=node_id)).error_code)


async def test_the_preferred_replica_is_elected(client: MemoryClient) -> None:
    await put_partition(client.broker, "t", 0, assigned((2, 1, 3), leader=1))
    assert await elected(client, PREFERRED, ("t", 0), ("p", 0)) == [("t", 0, 0), ("p", 0, NOT_NEEDED)]
    assert (state(client).leader, state(client).leader_epoch) == (2, 6)


async def test_all_preferred_replicas_are_elected(client: MemoryClient) -> None:
    await put_partition(client.broker, "t", 0, assigned((2, 1, 3), leader=1))
    await put_partition(client.broker, "p", 1, assigned((3, 1), (1,)))
    assert await elected(client, PREFERRED) == [("t", 0, 0), ("p", 1, PREFERRED_NOT_AVAILABLE)]
    assert state(client).leader == 2


async def test_an_unclean_election_gives_a_leader(client: MemoryClient) -> None:
    await put_partition(client.broker, "t", 0, assigned((2, 3), (2,), NO_LEADER))
    await join(client.broker, other_broker(2, is_fenced=True))
    assert await elected(client, UNCLEAN) == [("t", 0, 0)]
    assert (state(client).leader, state(client).isr) == (3, (3,))


async def test_an_unclean_election_without_live_replicas_fails(client: MemoryClient) -> None:
    await put_partition(client.broker, "t", 0, assigned((2, 3), (2,), NO_LEADER))
    await join(client.broker, other_broker(2, is_fenced=True), other_broker(3, is_fenced=True))
    assert await elected(client, UNCLEAN, ("t", 0)) == [("t", 0, NOT_ELIGIBLE)]


async def test_companions_are_led_with_their_owners_only(client: MemoryClient) -> None:
    name = companion(QUEUE_STATE, "t")
    await client.broker.topics.ensure_companion(QUEUE_STATE, "t")
    assert await elected(client, PREFERRED, (name, 0)) == [(name, 0, INVALID_TOPIC)]
    assert await reassigned(client, (name, 0, (2,))) == [(name, 0, INVALID_TOPIC)]
    await reassigned(client, ("t", 0, (2,)))
    assert [topic for topic, *_ in await listed(client)] == ["t"]


async def test_a_reassignment_is_listed_until_it_is_cancelled(client: MemoryClient) -> None:
    assert await listed(client) == []
    assert await reassigned(client, ("t", 0, (2, 3)), ("p", 7, (2,))) == [("t", 0, 0), ("p", 7, UNKNOWN)]
    in_progress = ("t", 0, (2, 3, 1), (2, 3), (1,))
    assert await listed(client) == [in_progress]
    requested: list[dict[str, Any]] = [
        {"name": "t", "partition_indexes": (0, 5, -1)},
        {"name": "nothing", "partition_indexes": (0,)},
    ]
    assert await listed(client, requested) == [in_progress]
    assert await listed(client, [{"name": "p", "partition_indexes": (0, 1)}]) == []
    assert await reassigned(client, ("t", 0, None)) == [("t", 0, 0)]
    assert (await listed(client), state(client).replicas) == ([], (1,))


async def test_a_reassignment_within_the_isr_completes_at_once(client: MemoryClient) -> None:
    await put_partition(client.broker, "t", 0, assigned((1, 2, 3)))
    assert await reassigned(client, ("t", 0, (3, 2))) == [("t", 0, 0)]
    assert (state(client).replicas, state(client).leader) == ((3, 2), 3)


async def test_reassignments_of_one_topic_are_answered_in_order(client: MemoryClient) -> None:
    results = await reassigned(client, ("p", 1, (2,)), ("p", 0, None), ("t", 0, (9,)), ("p", 0, (3,)))
    assert results == [("p", 1, 0), ("p", 0, NO_REASSIGNMENT), ("t", 0, ASSIGNMENT), ("p", 0, 0)]


async def test_the_number_of_replicas_may_be_fixed(client: MemoryClient) -> None:
    fixed = {"allow_replication_factor_change": False}
    assert await reassigned(client, ("t", 0, (1, 2)), **fixed) == [("t", 0, FACTOR)]
    assert await reassigned(client, ("t", 0, (2,)), **fixed) == [("t", 0, 0)]
    assert await reassigned(client, ("t", 0, (2, 3)), **fixed) == [("t", 0, FACTOR)]
    assert await reassigned(client, ("t", 0, (3,)), ("t", 0, None), **fixed) == [("t", 0, 0), ("t", 0, 0)]
    assert state(client).replicas == (1,)


async def test_only_stopped_brokers_without_replicas_are_removed(client: MemoryClient) -> None:
    await put_partition(client.broker, "t", 0, assigned((1, 2, 3)))
    assert [await unregistered(client, node) for node in (1, 3, 9)] == [
        INVALID_REQUEST,
        INVALID_REQUEST,
        NOT_REGISTERED,
    ]
    await join(client.broker, other_broker(3, is_fenced=True))
    assert await unregistered(client, 3) == INVALID_REQUEST
    await put_partition(client.broker, "t", 0, assigned((1, 2)))
    assert await unregistered(client, 3) == 0
    assert NodeId(3) not in client.broker.metadata.image.brokers


async def created(client: MemoryClient, **wanted: Any) -> int:
    topic = {"name": "new", "num_partitions": -1, "replication_factor": -1, "assignments": [], "configs": []}
    answer = await client.ask(CREATE_TOPICS, 7, topics=[topic | wanted], timeout=1000, validate_only=False)
    [result] = answer.topics
    if not result.error_code:
        assert result.num_partitions == len(client.broker.topics.existing("new").partitions)
        assert result.replication_factor == len(state(client, "new").replicas)
    return int(result.error_code)


async def grown(client: MemoryClient, count: int, *replicas: tuple[int, ...]) -> int:
    assignments = [{"broker_ids": brokers} for brokers in replicas] or None
    wanted = {"name": "new", "count": count, "assignments": assignments}
    answer = await client.ask(CREATE_PARTITIONS, 3, topics=[wanted], timeout=1000, validate_only=False)
    return int(answer.results[0].error_code)


async def test_topics_are_replicated_as_requested(client: MemoryClient) -> None:
    assert await created(client, num_partitions=3, replication_factor=4) == FACTOR
    assert await created(client, num_partitions=3, replication_factor=3) == 0
    leaders = {partition.leader for partition in client.broker.topics.existing("new").partitions}
    assert leaders == {2, 3}, "broker 1 leads the other topics"
    assert await grown(client, 4) == 0
    assert len(state(client, "new", 3).isr) == 3


async def test_topics_are_assigned_as_requested(client: MemoryClient) -> None:
    def assignments(*replicas: tuple[int, ...]) -> list[dict[str, Any]]:
        return [{"partition_index": number, "broker_ids": brokers} for number, brokers in enumerate(replicas)]

    assert await created(client, assignments=assignments((3, 1), (2,))) == ASSIGNMENT
    assert await created(client, assignments=assignments((3, 1), (2, 3))) == 0
    assert [partition.replicas for partition in client.broker.topics.existing("new").partitions] == [(3, 1), (2, 3)]
    assert await grown(client, 3, (1,)) == ASSIGNMENT
    assert await grown(client, 3, (1, 2)) == 0
    assert state(client, "new", 2).leader == 1


async def test_replicas_on_fenced_brokers_are_not_in_sync(client: MemoryClient) -> None:
    await join(client.broker, other_broker(2, is_fenced=True))
    assert await created(client, assignments=[{"partition_index": 0, "broker_ids": (2,)}]) == ASSIGNMENT
    assert await created(client, assignments=[{"partition_index": 0, "broker_ids": (2, 3)}]) == 0
    assert (state(client, "new").leader, state(client, "new").isr) == (3, (3,))
