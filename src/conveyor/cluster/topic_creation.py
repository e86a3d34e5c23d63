"""Decides on a new topic: validates the request and assigns the partitions. Pure: nothing is stored here."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import msgspec

from conveyor.cluster.image import (
    AUDIT_TOPIC,
    DELAY_STATE,
    DELAY_TARGET,
    NO_EPOCH,
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    ClusterImage,
    PartitionImage,
    TopicImage,
    companion,
    is_companion,
    is_internal,
)
from conveyor.cluster.internal_topics import NEW_AUDIT, own_config, shared_config, with_own_config
from conveyor.cluster.placement import Placement, check_factor, check_no_gateway, new_partitions
from conveyor.kernel.errors import ErrorKind, RequestError, SettingsError
from conveyor.kernel.ids import FIRST_LEADER_EPOCH, NodeId, TopicId
from conveyor.records.batch import MAX_BATCH_BYTES
from conveyor.settings.topic_settings import check_new_texts, normalized
from conveyor.settings.tree import EMBEDDED, Settings, topic_settings

BROKER_DEFAULT = -1
MAX_NAME_CHARACTERS = 249
_NAME = re.compile(r"[a-zA-Z0-9._-]+")
_NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRequest:
    """A client's request for a topic; -1 means the broker's default. `assignment`: replicas of each partition."""

    name: str
    partitions: int = BROKER_DEFAULT
    replication_factor: int = BROKER_DEFAULT
    assignment: Mapping[int, Sequence[int]] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOutline:
    """A topic that can be created, before its replicas are chosen.

    assignment: the replicas of each partition, if the request has them. partitions: those of a delayed topic, with the
    leaders and replicas of its target. added_count: the partitions that the cluster gets, with those of the state of a
    delayed topic.
    """

    name: str
    topic_id: TopicId
    config: Mapping[str, str]
    partition_count: int
    replication_factor: int
    assignment: Sequence[tuple[NodeId, ...]]
    added_count: int
    partitions: tuple[PartitionImage, ...] = ()


def outline_topic(
    image: ClusterImage, request: TopicRequest, settings: Settings, topic_id: TopicId, others: int = 0
) -> TopicOutline:
    """Return the outline of a topic to create. Partitions cost nothing here unless the request has their replicas.

    others: partitions that the cluster gets besides.
    Raises RequestError: INVALID_TOPIC, TOPIC_ALREADY_EXISTS, INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR,
    INVALID_REPLICA_ASSIGNMENT, INVALID_REQUEST, INVALID_CONFIG.
    """
    check_name(request.name)
    if is_companion(request.name):
        raise RequestError(ErrorKind.INVALID_TOPIC, f"names such as '{request.name}' are reserved for the broker")
    if request.name in image.topics:
        raise RequestError(ErrorKind.TOPIC_ALREADY_EXISTS, f"topic '{request.name}' exists already")
    _check_collision(image, request.name)
    request = _with_broker_requirements(image, request, settings)
    config = checked_config(request.config, settings)
    if config.get(DELAY_TARGET):
        return _outline_delayed(image, request, settings, topic_id, others)
    assignment = _assigned(image, request) if request.assignment else []
    count = len(assignment) or _partition_count(request, settings)
    check_partition_count(image, count, settings, others)
    if assignment:
        factor = len(assignment[0])
        new_partitions(image, assignment)
    else:
        factor = _replication_factor(request, settings)
        check_factor(image, factor)
    return TopicOutline(
        name=request.name, topic_id=topic_id, config=config, partition_count=count, replication_factor=factor,
        assignment=assignment, added_count=count,
    )  # fmt: skip


def _outline_delayed(
    image: ClusterImage, request: TopicRequest, settings: Settings, topic_id: TopicId, others: int
) -> TopicOutline:
    """Return the outline of a delayed topic. Raises RequestError: see `outline_topic`."""
    target = _existing_target(image, request)
    count, factor = target.partition_count, target.replication_factor
    if request.assignment:
        reason = f"a delayed topic has the replicas of its target '{target.name}': give no assignment"
        raise RequestError(ErrorKind.INVALID_REPLICA_ASSIGNMENT, reason)
    if request.partitions not in (BROKER_DEFAULT, count):
        reason = f"a delayed topic has as many partitions as its target '{target.name}': {count}"
        raise RequestError(ErrorKind.INVALID_PARTITIONS, reason)
    if request.replication_factor not in (BROKER_DEFAULT, factor):
        reason = f"a delayed topic has as many replicas as its target '{target.name}': {factor}"
        raise RequestError(ErrorKind.INVALID_REPLICATION_FACTOR, reason)
    check_name(companion(DELAY_STATE, request.name))
    own = with_own_config(request.name, request.config, target.name)
    config = checked_config({**own, **shared_config(target)}, settings, target.config)
    check_partition_count(image, 2 * count, settings, others)
    return TopicOutline(
        name=request.name,
        topic_id=topic_id,
        config=config,
        partition_count=count,
        replication_factor=factor,
        assignment=(),
        added_count=2 * count,
        partitions=tuple(companion_partition(partition) for partition in target.partitions),
    )


def _existing_target(image: ClusterImage, request: TopicRequest) -> TopicImage:
    """Return the target of a delayed topic. Raises RequestError (INVALID_CONFIG)."""
    name = request.config[DELAY_TARGET]
    target = image.topics.get(name)
    if is_internal(request.name) or is_internal(name):
        reason = "the broker's own topics are neither delayed topics nor their targets"
    elif name == request.name:
        reason = "a topic cannot be its own target: create another topic, to which delayed records are produced"
    elif target is None:
        reason = "there is no such topic: create the target first"
    elif target.delay_target is not None:
        reason = f"it is a delayed topic itself: use its own target ({DELAY_TARGET})"
    else:
        return target
    raise RequestError(ErrorKind.INVALID_CONFIG, f"'{DELAY_TARGET}' of '{request.name}' is '{name}': {reason}")


def plan_topic(image: ClusterImage, request: TopicRequest, settings: Settings, topic_id: TopicId) -> TopicImage:
    """Return the topic to create. Raises the errors of `outline_topic`."""
    outline = outline_topic(image, request, settings, topic_id)
    factor, count = outline.replication_factor, outline.partition_count
    partitions = outline.partitions or new_partitions(
        image, outline.assignment or Placement(image).assign_all(factor, count)
    )
    return TopicImage(name=outline.name, topic_id=topic_id, partitions=partitions, config=outline.config)


def plan_companion(
    image: ClusterImage, kind: str, owner: TopicImage, settings: Settings, topic_id: TopicId
) -> TopicImage:
    """Return a new companion of a topic.

    Raises RequestError: INVALID_PARTITIONS, INVALID_TOPIC if the name is too long.
    """
    name = companion(kind, owner.name)
    check_name(name)
    check_partition_count(image, len(owner.partitions), settings)
    return TopicImage(
        name=name,
        topic_id=topic_id,
        partitions=tuple(companion_partition(partition) for partition in owner.partitions),
        config=checked_config(own_config(name), settings),
    )


def companion_partition(owner: PartitionImage) -> PartitionImage:
    """Return a new partition of a companion: the replicas and the leader are its owner's.

    Its epochs begin at zero; see `conveyor.cluster.controller.bundles`.
    """
    return msgspec.structs.replace(owner, leader_epoch=FIRST_LEADER_EPOCH, partition_epoch=0, unclean_epoch=NO_EPOCH)


def _with_broker_requirements(image: ClusterImage, request: TopicRequest, settings: Settings) -> TopicRequest:
    """Return the request, with the mandatory partitions, replicas and settings if the topic is the broker's own."""
    if request.name == OFFSETS_TOPIC:
        groups = settings.groups
        request = _broker_request(
            image, request.name, groups.offsets_partitions, groups.offsets_replication_factor, settings
        )
    elif request.name == TRANSACTIONS_TOPIC:
        transactions = settings.transactions
        request = _broker_request(
            image, request.name, transactions.state_partitions, transactions.state_replication_factor, settings
        )
        return replace(request, config={**own_config(request.name), "flush.policy": transactions.state_flush_policy})
    elif request.name == AUDIT_TOPIC:
        access = settings.access
        request = _broker_request(
            image, request.name, access.audit_partitions, access.audit_replication_factor, settings
        )
        return replace(request, config=NEW_AUDIT)
    return replace(request, config=own_config(request.name) or request.config)


