"""IncrementalAlterConfigs (key 44): set, delete, append to or subtract from single settings (KIP-339). v1 flexible.

DELETE of a setting that is not set changes nothing and succeeds, also if no setting has that name, as in Kafka.
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
    call.broker.tasks.start(_alter_all(call))


async def _alter_all(call: KafkaCall) -> None:
    call.answer({"responses": [await _alter(call, resource) for resource in call.request.resources]})


async def _alter(call: KafkaCall, resource: Any) -> dict[str, Any]:
    try:
        changes = [_change(config) for config in resource.configs if not _deletes_nothing(resource, config)]
        await config_entries.change(call, resource, changes, replaces=False)
    except RequestError as error:
        return config_entries.result(resource, error)
    return config_entries.result(resource, None)


def _deletes_nothing(resource: Any, asked: Any) -> bool:
    is_deletion = asked.config_operation == config_entries.DELETE_OPERATION
    return is_deletion and resource.resource_type == config_entries.TOPIC and asked.name not in topic_setting_fields()


def _change(asked: Any) -> ConfigChange:
    operation = _OPERATIONS.get(asked.config_operation)
    if operation is None:
        raise RequestError(ErrorKind.INVALID_REQUEST, f"operation {asked.config_operation}: there are 0 to 3")
    return ConfigChange(name=asked.name, operation=operation, value=asked.value)
