"""DescribeTopicPartitions (key 75): topics and their partitions in pages (KIP-966). An empty list requests all."""

from typing import Any

from conveyor.broker.topics.topic_page import Cursor, TopicSlice, topic_page
from conveyor.cluster.image import NO_LEADER, TopicImage
from conveyor.cluster.topic_decisions import missing_topic
from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.apis.topics.k03_metadata import TOPIC_OPERATIONS, described_partition, failed_topic
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import RequestError

_MAX_PARTITIONS = 2000
"""Kafka's max.request.partition.size.limit."""


def handle(call: KafkaCall) -> None:
    request = call.request
    names = [topic.name for topic in request.topics]
    cursor = request.cursor
    start = None if cursor is None else Cursor(cursor.topic_name, cursor.partition_index)
    limit = max(1, min(request.response_partition_limit, _MAX_PARTITIONS))
    try:
        page = topic_page(call.broker.metadata.image, names or None, start, limit)
    except RequestError as error:
        return call.answer({"topics": [failed_topic(error, name) for name in names], "next_cursor": None})
    following = page.following
    next_cursor = None if following is None else {"topic_name": following[0], "partition_index": following[1]}
    call.answer({"topics": [_topic(call, part) for part in page.slices], "next_cursor": next_cursor})


def _topic(call: KafkaCall, topic_slice: TopicSlice) -> dict[str, Any]:
    topic = topic_slice.topic
    if topic is None:
        missing = failed_topic(missing_topic(topic_slice.name), topic_slice.name)
        return missing | {"topic_authorized_operations": TOPIC_OPERATIONS}
    return {
        "error_code": result_errors.NONE,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.is_internal,
        "partitions": [_partition(call, topic, number) for number in topic_slice.partitions],
        "topic_authorized_operations": TOPIC_OPERATIONS,
    }


def _partition(call: KafkaCall, topic: TopicImage, number: int) -> dict[str, Any]:
    image = topic.partitions[number]
    return described_partition(call, topic.name, number, image) | {
        "error_code": result_errors.NONE,
        "eligible_leader_replicas": image.elr,
        "last_known_elr": () if image.last_known_leader == NO_LEADER else (image.last_known_leader,),
    }