def _broker_request(image: ClusterImage, name: str, partitions: int, factor: int, settings: Settings) -> TopicRequest:
    """Return the request for one of the broker's own topics with the configured factor, as Kafka does: with fewer
    replicas while a cluster starts, the committed offsets could be lost later (KAFKA-3959). Embedded metadata cannot be
    shared between machines, so no more brokers will come.
    """
    if settings.broker.metadata == EMBEDDED:
        factor = min(factor, len(image.brokers))
    return TopicRequest(name=name, partitions=partitions, replication_factor=factor)


def check_name(name: str) -> None:
    """Check Kafka's rules for topic names. Raises RequestError (INVALID_TOPIC)."""
    if not name or name in (".", "..") or len(name) > MAX_NAME_CHARACTERS or not _NAME.fullmatch(name):
        shown = name if len(name) <= MAX_NAME_CHARACTERS else name[:20] + "..."
        raise RequestError(
            ErrorKind.INVALID_TOPIC,
            f"topic name {shown!r} is not valid: use 1 to {MAX_NAME_CHARACTERS} of letters, digits, '.', '_' and '-'",
        )


def checked_config(
    config: Mapping[str, str], settings: Settings, stored: Mapping[str, str] = _NOTHING
) -> Mapping[str, str]:
    """Return a topic's settings in their stored form. Raises RequestError (INVALID_CONFIG).

    stored: the present settings. Those that stay as they are may have a form that is no longer accepted.
    """
    try:
        check_new_texts(config, stored)
        topic = topic_settings(settings.topics, config)
    except SettingsError as error:
        raise RequestError(ErrorKind.INVALID_CONFIG, str(error)) from error
    if topic.max_message_bytes > MAX_BATCH_BYTES:  # The image may have such topics, so the setting has no maximum.
        raise RequestError(
            ErrorKind.INVALID_CONFIG,
            f"setting 'max.message.bytes' is {topic.max_message_bytes}: it must be at most {MAX_BATCH_BYTES} bytes",
        )
    return MappingProxyType(normalized(config))


