"""ListPartitionReassignments (key 46, KIP-455): the reassignments in progress; null requests all.

As in Kafka, the response omits topics and partitions that do not exist or are not reassigned, without an error. It
lists no companions: their replicas are always those of their owners.
"""

from collections.abc import Iterable
from typing import Any

from conveyor.cluster.controller.bundles import owners
from conveyor.cluster.image import ClusterImage, TopicImage
from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall


def handle(call: KafkaCall) -> None:
    call.wait(call.start(_list(call)).cancel)


async def _list(call: KafkaCall) -> None:
    image, requested, slices = call.broker.metadata.image, call.request.topics, call.broker.slices
    if requested is None:
        topics = [_topic(topic, range(len(topic.partitions))) async for topic in slices.each(owners(image))]
    else:
        topics = [_topic(image.topics[topic.name], topic.partition_indexes) for topic in _existing(image, requested)]
    found = [topic for topic in topics if topic["partitions"]]
    call.answer(result_errors.fields(None) | {"topics": found}, len(found))


def _existing(image: ClusterImage, requested: Iterable[Any]) -> list[Any]:
    names = {topic.name for topic in owners(image)}
    return [topic for topic in requested if topic.name in names]


def _topic(topic: TopicImage, numbers: Iterable[int]) -> dict[str, Any]:
    partitions = [
        {
            "partition_index": number,
            "replicas": partition.replicas,
            "adding_replicas": partition.adding,
            "removing_replicas": partition.removing,
        }
        for number in numbers
        if 0 <= number < len(topic.partitions) and (partition := topic.partitions[number]).target
    ]
    return {"name": topic.name, "partitions": partitions}
