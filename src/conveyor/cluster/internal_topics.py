"""The fixed settings of the broker's internal topics and of delayed topics. Clients cannot change them, but for the
`flush.policy` of `__transaction_state`, and between policies that keep waiting records.

They apply whether a client or the broker creates the topic. A state machine replays each of these topics at its start,
so an internal topic must not lose a record that the machine still needs. `__consumer_offsets` and `__transaction_state`
are compacted: the last record of each key is the state. The owner of a companion trims it, so retention deletes nothing
by time or size. No machine reads `__audit`: retention deletes its records, and operators decide when.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from conveyor.cluster.image import (
    AUDIT_TOPIC,
    DELAY_TARGET,
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    TopicImage,
    is_companion,
)
from conveyor.kernel.errors import ErrorKind, RequestError

_SAFE = {
    "flush.policy": "ack",  # A reply that depends on a record is sent only once the record is on the disk.
    "max.message.bytes": str((1 << 31) - 1),  # `groups.max_size` limits a group, not the size of its record.
}
_COORDINATORS = MappingProxyType(
    _SAFE
    | {
        "cleanup.policy": "compact",
        "segment.bytes": str(100 << 20),
    }  # Small segments, because the active segment is not compacted.
)
_COMPANION = MappingProxyType(
    _SAFE
    | {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
    | {"segment.bytes": str(16 << 20)}  # Small segments, so that trimmed records are soon removed from the disk.
)
_AUDIT = MappingProxyType({"cleanup.policy": "delete", "flush.policy": "ack", "max.message.bytes": str(1 << 20)})
NEW_AUDIT = MappingProxyType(_AUDIT | {"retention.ms": str(7 * 86_400_000), "segment.bytes": str(100 << 20)})
"""The settings of a new `__audit`. Operators may change how long it keeps its records."""
_FLUSH_POLICIES = ("ack", "os")
_DELAYED_CLEANUP = ("delete", "acknowledged", "delete,acknowledged", "acknowledged,delete")
_OF_TARGET = ("min.insync.replicas", "unclean.leader.election.enable")
_NONE: Mapping[str, str] = MappingProxyType({})


def own_config(name: str, delay_target: str | None = None) -> Mapping[str, str]:
    """Return the settings that a topic must have; empty for most of the clients' topics. delay_target: of a delayed
    topic, whose records are on the disk before they are acknowledged, whatever its target demands.
    """
    if name in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC):
        return _COORDINATORS
    if name == AUDIT_TOPIC:
        return _AUDIT
    if delay_target is not None:
        return {"flush.policy": "ack", "cleanup.policy": "delete", DELAY_TARGET: delay_target}
    return _COMPANION if is_companion(name) else _NONE


def with_own_config(
    name: str, config: Mapping[str, str], delay_target: str | None = None, shared: Mapping[str, str] = _NONE
) -> Mapping[str, str]:
    """Return a topic's settings with the mandatory ones added. Raises RequestError (INVALID_CONFIG) for a conflicting
    value.

    A missing mandatory setting, for example after its deletion, is added again. shared: the `shared_config` of a
    delayed topic.
    """
    own = own_config(name, delay_target)
    for setting, value in own.items():
        if config.get(setting, value) not in _choices(name, setting, value, delay_target):
            raise RequestError(
                ErrorKind.INVALID_CONFIG,
                f"'{setting}' of '{name}' is {value} and cannot be changed: {_reason(delay_target)}",
            )
    if delay_target is None:
        return {**own, **config}
    for setting in _OF_TARGET:
        if config.get(setting, shared.get(setting)) != shared.get(setting):
            raise RequestError(
                ErrorKind.INVALID_CONFIG, f"'{setting}' of a delayed topic is that of its target '{delay_target}'"
            )
    return {**own, **shared, **config}


def shared_config(topic: TopicImage) -> Mapping[str, str]:
    """Return those of a target's settings that its delayed topics have, too, or those that a delayed topic has."""
    return {setting: topic.config[setting] for setting in _OF_TARGET if setting in topic.config}


def with_shared_config(delayed: TopicImage, target: TopicImage) -> TopicImage:
    """Return a delayed topic with the settings of its target that both share."""
    own = {setting: value for setting, value in delayed.config.items() if setting not in _OF_TARGET}
    return replace(delayed, config=MappingProxyType(own | dict(shared_config(target))))


def mended_config(topic: TopicImage) -> Mapping[str, str]:
    """Return a topic's settings in which missing and wrong mandatory ones are replaced."""
    name, target = topic.name, topic.delay_target
    wrong = {
        setting: value
        for setting, value in own_config(name, target).items()
        if topic.config.get(setting) not in _choices(name, setting, value, target)
    }
    return {**topic.config, **wrong}


def _choices(name: str, setting: str, value: str, delay_target: str | None) -> tuple[str, ...]:
    """Return the values that a mandatory setting may have. See `transactions.state_flush_policy`."""
    if delay_target is not None and setting == "cleanup.policy":
        return _DELAYED_CLEANUP
    return _FLUSH_POLICIES if (name, setting) == (TRANSACTIONS_TOPIC, "flush.policy") else (value,)


def _reason(delay_target: str | None) -> str:
    return "the topic has the broker's own records" if delay_target is None else "it is a delayed topic"
