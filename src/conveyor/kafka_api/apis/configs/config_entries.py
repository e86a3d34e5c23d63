"""Resource types, entries and changes on the wire, for the four APIs about settings.

Source: KIP-133, KIP-226, KIP-412 (loggers), KIP-848 (groups).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.topics.configs import (
    ConfigEntry,
    ConfigSource,
    all_brokers_configs,
    broker_configs,
    group_configs,
    logger_configs,
    topic_configs,
)
from conveyor.cluster.topic_change import ConfigChange, Operation
from conveyor.cluster.topic_creation import check_name
from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import ErrorKind, RequestError

TOPIC = 2
BROKER = 4
BROKER_LOGGER = 8
CLIENT_METRICS = 16
GROUP = 32
DELETE_OPERATION = 1
MAX_SETTINGS = 1_000
"""Of one resource, in one request: more than any has."""

SOURCES = {
    ConfigSource.TOPIC: 1,
    ConfigSource.BROKER_AT_RUN_TIME: 2,
    ConfigSource.ALL_BROKERS_AT_RUN_TIME: 3,
    ConfigSource.BROKER: 4,
    ConfigSource.DEFAULT: 5,
    ConfigSource.LOGGER: 6,
    ConfigSource.GROUP: 8,
}
_LIST = 7
_KINDS = {bool: 1, str: 2, int: 5, float: 6}


def entries_of(broker: BrokerNode, resource_type: int, name: str) -> list[ConfigEntry]:
    """Return the settings of a resource. Raises RequestError."""
    layers = broker.cluster.dynamic_settings.layers
    if resource_type == TOPIC:
        check_name(name)
        return topic_configs(broker.topics.existing(name).config, layers)
    if resource_type == BROKER:
        return all_brokers_configs(layers) if _broker_id(broker, name) is None else broker_configs(layers)
    if resource_type == BROKER_LOGGER:
        _check_logger_name(broker, name)
        return logger_configs(broker.cluster.log_levels.all())
    if resource_type == GROUP:
        _check_group_name(name)
        return group_configs(name, layers)
    raise _unknown_resource(resource_type)


async def alter(call: KafkaCall, changes_of: Callable[[Any], list[ConfigChange]], *, replaces: bool) -> None:
    """Change the settings of all resources of a request, and answer with the result for each.

    changes_of: returns the changes of one resource, or raises RequestError. replaces: reset all other settings.
    """
    counts = Counter(map(_identity, call.request.resources))
    results = []
    async for resource in call.broker.slices.each(call.request.resources, lambda item: 1 + len(item.configs)):
        try:
            _check_settings(resource)
            if counts[_identity(resource)] > 1:
                message = f"'{resource.resource_name}' is named twice in one request"
                raise RequestError(ErrorKind.INVALID_REQUEST, message)
            await _change(call, resource, changes_of(resource), replaces=replaces)
        except RequestError as error:
            results.append(result(resource, error))
        else:
            results.append(result(resource, None))
    call.answer({"responses": results})


def _identity(resource: Any) -> tuple[int, str]:
    return resource.resource_type, resource.resource_name


async def _change(call: KafkaCall, resource: Any, changes: Sequence[ConfigChange], *, replaces: bool) -> None:
    """Raises RequestError."""
    kind, name, check_only = resource.resource_type, resource.resource_name, call.request.validate_only
    broker, dynamic = call.broker, call.broker.cluster.dynamic_settings
    if kind == TOPIC and replaces:
        config = {change.name: change.value or "" for change in changes}
        await broker.topics.replace_config(call.caller, name, config, check_only=check_only)
    elif kind == TOPIC:
        await broker.topics.change_config(call.caller, name, changes, check_only=check_only)
    elif kind == BROKER:
        await dynamic.change_broker(
            call.caller, _broker_id(broker, name), changes, replaces=replaces, check_only=check_only
        )
    elif kind == GROUP:
        _check_group_name(name)
        await dynamic.change_group(call.caller, name, changes, replaces=replaces, check_only=check_only)
    elif kind == BROKER_LOGGER and not replaces:
        _check_logger_name(broker, name)
        _change_loggers(call.caller, broker, changes, check_only=check_only)
    else:
        raise _unknown_resource(kind)


def encoded(entry: ConfigEntry) -> dict[str, Any]:
    """Return an entry as a dict of kio's field names, without synonyms and documentation."""
    return {
        "name": entry.name,
        "value": None if entry.is_sensitive else entry.value,
        "read_only": entry.read_only,
        "is_default": entry.source is ConfigSource.DEFAULT,
        "config_source": SOURCES[entry.source],
        "is_sensitive": entry.is_sensitive,
        "config_type": _LIST if entry.is_list else _KINDS[entry.kind],
    }


def result(resource: Any, error: RequestError | None) -> dict[str, Any]:
    return result_errors.fields(error) | {
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
    }


def _change_loggers(caller: Caller, broker: BrokerNode, changes: Sequence[ConfigChange], *, check_only: bool) -> None:
    """Change all levels, or none if one is invalid."""
    for only_checked in (True, check_only):
        for change in changes:
            if change.operation is Operation.SET:
                broker.cluster.log_levels.set(caller, change.name, change.value or "", check_only=only_checked)
            elif change.operation is Operation.DELETE:
                broker.cluster.log_levels.clear(caller, change.name, check_only=only_checked)
            else:
                raise RequestError(ErrorKind.INVALID_REQUEST, f"the level of logger '{change.name}' is not a list")


def _check_settings(resource: Any) -> None:
    """Raise RequestError if there are too many settings, or one is repeated or has no value."""
    if len(resource.configs) > MAX_SETTINGS:
        message = f"{len(resource.configs)} settings of one resource: a request may have {MAX_SETTINGS}"
        raise RequestError(ErrorKind.INVALID_REQUEST, message)
    names = [config.name for config in resource.configs]
    if len(set(names)) < len(names):
        raise RequestError(ErrorKind.INVALID_REQUEST, "a setting is named twice for one resource")
    missing = [
        config.name
        for config in resource.configs
        if config.value is None and getattr(config, "config_operation", None) != DELETE_OPERATION
    ]
    if missing:
        raise RequestError(ErrorKind.INVALID_REQUEST, f"setting '{missing[0]}' has no value")


def _broker_id(broker: BrokerNode, name: str) -> int | None:
    """Return the broker id that a resource names; None for an empty name: all brokers. Raises RequestError."""
    own = broker.settings.broker.node_id
    if name not in ("", str(own)):
        raise RequestError(ErrorKind.INVALID_REQUEST, f"this is broker {own}: send the request to broker '{name}'")
    return own if name else None


def _check_logger_name(broker: BrokerNode, name: str) -> None:
    if _broker_id(broker, name) is None:
        raise RequestError(ErrorKind.INVALID_REQUEST, "loggers belong to one broker: name the broker by its id")


def _check_group_name(name: str) -> None:
    if not name:
        raise RequestError(ErrorKind.INVALID_REQUEST, "the group's name is empty")


def _unknown_resource(resource_type: int) -> RequestError:
    return RequestError(
        ErrorKind.INVALID_REQUEST,
        f"this request does not support resource type {resource_type}: use a topic (2), a broker (4), a logger (8) or a"
        " group (32)",
    )
