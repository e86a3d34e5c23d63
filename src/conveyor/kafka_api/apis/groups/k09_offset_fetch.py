"""OffsetFetch (key 9). v2 null for all, an error for the group · v5 leader epoch · v6 flexible · v7 stable offsets ·
v8 several groups · v9 members of KIP-848 · v10 topic ids.

Before v8, a request names one group, and the response has the fields of one group in v8.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from conveyor.groups.group_commands import FetchOffsets
from conveyor.groups.replies import CommittedOffset, FetchedOffsets
from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.apis.groups.gather import Descriptions, ask_groups
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import ERRORS, ErrorKind, RequestError

_UNSTABLE = ERRORS[ErrorKind.UNSTABLE_OFFSET_COMMIT].kafka_code
_GROUP_ERROR = 2
_GROUPS = 8
_TOPIC_IDS = 10
_OFFSET_BYTES = 500
"""Memory of an offset in a response, besides its metadata."""


def handle(call: KafkaCall) -> None:
    has_groups = call.header.api_version >= _GROUPS
    groups = call.request.groups if has_groups else [call.request]
    commands = [
        FetchOffsets(
            group_id=group.group_id,
            partitions=_partitions(call, group),
            member_id=getattr(group, "member_id", None),
            member_epoch=getattr(group, "member_epoch", -1),
            requires_stable=getattr(call.request, "require_stable", False),
        )
        for group in groups
    ]
    ask_groups(
        call,
        commands,
        lambda number, reply: _answer(call, groups[number], reply),
        lambda answers: call.answer({"groups": answers} if has_groups else answers[0], _count(answers)),
    )


def _count(answers: Descriptions) -> int:
    return sum([len(topic["partitions"]) for answer in answers for topic in answer["topics"]])


def _partitions(call: KafkaCall, group: Any) -> tuple[tuple[str, int], ...] | None:
    if group.topics is None:
        return None
    return tuple((_name(call, topic), index) for topic in group.topics for index in topic.partition_indexes)


def _name(call: KafkaCall, topic: Any) -> str:
    if call.header.api_version < _TOPIC_IDS:
        return str(topic.name)
    return call.broker.metadata.image.names_by_id.get(topic.topic_id, "")


def _answer(call: KafkaCall, group: Any, reply: object) -> dict[str, Any]:
    if isinstance(reply, FetchedOffsets):
        if group.topics is None:
            call.weigh(sum(_OFFSET_BYTES + len(offset.metadata) for offset in reply.offsets))
        topics = _topics(call, reply.offsets, None) + _unknown_topics(call, group)
        return {"group_id": group.group_id, "error_code": result_errors.NONE, "topics": topics}
    assert isinstance(reply, RequestError)
    requested = _partitions(call, group) or ()
    offsets = [CommittedOffset(topic=topic, partition=partition) for topic, partition in requested]
    has_group_error = call.header.api_version >= _GROUP_ERROR
    topics = [] if has_group_error else _topics(call, offsets, reply)
    return {"group_id": group.group_id, "error_code": result_errors.code(reply), "topics": topics}


def _topics(call: KafkaCall, offsets: Sequence[CommittedOffset], error: RequestError | None) -> list[dict[str, Any]]:
    image = call.broker.metadata.image
    topics = []
    for name, of_topic in groupby(offsets, key=lambda offset: offset.topic):
        partitions = [
            _partition(offset, _UNSTABLE if offset.is_unstable else result_errors.code(error)) for offset in of_topic
        ]
        if call.header.api_version < _TOPIC_IDS:
            topics.append({"name": name, "partitions": partitions})
        elif name in image.topics:
            topics.append({"topic_id": image.topics[name].topic_id, "partitions": partitions})
    return topics


def _unknown_topics(call: KafkaCall, group: Any) -> list[dict[str, Any]]:
    if call.header.api_version < _TOPIC_IDS or group.topics is None:
        return []
    code = result_errors.code(RequestError(ErrorKind.UNKNOWN_TOPIC_ID, "no topic has the id"))
    return [
        {
            "topic_id": topic.topic_id,
            "partitions": [
                _partition(CommittedOffset(topic="", partition=number), code) for number in topic.partition_indexes
            ],
        }
        for topic in group.topics
        if topic.topic_id not in call.broker.metadata.image.names_by_id
    ]


def _partition(offset: CommittedOffset, code: int) -> dict[str, Any]:
    return {
        "partition_index": offset.partition,
        "committed_offset": offset.offset,
        "committed_leader_epoch": offset.leader_epoch,
        "metadata": offset.metadata,
        "error_code": code,
    }
