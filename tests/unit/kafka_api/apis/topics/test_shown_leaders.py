"""A topic is visible before its partitions are open: until then clients see no leader, and ask again."""

from typing import Any

from conveyor.cluster.image import ClusterImage
from conveyor.cluster.topic_creation import TopicRequest
from tests.unit.kafka_api.client import MemoryClient
from tests.unit.kafka_api.requests import METADATA, request, response

DESCRIBE_TOPIC_PARTITIONS = 75
LEADER_NOT_AVAILABLE = 5
BY_NAME: dict[str, Any] = {
    "topics": [{"topic_id": None, "name": "new"}],
    "allow_auto_topic_creation": False,
    "include_topic_authorized_operations": False,
}
DESCRIBED: dict[str, Any] = {"topics": [{"name": "new"}], "response_partition_limit": 10, "cursor": None}


async def test_partition_has_no_leader_until_it_is_open(client: MemoryClient) -> None:
    metadata = request(METADATA, 12, **BY_NAME)
    described = request(DESCRIBE_TOPIC_PARTITIONS, 0, **DESCRIBED)

    def ask(old: ClusterImage, new: ClusterImage) -> None:
        client.send(metadata, described)

    client.broker.metadata.listen(ask)
    await client.broker.topics.create(TopicRequest(name="new", partitions=1))
    client.send(metadata, described)
    leaders, errors = [], []
    for api_key, version in [(METADATA, 12), (DESCRIBE_TOPIC_PARTITIONS, 0)] * 2:
        [topic] = response(api_key, version, await client.answers.get()).topics
        [partition] = topic.partitions
        leaders.append(int(partition.leader_id))
        errors.append(int(partition.error_code))
        assert list(partition.offline_replicas) == []
    assert leaders == [-1, -1, 1, 1]
    assert errors == [LEADER_NOT_AVAILABLE, 0, 0, 0]