def check_partition_count(image: ClusterImage, added: int, settings: Settings, others: int = 0) -> None:
    """Raise RequestError (INVALID_PARTITIONS) if this broker cannot hold `added` more partitions besides `others`."""
    total = image.partition_count + others + added
    if total > settings.broker.max_partitions:
        raise RequestError(
            ErrorKind.INVALID_PARTITIONS,
            f"with {added} more there would be {total} partitions, broker.max_partitions is"
            f" {settings.broker.max_partitions}",
        )


def check_replicas(image: ClusterImage, number: int, nodes: Sequence[int], factor: int) -> None:
    """Check that these brokers can hold a partition of a topic with this replication factor.

    Raises RequestError (INVALID_REPLICA_ASSIGNMENT).
    """
    if len(nodes) != factor:
        raise RequestError(
            ErrorKind.INVALID_REPLICA_ASSIGNMENT,
            f"partition {number} is assigned to {list(nodes)}: the other partitions have {factor} replicas",
        )
    check_no_gateway(nodes)
    unknown = [node for node in nodes if node not in image.brokers]
    if not nodes or unknown or len(set(nodes)) != len(nodes):
        raise RequestError(
            ErrorKind.INVALID_REPLICA_ASSIGNMENT,
            f"partition {number} is assigned to {list(nodes)}: brokers are {sorted(image.brokers)}",
        )


def _check_collision(image: ClusterImage, name: str) -> None:
    """Refuse names that differ only in '.' and '_': metric systems cannot distinguish them. As in Kafka.

    The broker's own topics are exempt. Raises RequestError (INVALID_TOPIC).
    """
    if is_internal(name) or ("." not in name and "_" not in name):
        return
    unified = name.replace(".", "_")
    for other in image.topics:
        if other.replace(".", "_") == unified and not is_companion(other):
            reason = f"topic '{name}' collides with an existing topic, whose name has '.' for '_' or '_' for '.'"
            raise RequestError(ErrorKind.INVALID_TOPIC, reason)


def _assigned(image: ClusterImage, request: TopicRequest) -> list[tuple[NodeId, ...]]:
    if request.partitions != BROKER_DEFAULT or request.replication_factor != BROKER_DEFAULT:
        raise RequestError(
            ErrorKind.INVALID_REQUEST, "give either an assignment, or a number of partitions and replicas"
        )
    if sorted(request.assignment) != list(range(len(request.assignment))):
        raise RequestError(ErrorKind.INVALID_REPLICA_ASSIGNMENT, "assign partitions 0, 1, 2 and so on, each once")
    factor = len(request.assignment[0])
    for number, nodes in request.assignment.items():
        check_replicas(image, number, nodes, factor)
    return [tuple(NodeId(node) for node in request.assignment[number]) for number in sorted(request.assignment)]


def _partition_count(request: TopicRequest, settings: Settings) -> int:
    """Raises RequestError (INVALID_PARTITIONS)."""
    count = settings.broker.num_partitions if request.partitions == BROKER_DEFAULT else request.partitions
    if count < 1:
        raise RequestError(ErrorKind.INVALID_PARTITIONS, f"a topic has at least 1 partition, not {count}")
    if count > settings.broker.max_partitions:
        raise RequestError(
            ErrorKind.INVALID_PARTITIONS,
            f"{count} partitions: broker.max_partitions is {settings.broker.max_partitions}",
        )
    return count


def _replication_factor(request: TopicRequest, settings: Settings) -> int:
    if request.replication_factor == BROKER_DEFAULT:
        return settings.broker.default_replication_factor
    return request.replication_factor
