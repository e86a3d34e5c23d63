"""ConsumerGroupDescribe (key 69): groups of the consumer protocol (KIP-848). v1 the protocol of each member."""

from collections.abc import Iterator, Sequence
from typing import Any

from conveyor.groups.group_commands import DescribeConsumerGroup
from conveyor.groups.known_topics import Assigned
from conveyor.groups.replies import DescribedConsumer, DescribedConsumerGroup
from conveyor.kafka_api.access.operations import NOT_ASKED, group_operations, permits
from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.apis.groups.gather import ask_groups
from conveyor.kafka_api.apis.groups.k68_consumer_group_heartbeat import by_topic
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.access.declared_access import DESCRIBE
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import TopicId

_CLASSIC_MEMBER, _CONSUMER_MEMBER = 0, 1
_ITEM_BYTES = 600
"""Memory of an item of a response; most of it is for the longest name of a topic, twice."""


def handle(call: KafkaCall) -> None:
    commands = [DescribeConsumerGroup(group_id=group_id) for group_id in call.request.group_ids]
    ask_groups(call, commands, lambda _, reply: reply, lambda replies: call.start(_describe(call, replies)))


async def _describe(call: KafkaCall, replies: Sequence[object]) -> None:
    groups = [await _group(call, number, reply) for number, reply in enumerate(replies)]
    described = [reply for reply in replies if isinstance(reply, DescribedConsumerGroup)]
    items = sum(_items(member) for group in described for member in group.members)
    call.weigh(items * _ITEM_BYTES)
    call.answer({"groups": groups}, items)


def _items(member: DescribedConsumer) -> int:
    """Return as how many items the description of a member counts."""
    return 1 + len(member.subscription.topics) + len(member.current.assigned) + len(member.target)


async def _group(call: KafkaCall, number: int, reply: object) -> dict[str, Any]:
    identity = {"group_id": call.request.group_ids[number]}
    if isinstance(reply, DescribedConsumerGroup) and not await _may_describe_topics(call, reply):
        reply = RequestError(ErrorKind.TOPIC_AUTHORIZATION_FAILED, "no right to a topic of the group's members")
    if isinstance(reply, DescribedConsumerGroup):
        requested = call.request.include_authorized_operations
        return identity | {
            "error_code": result_errors.NONE,
            "error_message": None,
            "group_state": reply.state,
            "group_epoch": reply.epoch,
            "assignment_epoch": reply.target_epoch,
            "assignor_name": reply.assignor,
            "members": [_member(call, member) async for member in call.broker.slices.each(reply.members, _items)],
            "authorized_operations": group_operations(call, identity["group_id"]) if requested else NOT_ASKED,
        }
    assert isinstance(reply, RequestError)
    nothing = {"group_state": "", "group_epoch": 0, "assignment_epoch": 0, "assignor_name": "", "members": []}
    return identity | nothing | {"error_code": result_errors.code(reply), "error_message": reply.message}


async def _may_describe_topics(call: KafkaCall, group: DescribedConsumerGroup) -> bool:
    """Return whether the client may see all topics of the members."""
    if call.broker.clients.access.rules is None:
        return True
    permitted = {""}
    async for topic in call.broker.slices.each(_topics(call, group)):
        if topic not in permitted and not permits(call, DESCRIBE, topic):
            return False
        permitted.add(topic)
    return True


def _topics(call: KafkaCall, group: DescribedConsumerGroup) -> Iterator[str]:
    """Yield the topics of the members, some repeatedly, and an empty name for each member and for deleted topics."""
    names_by_id = call.broker.metadata.image.names_by_id
    for member in group.members:
        topic_ids = {topic_id for topic_id, _ in member.current.assigned | member.target}
        assigned = {names_by_id.get(TopicId(topic_id), "") for topic_id in topic_ids}
        yield ""
        yield from sorted(member.subscription.topics | assigned)


def _member(call: KafkaCall, member: DescribedConsumer) -> dict[str, Any]:
    subscription = member.subscription
    return {
        "member_id": member.member_id,
        "instance_id": subscription.instance_id,
        "rack_id": subscription.rack_id,
        "member_epoch": member.current.epoch,
        "client_id": subscription.client_id,
        "client_host": subscription.client_host,
        "subscribed_topic_names": sorted(subscription.topics),
        "subscribed_topic_regex": subscription.pattern,
        "assignment": _assignment(call, member.current.assigned),
        "target_assignment": _assignment(call, member.target),
        "member_type": _CONSUMER_MEMBER if subscription.classic is None else _CLASSIC_MEMBER,
    }


def _assignment(call: KafkaCall, partitions: Assigned) -> dict[str, Any]:
    """Return the assigned topics without the deleted ones, whose names are unknown."""
    names = call.broker.metadata.image.names_by_id
    topics = [
        {"topic_id": topic_id, "topic_name": names[topic_id], "partitions": numbers}
        for topic_id, numbers in by_topic(partitions)
        if topic_id in names
    ]
    return {"topic_partitions": topics}
