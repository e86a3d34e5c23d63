"""ConsumerGroupHeartbeat (key 68): membership in the consumer protocol (KIP-848). v1 the client chooses its member id
and may subscribe by a pattern."""

from collections.abc import Iterable
from datetime import timedelta
from itertools import groupby
from typing import Any

from conveyor.groups.consumer.subscription_patterns import literal_prefix
from conveyor.groups.group_commands import ConsumerHeartbeat
from conveyor.groups.known_topics import Assigned, TopicIdPartition
from conveyor.groups.replies import HeartbeatAnswer
from conveyor.kafka_api.access.operations import request_name
from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.access.acl import ResourceType
from conveyor.kernel.access.declared_access import DESCRIBE
from conveyor.kernel.errors import ErrorKind, RequestError

_CLIENT_CHOOSES_ID = 1
_MILLISECOND = timedelta(milliseconds=1)


def handle(call: KafkaCall) -> None:
    request = call.request
    names, pattern = request.subscribed_topic_names, getattr(request, "subscribed_topic_regex", None)
    if pattern and not _may_describe(call, pattern):
        reason = "no right to describe all topics that the pattern could match: begin it with a prefix that is allowed"
        return _finish(call, RequestError(ErrorKind.TOPIC_AUTHORIZATION_FAILED, reason))
    command = ConsumerHeartbeat(
        group_id=request.group_id,
        member_id=request.member_id,
        new_member_id=call.broker.coordinators.groups.new_consumer_id(),
        member_epoch=request.member_epoch,
        client_id=call.header.client_id,
        client_host=f"/{call.caller.address}",
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout // _MILLISECOND,
        topics=None if names is None else tuple(str(name) for name in names),
        pattern=pattern,
        assignor=request.server_assignor,
        owned=None if request.topic_partitions is None else _owned(request.topic_partitions),
        requires_member_id=call.header.api_version >= _CLIENT_CHOOSES_ID,
    )
    call.wait(call.broker.coordinators.groups.submit(call.caller, command, call.guarded(_finish)))


def _may_describe(call: KafkaCall, pattern: str) -> bool:
    """Return whether the client may see whatever a pattern matches, now or later: it learns which topics there are."""
    prefix = literal_prefix(pattern)
    access = call.broker.clients.access
    return access.permits_all(call.caller, request_name(call), DESCRIBE, ResourceType.TOPIC, prefix)


def by_topic(partitions: Assigned) -> Iterable[tuple[Any, list[int]]]:
    """Yield each topic id with its partition numbers, in order."""
    for topic_id, of_topic in groupby(sorted(partitions), key=lambda partition: partition[0]):
        yield topic_id, [number for _, number in of_topic]


def _owned(topics: Iterable[Any]) -> tuple[TopicIdPartition, ...]:
    return tuple((topic.topic_id, number) for topic in topics if topic.topic_id for number in topic.partitions)


def _finish(call: KafkaCall, reply: object) -> None:
    if isinstance(reply, RequestError):
        failed = {"error_code": result_errors.code(reply), "error_message": reply.message}
        return call.answer(failed | {"member_id": None, "member_epoch": 0, "heartbeat_interval": 0})
    assert isinstance(reply, HeartbeatAnswer)
    assignment = None
    if reply.assignment is not None:
        topics = [{"topic_id": topic, "partitions": numbers} for topic, numbers in by_topic(reply.assignment)]
        assignment = {"topic_partitions": topics}
    call.answer(
        {
            "error_code": result_errors.NONE,
            "error_message": None,
            "member_id": reply.member_id,
            "member_epoch": reply.member_epoch,
            "heartbeat_interval": reply.heartbeat_interval_ms,
            "assignment": assignment,
        }
    )
