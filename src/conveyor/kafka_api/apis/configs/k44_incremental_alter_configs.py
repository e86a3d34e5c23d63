"""IncrementalAlterConfigs (key 44): set, delete, append to or subtract from single settings (KIP-339). v1 flexible.

DELETE of a setting that is not set, or that does not exist, succeeds and changes nothing, as in Kafka.
"""

from typing import Any

from conveyor.cluster.topic_change import ConfigChange, Operation
from conveyor.kafka_api.apis.configs import config_entries
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.settings.tree import topic_setting_fields

_OPERATIONS = {
    0: Operation.SET,
    config_entries.DELETE_OPERATION: Operation.DELETE,
    2: Operation.APPEND,
    3: Operation.SUBTRACT,
}


def handle(call: KafkaCall) -> None:
    call.start(config_entries.alter(call, _changes, replaces=False))


def _changes(resource: Any) -> list[ConfigChange]:
    return [_change(config) for config in resource.configs if not _deletes_nothing(resource, config)]


def _deletes_nothing(resource: Any, requested: Any) -> bool:
    is_deletion = requested.config_operation == config_entries.DELETE_OPERATION
    return (
        is_deletion and resource.resource_type == config_entries.TOPIC and requested.name not in topic_setting_fields()
    )


def _change(requested: Any) -> ConfigChange:
    operation = _OPERATIONS.get(requested.config_operation)
    if operation is None:
        raise RequestError(ErrorKind.INVALID_REQUEST, f"unknown operation {requested.config_operation}: use 0 to 3")
    return ConfigChange(name=requested.name, operation=operation, value=requested.value)
