"""Decides on a change of a topic: its settings, or more partitions. Pure: nothing is stored here."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, replace
from enum import Enum, auto
from typing import Any

from conveyor.cluster.image import DELAY_TARGET, ClusterImage, TopicImage
from conveyor.cluster.internal_topics import shared_config, with_own_config
from conveyor.cluster.placement import Placement, check_factor, new_partitions
from conveyor.cluster.topic_creation import check_partition_count, check_replicas, checked_config
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NodeId
from conveyor.settings.topic_settings import list_items, unknown_topic_setting
from conveyor.settings.tree import Settings, topic_setting_fields
from conveyor.settings.unused_settings import UNUSED_TOPIC_SETTINGS


class Operation(Enum):
    """The operation on one setting. Source: KIP-339."""

    SET = auto()
    DELETE = auto()
    APPEND = auto()
    SUBTRACT = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """One setting by Kafka's name. `value`: the text to set, append or subtract; None for DELETE."""

    name: str
    operation: Operation
    value: str | None = None


def changed_config(topic: TopicImage, changes: Sequence[ConfigChange], settings: Settings) -> TopicImage:
    """Return the topic with some settings changed and the others kept. Raises RequestError (INVALID_CONFIG)."""
    names = [change.name for change in changes]
    if len(set(names)) < len(names):
        raise RequestError(ErrorKind.INVALID_REQUEST, "a setting is changed twice in one request")
    config = dict(topic.config)
    for change in changes:
        _change(config, change, settings)
    return replaced_config(topic, config, settings)


def replaced_config(topic: TopicImage, config: Mapping[str, str], settings: Settings) -> TopicImage:
    """Return the topic with these settings, and defaults for all others. Raises RequestError (INVALID_CONFIG)."""
    if (config.get(DELAY_TARGET, topic.delay_target) or None) != topic.delay_target:
        raise RequestError(ErrorKind.INVALID_CONFIG, f"'{DELAY_TARGET}' is set when a topic is created, and stays")
    own = with_own_config(topic.name, config, topic.delay_target, shared_config(topic))
    return replace(topic, config=checked_config(own, settings, topic.config))


def check_more_partitions(
    image: ClusterImage,
    topic: TopicImage,
    count: int,
    assignment: Sequence[Sequence[int]] | None,
    settings: Settings,
    others: int = 0,
) -> int:
    """Check that partitions can be added until there are `count`. They cost nothing here without an assignment.

    others: partitions that the cluster gets besides.
    Returns the number of partitions that the cluster gets, with those of the topic's companions.
    Raises RequestError: INVALID_PARTITIONS, INVALID_REPLICA_ASSIGNMENT, INVALID_REPLICATION_FACTOR.
    """
    present = len(topic.partitions)
    if count <= present:
        raise RequestError(
            ErrorKind.INVALID_PARTITIONS, f"topic '{topic.name}' has {present} partitions: ask for more than that"
        )
    if topic.delay_target is not None:
        raise RequestError(
            ErrorKind.INVALID_PARTITIONS,
            f"topic '{topic.name}' has the partitions of its target: add partitions to the target ({DELAY_TARGET})",
        )
    added = sum(count - len(grown.partitions) for grown in (topic, *image.companions(topic.name)))
    check_partition_count(image, added, settings, others)
    factor = topic.replication_factor
    if assignment is None:
        check_factor(image, factor)
        return added
    if len(assignment) != count - present:
        raise RequestError(
            ErrorKind.INVALID_REPLICA_ASSIGNMENT,
            f"{count - present} partitions are added, and {len(assignment)} are assigned",
        )
    for number, replicas in enumerate(assignment, present):
        check_replicas(image, number, replicas, factor)
    new_partitions(image, _as_nodes(assignment), present)
    return added


def more_partitions(
    image: ClusterImage, topic: TopicImage, count: int, assignment: Sequence[Sequence[int]] | None, settings: Settings
) -> TopicImage:
    """Return the topic with partitions added until there are `count`.

    Raises the errors of `check_more_partitions`.
    """
    check_more_partitions(image, topic, count, assignment, settings)
    present = len(topic.partitions)
    if assignment is None:
        replicas = Placement(image).assign_all(topic.replication_factor, count - present)
    else:
        replicas = _as_nodes(assignment)
    return replace(topic, partitions=topic.partitions + new_partitions(image, replicas, present))


def change_text(config: dict[str, str], change: ConfigChange, declared: "Field[Any]", default: object) -> None:
    """Apply one change to `config`. default: the initial value of a list that has none of its own.

    Raises RequestError (INVALID_CONFIG).
    """
    if change.operation is Operation.DELETE:
        config.pop(change.name, None)
        return
    if change.value is None:
        raise RequestError(ErrorKind.INVALID_CONFIG, f"setting '{change.name}' has no value")
    if change.operation is Operation.SET:
        config[change.name] = change.value
        return
    if not declared.metadata["is_list"]:
        raise RequestError(
            ErrorKind.INVALID_CONFIG,
            f"'{change.name}' is not a list: it can be set, not appended to or subtracted from",
        )
    present = [item for item in list_items(config.get(change.name, str(default))) if item]
    given = dict.fromkeys(list_items(change.value))
    if change.operation is Operation.APPEND:
        changed: Iterable[str] = dict.fromkeys(present) | given
    else:
        changed = (item for item in present if item not in given)
    config[change.name] = ",".join(changed)


def _as_nodes(assignment: Sequence[Sequence[int]]) -> list[tuple[NodeId, ...]]:
    return [tuple(NodeId(node) for node in replicas) for replicas in assignment]


def _change(config: dict[str, str], change: ConfigChange, settings: Settings) -> None:
    declared = topic_setting_fields().get(change.name)
    if declared is None:
        raise RequestError(ErrorKind.INVALID_CONFIG, unknown_topic_setting(change.name))
    inherited = declared.default if change.name in UNUSED_TOPIC_SETTINGS else getattr(settings.topics, declared.name)
    change_text(config, change, declared, inherited)
