"""What the APIs about settings share: resource types, and how an entry looks on the wire. Source: KIP-133, KIP-226."""

from collections import Counter
from typing import Any

from conveyor.broker.broker import Broker
from conveyor.broker.configs import ConfigEntry, ConfigSource, broker_configs, group_configs, topic_configs
from conveyor.cluster.topic_creation import check_name
from conveyor.kafka_api import errors
from conveyor.kafka_api.call import Call
from conveyor.kernel.errors import ErrorKind, RequestError

TOPIC = 2
BROKER = 4
GROUP = 32
DELETE_OPERATION = 1

SOURCES = {ConfigSource.TOPIC: 1, ConfigSource.BROKER: 4, ConfigSource.DEFAULT: 5}
_LIST = 7
_KINDS = {bool: 1, str: 2, int: 5, float: 6}


def entries_of(broker: Broker, resource_type: int, name: str) -> list[ConfigEntry]:
    """The settings of a resource. Raises RequestError."""
    if resource_type == TOPIC:
        check_name(name)
        return topic_configs(broker.topics.existing(name), broker.settings)
    if resource_type == BROKER:
        check_broker_name(broker, name)
        return broker_configs(broker.settings) if name else []
    if resource_type == GROUP:
        if not name:
            raise RequestError(ErrorKind.INVALID_REQUEST, "a group's name is not empty")
        return group_configs(broker.settings)
    raise unknown_resource(resource_type)


def check_broker_name(broker: Broker, name: str) -> None:
    """Settings are this broker's own, or (no name) the cluster's, which has none. Raises RequestError."""
    own = broker.settings.broker.node_id
    if name not in ("", str(own)):
        raise RequestError(ErrorKind.INVALID_REQUEST, f"this is broker {own}: ask broker '{name}' itself")


def check_changeable(call: Call, resource: Any) -> None:
    """Only topics have settings that a client may change, each once, and each resource once a request.

    Raises RequestError.
    """
    counts = Counter((each.resource_type, each.resource_name) for each in call.request.resources)
    if counts[resource.resource_type, resource.resource_name] > 1:
        raise RequestError(ErrorKind.INVALID_REQUEST, f"'{resource.resource_name}' is named twice in one request")
    names = [each.name for each in resource.configs]
    if len(set(names)) < len(names):
        raise RequestError(ErrorKind.INVALID_REQUEST, "a setting is named twice for one resource")
    missing = [
        each.name
        for each in resource.configs
        if each.value is None and getattr(each, "config_operation", None) != DELETE_OPERATION
    ]
    if missing:
        raise RequestError(ErrorKind.INVALID_REQUEST, f"setting '{missing[0]}' has no value")
    if resource.resource_type == BROKER:
        raise RequestError(
            ErrorKind.INVALID_REQUEST,
            "a broker's settings are given at its start: by flags, environment or conveyor.toml",
        )
    if resource.resource_type == GROUP:
        raise RequestError(
            ErrorKind.INVALID_REQUEST,
            "groups have no settings of their own: the broker's, group.consumer.*, hold for all of them",
        )
    if resource.resource_type != TOPIC:
        raise unknown_resource(resource.resource_type)


def unknown_resource(resource_type: int) -> RequestError:
    return RequestError(
        ErrorKind.INVALID_REQUEST,
        f"resource type {resource_type} has no settings: topics (2), brokers (4) and groups (32) have",
    )


def encoded(entry: ConfigEntry) -> dict[str, Any]:
    """An entry by kio's field names, without synonyms and documentation."""
    return {
        "name": entry.name,
        "value": entry.value,
        "read_only": entry.read_only,
        "is_default": entry.source is ConfigSource.DEFAULT,
        "config_source": SOURCES[entry.source],
        "is_sensitive": False,
        "config_type": _LIST if entry.several else _KINDS[entry.kind],
    }


def result(resource: Any, error: RequestError | None) -> dict[str, Any]:
    """The answer for one resource of a change."""
    return errors.fields(error) | {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
