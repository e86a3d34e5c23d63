"""Metadata (key 3): brokers, topics and partition leaders; may create a missing topic.

v1 controller, null for all topics · v4 whether to create topics · v5 offline replicas · v7 leader epoch ·
v8 authorised operations · v9 flexible · v10 topic ids · v12 topics by id · v13 a top-level error.
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.slices import SLICE_ITEMS
from conveyor.cluster.image import NO_LEADER, PartitionImage, TopicImage
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.cluster.topic_decisions import missing_topic
from conveyor.kafka_api.access.operations import NOT_ASKED, check_may_create, cluster_operations, topic_operations
from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import ErrorKind, RequestError

_HEAD_START_S = 0.01
"""In which this broker notices the death of a leader that a client has noticed."""

_PATIENCE_S = 1.0
_OPENING_PATIENCE_S = 10.0
"""For the partitions of new topics that a client names: a busy disk takes long for hundreds of them."""

_LEADER_NOT_AVAILABLE, _LISTENER_NOT_FOUND = 5, 72
_LISTENER_ERRORS = 6
_NULL_MEANS_ALL = 1
_TOPIC_IDS = 12
"""Versions 10 and 11 have topic ids and null names too, but do not accept ids in requests."""


def handle(call: KafkaCall) -> None:
    """Answer at once, unless a topic must be created, this broker is about to lead partitions of one or, in a cluster,
    a leader may have just died.
    """
    is_alone = call.broker.metadata.session.is_embedded
    is_short = not _is_for_all(call) or _size(call.broker.metadata.image.topics.values()) <= SLICE_ITEMS
    if is_short and (call.request.topics == () or (is_alone and not _beginning(call))):
        _answer_or_create(call)
    else:
        call.wait(call.start(_answer_when_settled(call, is_alone=is_alone)).cancel)


async def _answer_when_settled(call: KafkaCall, *, is_alone: bool) -> None:
    """Answer with the next leaders if a leader has just died; see `LostLeaders`.

    The connections of a killed broker end within some milliseconds, in any order, and a client asks at once.

    A partition has a leader once that has opened it. librdkafka keeps an answer without a leader: it would not find
    the offsets of a new topic that it asked for too early.
    """
    broker = call.broker
    if not is_alone:
        await asyncio.sleep(_HEAD_START_S)
    with suppress(RequestError, TimeoutError):
        async with asyncio.timeout(_PATIENCE_S):
            if broker.liveness.lost_leaders:
                await broker.liveness.lost_leaders.settled()
                await broker.metadata.applied.settled(broker.metadata.image.seq)
    if beginning := _beginning(call):
        with suppress(RequestError, TimeoutError):
            async with asyncio.timeout(_OPENING_PATIENCE_S if call.request.topics is not None else _PATIENCE_S):
                for topic in beginning:
                    await broker.partitions.reconciler.opened(topic)
        await broker.slices.turn()  # All who waited for a large topic would be answered in one turn.
    if _is_for_all(call):
        topics = broker.metadata.image.topics.values()
        _answer(call, [_described(call, topic) async for topic in broker.slices.each(topics, _weight)])
    else:
        _answer_or_create(call)


def _is_for_all(call: KafkaCall) -> bool:
    """Return whether the request is for all topics."""
    topics = call.request.topics
    return topics is None or (not topics and call.header.api_version < _NULL_MEANS_ALL)


def _weight(topic: TopicImage) -> int:
    return 1 + len(topic.partitions)


def _size(topics: Iterable[TopicImage]) -> int:
    return sum(map(_weight, topics))


def _beginning(call: KafkaCall) -> list[TopicImage]:
    """Return the requested topics with partitions that this broker has yet to open as their leader."""
    applied = call.broker.partitions.reconciler.has_applied
    return [topic for topic in _requested(call) if not applied(topic) and _lacks_leader(call.broker, topic)]


def _requested(call: KafkaCall) -> Iterable[TopicImage]:
    """Return the topics of the request that exist."""
    topics, image = call.request.topics, call.broker.metadata.image
    if topics is None:
        return image.topics.values()
    names = (image.names_by_id.get(topic.topic_id) if topic.name is None else topic.name for topic in topics)
    return [image.topics[name] for name in names if name is not None and name in image.topics]


def _lacks_leader(broker: BrokerNode, topic: TopicImage) -> bool:
    shown = (broker.topics.leaders.shown(topic.name, number, image) for number, image in enumerate(topic.partitions))
    return any(leader == NO_LEADER for leader, _ in shown)


def _answer_or_create(call: KafkaCall) -> None:
    topics = call.request.topics
    if _is_for_all(call):
        return _answer(call, [_described(call, topic) for topic in call.broker.metadata.image.topics.values()])
    if call.header.api_version < _TOPIC_IDS and any(_goes_by_id(topic) for topic in topics):
        by_id = RequestError(ErrorKind.INVALID_REQUEST, "topic ids can be used from version 12 on")
        return _answer(call, [_failed(call, by_id, topic.name or "") for topic in topics])
    if _may_create(call) and any(_is_new(call.broker, topic) for topic in topics):
        call.start(_create_and_answer(call))
    else:
        _answer(call, [_look_up(call, topic) for topic in topics])


async def _create_and_answer(call: KafkaCall) -> None:
    _answer(call, [await _ensure(call, topic) for topic in call.request.topics])


async def _ensure(call: KafkaCall, requested: Any) -> dict[str, Any]:
    if not _is_new(call.broker, requested):
        return _look_up(call, requested)
    try:
        check_may_create(call, requested.name)
        return _described(call, await call.broker.topics.ensure(call.caller, TopicRequest(name=requested.name)))
    except RequestError as error:
        return _failed(call, error, requested.name)


def _goes_by_id(requested: Any) -> bool:
    return requested.name is None or getattr(requested, "topic_id", None) is not None


def _may_create(call: KafkaCall) -> bool:
    return call.broker.settings.broker.auto_create_topics and getattr(call.request, "allow_auto_topic_creation", True)


def _is_new(broker: BrokerNode, requested: Any) -> bool:
    """Return whether a topic does not exist, and may be created: a request that gives a topic's id never creates it."""
    is_named = requested.name is not None and getattr(requested, "topic_id", None) is None
    return is_named and requested.name not in broker.metadata.image.topics


