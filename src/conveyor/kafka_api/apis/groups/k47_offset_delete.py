"""OffsetDelete (key 47): delete committed offsets of partitions that no member of the group reads (KIP-496)."""

from conveyor.groups.group_commands import DeleteOffsets
from conveyor.groups.replies import OffsetsDeleted
from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import ErrorKind, RequestError


def handle(call: KafkaCall) -> None:
    """Delete the offsets of existing partitions; answer the others with UNKNOWN_TOPIC."""
    places = [
        (str(topic.name), partition.partition_index) for topic in call.request.topics for partition in topic.partitions
    ]
    exist = [_exists(call, *place) for place in places]
    command = DeleteOffsets(
        group_id=call.request.group_id,
        partitions=tuple(place for place, exists in zip(places, exist, strict=True) if exists),
    )
    call.wait(call.broker.coordinators.groups.submit(call.caller, command, call.guarded(_finish, exist)))


def _exists(call: KafkaCall, name: str, partition: int) -> bool:
    return call.broker.metadata.image.partition(name, partition) is not None


def _finish(call: KafkaCall, exist: list[bool], reply: object) -> None:
    if not isinstance(reply, OffsetsDeleted):
        assert isinstance(reply, RequestError)
        return call.answer({"error_code": result_errors.code(reply), "topics": []})
    unknown = RequestError(ErrorKind.UNKNOWN_TOPIC, "there is no such topic or partition")
    settled = iter(reply.errors)
    results = iter([next(settled) if exists else unknown for exists in exist])
    topics = [
        {
            "name": topic.name,
            "partitions": [
                {"partition_index": partition.partition_index, "error_code": result_errors.code(next(results))}
                for partition in topic.partitions
            ],
        }
        for topic in call.request.topics
    ]
    call.answer({"error_code": result_errors.NONE, "topics": topics})
