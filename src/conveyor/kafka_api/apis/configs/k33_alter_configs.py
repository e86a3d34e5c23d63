"""AlterConfigs (key 33): replace all settings of a resource; missing ones return to their defaults. v2 flexible."""

from typing import Any

from conveyor.cluster.topic_change import ConfigChange, Operation
from conveyor.kafka_api.apis.configs import config_entries
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import RequestError


def handle(call: KafkaCall) -> None:
    call.start(_alter_all(call))


async def _alter_all(call: KafkaCall) -> None:
    repeated = config_entries.Repeated(call)
    call.answer({"responses": [await _alter(call, resource, repeated) for resource in call.request.resources]})


async def _alter(call: KafkaCall, resource: Any, repeated: config_entries.Repeated) -> dict[str, Any]:
    changes = [
        ConfigChange(name=config.name, operation=Operation.SET, value=config.value) for config in resource.configs
    ]
    try:
        repeated.check(resource)
        await config_entries.change(call, resource, changes, replaces=True)
    except RequestError as error:
        return config_entries.result(resource, error)
    return config_entries.result(resource, None)
