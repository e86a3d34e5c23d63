"""DescribeTopicPartitions (key 75): topics and their partitions in pages (KIP-966). An empty list requests all."""

from functools import partial
from typing import Any

from conveyor.broker.topics.topic_page import Cursor, TopicSlice, topic_page
from conveyor.cluster.image import NO_LEADER, TopicImage
from conveyor.cluster.topic_decisions import missing_topic
from conveyor.kafka_api.access.operations import may, permits, topic_operations, topic_refused
from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.apis.topics.k03_metadata import described_partition, failed_topic
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.access.declared_access import DESCRIBE
from conveyor.kernel.errors import RequestError

_MAX_PARTITIONS = 2000
"""Kafka's max.request.partition.size.limit."""


def handle(call: KafkaCall) -> None:
    call.wait(call.start(_describe(call)).cancel)


async def _describe(call: KafkaCall) -> None:
    request, slices = call.request, call.broker.slices
    names = [topic.name for topic in request.topics]
    cursor = request.cursor
    start = None if cursor is None else Cursor(cursor.topic_name, cursor.partition_index)
    limit = max(1, min(request.response_partition_limit, _MAX_PARTITIONS))
    shows = partial(may, call, DESCRIBE)
    try:
        page = await topic_page(call.broker.metadata.image, names or None, start, limit, slices, shows)
    except RequestError as error:
        topics = [failed_topic(error, name) async for name in slices.each(names)]
        return call.answer({"topics": topics, "next_cursor": None}, len(topics))
    following = page.following
    next_cursor = None if following is None else {"topic_name": following[0], "partition_index": following[1]}
    topics = [_topic(call, part) async for part in slices.each(page.slices)]
    call.answer({"topics": topics, "next_cursor": next_cursor}, len(topics))


def _topic(call: KafkaCall, topic_slice: TopicSlice) -> dict[str, Any]:
    topic, name = topic_slice.topic, topic_slice.name
    decides = permits if call.request.topics else may
    if not decides(call, DESCRIBE, name):
        return failed_topic(topic_refused(name), name)
    operations = topic_operations(call, name)
    if topic is None:
        return failed_topic(missing_topic(name), name) | {"topic_authorized_operations": operations}
    return {
        "error_code": result_errors.NONE,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.is_internal,
        "partitions": [_partition(call, topic, number) for number in topic_slice.partitions],
        "topic_authorized_operations": operations,
    }


def _partition(call: KafkaCall, topic: TopicImage, number: int) -> dict[str, Any]:
    image = topic.partitions[number]
    return described_partition(call, topic.name, number, image) | {
        "error_code": result_errors.NONE,
        "eligible_leader_replicas": image.elr,
        "last_known_elr": () if image.last_known_leader == NO_LEADER else (image.last_known_leader,),
    }
