"""OffsetDelete (key 47): forget how far a group has read partitions that none of its members reads now (KIP-496)."""

from functools import partial

from conveyor.groups.group_commands import DeleteOffsets
from conveyor.groups.replies import OffsetsDeleted
from conveyor.kafka_api.apis import result_errors as errors
from conveyor.kafka_api.wire.call import Call
from conveyor.kernel.errors import ErrorKind, RequestError


def handle(call: Call) -> None:
    """Forget what names a partition that is there; the rest is refused one by one."""
    named = [(str(topic.name), each.partition_index) for topic in call.request.topics for each in topic.partitions]
    known = [_is_known(call, *place) for place in named]
    command = DeleteOffsets(
        group_id=call.request.group_id,
        partitions=tuple(place for place, is_known in zip(named, known, strict=True) if is_known),
    )
    call.cancel = call.broker.groups.submit(command, partial(_finish, call, known))


def _is_known(call: Call, name: str, partition: int) -> bool:
    topic = call.broker.topics.image.topics.get(name)
    return topic is not None and 0 <= partition < len(topic.partitions)


def _finish(call: Call, known: list[bool], reply: object) -> None:
    if not isinstance(reply, OffsetsDeleted):
        assert isinstance(reply, RequestError)
        return call.answer({"error_code": errors.code(reply), "topics": []})
    unknown = RequestError(ErrorKind.UNKNOWN_TOPIC, "there is no such topic or partition")
    settled = iter(reply.errors)
    results = iter([next(settled) if is_known else unknown for is_known in known])
    topics = [
        {
            "name": topic.name,
            "partitions": [
                {"partition_index": each.partition_index, "error_code": errors.code(next(results))}
                for each in topic.partitions
            ],
        }
        for topic in call.request.topics
    ]
    call.answer({"error_code": errors.NONE, "topics": topics})
