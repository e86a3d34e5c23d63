"""OffsetFetch (key 9). v2 null for all, an error for the group · v5 leader epoch · v6 flexible · v7 stable offsets ·
v8 several groups · v9 members of KIP-848 · v10 topic ids.

Before v8 one group is asked for; its answer has the shape of one group in v8.
"""

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import Any

from conveyor.groups.group_commands import FetchOffsets
from conveyor.groups.replies import CommittedOffset, FetchedOffsets
from conveyor.kafka_api.apis import result_errors as errors
from conveyor.kafka_api.wire.call import Call
from conveyor.kernel.errors import ErrorKind, RequestError

_GROUP_ERROR = 2
_GROUPS = 8
_TOPIC_IDS = 10


def handle(call: Call) -> None:
    """Ask every group's coordinator; answer when all have."""
    groups = call.request.groups if call.api_version >= _GROUPS else [call.request]
    answers: list[dict[str, Any] | None] = [None] * len(groups)
    if not groups:
        return call.answer({"groups": []})
    for number, group in enumerate(groups):
        command = FetchOffsets(
            group_id=group.group_id,
            partitions=_partitions(call, group),
            member_id=getattr(group, "member_id", None),
            member_epoch=getattr(group, "member_epoch", -1),
        )
        call.broker.groups.submit(command, partial(_finish_one, call, answers, number, group))


def _partitions(call: Call, group: Any) -> tuple[tuple[str, int], ...] | None:
    if group.topics is None:
        return None
    return tuple((_name(call, topic), each) for topic in group.topics for each in topic.partition_indexes)


def _name(call: Call, topic: Any) -> str:
    if call.api_version < _TOPIC_IDS:
        return str(topic.name)
    return call.broker.topics.image.names_by_id.get(topic.topic_id, "")


def _finish_one(call: Call, answers: list[dict[str, Any] | None], number: int, group: Any, reply: object) -> None:
    answers[number] = _answer(call, group, reply)
    if all(answer is not None for answer in answers):
        call.answer({"groups": answers} if call.api_version >= _GROUPS else answers[0] or {})


def _answer(call: Call, group: Any, reply: object) -> dict[str, Any]:
    if isinstance(reply, FetchedOffsets):
        topics = _topics(call, reply.offsets, None) + _unknown_topics(call, group)
        return {"group_id": group.group_id, "error_code": errors.NONE, "topics": topics}
    assert isinstance(reply, RequestError)
    asked = _partitions(call, group) or ()
    offsets = [CommittedOffset(topic=topic, partition=each) for topic, each in asked]
    told_at_top = call.api_version >= _GROUP_ERROR
    topics = [] if told_at_top else _topics(call, offsets, reply)
    return {"group_id": group.group_id, "error_code": errors.code(reply), "topics": topics}


def _topics(call: Call, offsets: Sequence[CommittedOffset], error: RequestError | None) -> list[dict[str, Any]]:
    image = call.broker.topics.image
    topics = []
    for name, some in groupby(offsets, key=lambda each: each.topic):
        partitions = [_partition(each, errors.code(error)) for each in some]
        if call.api_version < _TOPIC_IDS:
            topics.append({"name": name, "partitions": partitions})
        elif name in image.topics:
            topics.append({"topic_id": image.topics[name].topic_id, "partitions": partitions})
    return topics


def _unknown_topics(call: Call, group: Any) -> list[dict[str, Any]]:
    """What is asked for by an id that no topic has."""
    if call.api_version < _TOPIC_IDS or group.topics is None:
        return []
    code = errors.code(RequestError(ErrorKind.UNKNOWN_TOPIC_ID, "no topic has the id"))
    return [
        {
            "topic_id": topic.topic_id,
            "partitions": [
                _partition(CommittedOffset(topic="", partition=number), code) for number in topic.partition_indexes
            ],
        }
        for topic in group.topics
        if topic.topic_id not in call.broker.topics.image.names_by_id
    ]


def _partition(offset: CommittedOffset, code: int) -> dict[str, Any]:
    return {
        "partition_index": offset.partition,
        "committed_offset": offset.offset,
        "committed_leader_epoch": offset.leader_epoch,
        "metadata": offset.metadata,
        "error_code": code,
    }
