"""OffsetCommit (key 8). v5 no retention time of its own · v6 leader epoch · v7 static members · v8 flexible ·
v9 the consumer protocol of KIP-848 · v10 topic ids."""

from collections.abc import Iterator
from functools import partial
from itertools import repeat
from typing import Any

from conveyor.groups.group_commands import CommitOffsets, OffsetToCommit
from conveyor.groups.replies import Committed
from conveyor.kafka_api.apis import result_errors as errors
from conveyor.kafka_api.wire.call import Call
from conveyor.kernel.errors import ErrorKind, RequestError

_MEMBER_EPOCHS = 9
_TOPIC_IDS = 10


def handle(call: Call) -> None:
    """Commit what names a partition that is there; the rest is refused one by one."""
    request = call.request
    named = [each for topic in request.topics for each in _offsets(call, topic)]
    known = [_is_known(call, each) for each in named]
    command = CommitOffsets(
        group_id=request.group_id,
        generation_id=getattr(request, "generation_id_or_member_epoch", getattr(request, "generation_id", -1)),
        member_id=request.member_id,
        group_instance_id=getattr(request, "group_instance_id", None),
        offsets=tuple(each for each, is_known in zip(named, known, strict=True) if is_known),
        knows_member_epochs=call.api_version >= _MEMBER_EPOCHS,
    )
    call.cancel = call.broker.groups.submit(command, partial(_finish, call, known))


def _offsets(call: Call, topic: Any) -> list[OffsetToCommit]:
    return [
        OffsetToCommit(
            topic=_name(call, topic),
            partition=each.partition_index,
            offset=each.committed_offset,
            leader_epoch=getattr(each, "committed_leader_epoch", -1),
            metadata=each.committed_metadata or "",
        )
        for each in topic.partitions
    ]


def _name(call: Call, topic: Any) -> str:
    if call.api_version < _TOPIC_IDS:
        return str(topic.name)
    return call.broker.topics.image.names_by_id.get(topic.topic_id, "")


def _is_known(call: Call, offset: OffsetToCommit) -> bool:
    topic = call.broker.topics.image.topics.get(offset.topic)
    return topic is not None and 0 <= offset.partition < len(topic.partitions)


def _finish(call: Call, known: list[bool], reply: object) -> None:
    unknown = RequestError(ErrorKind.UNKNOWN_TOPIC, "there is no such topic or partition")
    if isinstance(reply, RequestError):
        results: Iterator[RequestError | None] = repeat(reply)
    else:
        assert isinstance(reply, Committed)
        settled = iter(reply.errors)
        results = iter([next(settled) if is_known else unknown for is_known in known])
    by_id = call.api_version >= _TOPIC_IDS
    code = errors.code_by_id if by_id else errors.code
    topics = []
    for topic in call.request.topics:
        partitions = [
            {"partition_index": each.partition_index, "error_code": code(next(results))} for each in topic.partitions
        ]
        named = {"topic_id": topic.topic_id} if by_id else {"name": topic.name}
        topics.append(named | {"partitions": partitions})
    call.answer({"topics": topics})
