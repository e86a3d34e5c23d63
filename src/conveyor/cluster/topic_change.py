"""Decides on a change of a topic: its settings, or more partitions. Pure: nothing is stored here."""

from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, replace
from enum import Enum, auto
from typing import Any

from conveyor.cluster.image import ClusterImage, TopicImage
from conveyor.cluster.internal_topics import with_own_config
from conveyor.cluster.placement import Placement, new_partition
from conveyor.cluster.topic_creation import check_partition_count, check_replicas, checked_config
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NodeId
from conveyor.settings.topic_settings import list_items
from conveyor.settings.tree import Settings, topic_setting_fields


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
    return replace(topic, config=checked_config(with_own_config(topic.name, config), settings))


def more_partitions(
    image: ClusterImage, topic: TopicImage, count: int, assignment: Sequence[Sequence[int]] | None, settings: Settings
) -> TopicImage:
    """Return the topic with partitions added until there are `count`.

    Raises RequestError: INVALID_PARTITIONS, INVALID_REPLICA_ASSIGNMENT, INVALID_REPLICATION_FACTOR.
    """
    present = len(topic.partitions)
    if count <= present:
        raise RequestError(
            ErrorKind.INVALID_PARTITIONS, f"topic '{topic.name}' has {present} partitions: ask for more than that"
        )
    check_partition_count(image, count - present, settings)
    factor = topic.partitions[0].replication_factor
    if assignment is None:
        placement = Placement(image)
        assignment = [placement.assign(factor) for _ in range(count - present)]
    if len(assignment) != count - present:
        raise RequestError(
            ErrorKind.INVALID_REPLICA_ASSIGNMENT,
            f"{count - present} partitions are added, and {len(assignment)} are assigned",
        )
    for number, replicas in enumerate(assignment, present):
        check_replicas(image, number, replicas, factor)
    added = [tuple(NodeId(node) for node in replicas) for replicas in assignment]
    partitions = tuple(new_partition(image, number, nodes) for number, nodes in enumerate(added, present))
    return replace(topic, partitions=topic.partitions + partitions)


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
    given = list_items(change.value)
    if change.operation is Operation.APPEND:
        present += [item for item in given if item not in present]
    else:
        present = [item for item in present if item not in given]
    config[change.name] = ",".join(present)


def _change(config: dict[str, str], change: ConfigChange, settings: Settings) -> None:
    declared = topic_setting_fields().get(change.name)
    if declared is None:
        raise RequestError(ErrorKind.INVALID_CONFIG, f"unknown topic setting '{change.name}'")
    change_text(config, change, declared, getattr(settings.topics, declared.name))