def _look_up(call: KafkaCall, requested: Any) -> dict[str, Any]:
    image = call.broker.metadata.image
    if requested.name is not None and getattr(requested, "topic_id", None) is not None:
        both = RequestError(ErrorKind.INVALID_REQUEST, "give either the topic's name or its id")
        return _failed(call, both, requested.name)
    if requested.name is None:
        name = image.names_by_id.get(requested.topic_id)
        if name is None:
            missing = RequestError(ErrorKind.UNKNOWN_TOPIC_ID, f"no topic has the id {requested.topic_id}")
            return failed_topic(missing, None) | {"topic_id": requested.topic_id}
        return _described(call, image.topics[name])
    topic = image.topics.get(requested.name)
    if topic is not None:
        return _described(call, topic)
    return _failed(call, missing_topic(requested.name), requested.name)


def failed_topic(error: RequestError, name: str | None) -> dict[str, Any]:
    return {"error_code": result_errors.code(error), "name": name, "topic_id": None, "partitions": []}


def _failed(call: KafkaCall, error: RequestError, name: str) -> dict[str, Any]:
    return failed_topic(error, name) | {"topic_authorized_operations": _operations(call, name)}


def _described(call: KafkaCall, topic: TopicImage) -> dict[str, Any]:
    return {
        "error_code": result_errors.NONE,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.is_internal,
        "partitions": [
            described_partition(call, topic.name, number, image) for number, image in enumerate(topic.partitions)
        ],
        "topic_authorized_operations": _operations(call, topic.name),
    }


def described_partition(call: KafkaCall, topic: str, number: int, image: PartitionImage) -> dict[str, Any]:
    leader, offline_replicas = call.broker.topics.leaders.shown(topic, number, image)
    error_code = _LEADER_NOT_AVAILABLE if leader == NO_LEADER else result_errors.NONE
    broker = call.broker.metadata.image.brokers.get(leader)
    if broker is not None and broker.endpoint(call.caller.listener) is None:
        leader = NO_LEADER
        error_code = _LISTENER_NOT_FOUND if call.header.api_version >= _LISTENER_ERRORS else _LEADER_NOT_AVAILABLE
    return {
        "error_code": error_code,
        "partition_index": number,
        "leader_id": leader,
        "leader_epoch": image.leader_epoch,
        "replica_nodes": image.replicas,
        "isr_nodes": image.isr,
        "offline_replicas": offline_replicas,
    }


def _answer(call: KafkaCall, topics: Sequence[dict[str, Any]]) -> None:
    image = call.broker.metadata.image
    brokers = [
        {"node_id": node.node_id, "host": endpoint.host, "port": endpoint.port, "rack": node.rack}
        for node in call.broker.topics.shown_brokers.listed()
        if (endpoint := node.endpoint(call.caller.listener)) is not None
    ]
    wants_cluster = getattr(call.request, "include_cluster_authorized_operations", False)
    call.answer(
        {
            "brokers": brokers,
            "cluster_id": image.cluster_id,
            "controller_id": call.broker.metadata.controller_id,
            "topics": topics,
            "cluster_authorized_operations": cluster_operations(call) if wants_cluster else NOT_ASKED,
            "error_code": result_errors.NONE,
        },
        sum(1 + len(topic["partitions"]) for topic in topics),
    )


def _operations(call: KafkaCall, name: str) -> int:
    """Return what the client may do with a topic, which need not exist, as in Kafka; only if it asks for that."""
    wanted = getattr(call.request, "include_topic_authorized_operations", False)
    return topic_operations(call, name) if wanted else NOT_ASKED
