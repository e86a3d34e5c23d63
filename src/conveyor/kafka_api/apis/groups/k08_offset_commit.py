"""OffsetCommit (key 8). v5 without retention time · v6 leader epoch · v7 static members · v8 flexible ·
v9 the consumer protocol of KIP-848 · v10 topic ids."""

from collections.abc import Iterator
from itertools import repeat
from typing import Any

from conveyor.groups.group_commands import CommitOffsets, OffsetToCommit
from conveyor.groups.replies import Committed
from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import ErrorKind, RequestError

_MEMBER_EPOCHS = 9
_TOPIC_IDS = 10


def handle(call: KafkaCall) -> None:
    """Commit the offsets of existing partitions; answer the others with UNKNOWN_TOPIC."""
    request = call.request
    offsets = [offset for topic in request.topics for offset in _offsets(call, topic)]
    exist = [_exists(call, offset) for offset in offsets]
    command = CommitOffsets(
        group_id=request.group_id,
        generation_id=getattr(request, "generation_id_or_member_epoch", getattr(request, "generation_id", -1)),
        member_id=request.member_id,
        group_instance_id=getattr(request, "group_instance_id", None),
        offsets=tuple(offset for offset, exists in zip(offsets, exist, strict=True) if exists),
        knows_member_epochs=call.api_version >= _MEMBER_EPOCHS,
    )
    call.cancel = call.broker.groups.submit(command, call.guarded(_finish, exist))


def _offsets(call: KafkaCall, topic: Any) -> list[OffsetToCommit]:
    return [
        OffsetToCommit(
            topic=_name(call, topic),
            partition=partition.partition_index,
            offset=partition.committed_offset,
            leader_epoch=getattr(partition, "committed_leader_epoch", -1),
            metadata=partition.committed_metadata or "",
        )
        for partition in topic.partitions
    ]


def _name(call: KafkaCall, topic: Any) -> str:
    if call.api_version < _TOPIC_IDS:
        return str(topic.name)
    return call.broker.metadata.image.names_by_id.get(topic.topic_id, "")


def _exists(call: KafkaCall, offset: OffsetToCommit) -> bool:
    return call.broker.metadata.image.partition(offset.topic, offset.partition) is not None


def _finish(call: KafkaCall, exist: list[bool], reply: object) -> None:
    unknown = RequestError(ErrorKind.UNKNOWN_TOPIC, "there is no such topic or partition")
    if isinstance(reply, RequestError):
        results: Iterator[RequestError | None] = repeat(reply)
    else:
        assert isinstance(reply, Committed)
        settled = iter(reply.errors)
        results = iter([next(settled) if exists else unknown for exists in exist])
    by_id = call.api_version >= _TOPIC_IDS
    code = result_errors.code_by_id if by_id else result_errors.code
    topics = []
    for topic in call.request.topics:
        partitions = [
            {"partition_index": partition.partition_index, "error_code": code(next(results))}
            for partition in topic.partitions
        ]
        identity = {"topic_id": topic.topic_id} if by_id else {"name": topic.name}
        topics.append(identity | {"partitions": partitions})
    call.answer({"topics": topics})
