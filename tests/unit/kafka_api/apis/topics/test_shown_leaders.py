"""A topic is visible before its partitions are open: Metadata waits for that, and descriptions show no leader."""

from typing import Any

import pytest

from conveyor.cluster.image import ClusterImage
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kafka_api.apis.topics import k03_metadata
from conveyor.kafka_api.wire.call import KafkaCall
from tests.callers import CALLER
from tests.unit.kafka_api.client import MemoryClient
from tests.unit.kafka_api.requests import METADATA, request, response

DESCRIBE_TOPIC_PARTITIONS = 75
BY_NAME: dict[str, Any] = {
    "topics": [{"topic_id": None, "name": "new"}],
    "allow_auto_topic_creation": False,
    "include_topic_authorized_operations": False,
}
DESCRIBED: dict[str, Any] = {"topics": [{"name": "new"}], "response_partition_limit": 10, "cursor": None}


async def test_metadata_of_a_new_topic_wait_for_its_leader(client: MemoryClient) -> None:
    """librdkafka keeps an answer without a leader, and does not find the offsets of the topic."""
    for name, asked in (("new", [{"topic_id": None, "name": "new"}]), ("newer", None)):
        leaders = await leaders_while_made(client, name, METADATA, 12, **BY_NAME | {"topics": asked})
        assert leaders == [(1, 0), (1, 0)]


async def test_metadata_that_wait_end_with_their_client(client: MemoryClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that come and go while a large topic is made leave no answers behind, which nobody reads."""
    answered: list[KafkaCall] = []
    monkeypatch.setattr(k03_metadata, "_answer_or_create", answered.append)

    def leave(old: ClusterImage, new: ClusterImage) -> None:
        if "new" not in old.topics:
            client.send(request(METADATA, 12, **BY_NAME))
            client.connection.end()

    client.broker.metadata.listen(leave)
    await client.broker.topics.create(CALLER, TopicRequest(name="new", partitions=1))
    await client.broker.slices.turn()
    assert answered == []


async def test_described_partition_has_no_leader_until_it_is_open(client: MemoryClient) -> None:
    leaders = await leaders_while_made(client, "new", DESCRIBE_TOPIC_PARTITIONS, 0, **DESCRIBED)
    assert leaders == [(-1, 0), (1, 0)]


async def leaders_while_made(
    client: MemoryClient, name: str, api_key: int, version: int, **fields: Any
) -> list[tuple[int, int]]:
    """Ask for a topic when it appears in the image and once it is made. Returns leaders and error codes."""
    asked = request(api_key, version, **fields)

    def ask(old: ClusterImage, new: ClusterImage) -> None:
        if name not in old.topics:
            client.send(asked)

    client.broker.metadata.listen(ask)
    await client.broker.topics.create(CALLER, TopicRequest(name=name, partitions=1))
    client.send(asked)
    leaders = []
    for _ in range(2):
        topics = response(api_key, version, await client.answers.get()).topics
        [partition] = next(topic.partitions for topic in topics if topic.name == name)
        assert list(partition.offline_replicas) == []
        leaders.append((int(partition.leader_id), int(partition.error_code)))
    return leaders
