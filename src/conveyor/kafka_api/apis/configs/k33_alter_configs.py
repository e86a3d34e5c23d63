"""AlterConfigs (key 33): replace all settings of a resource; any other goes back to its default. v2 flexible."""

from typing import Any

from conveyor.cluster.topic_change import ConfigChange, Operation
from conveyor.kafka_api.apis.configs import config_entries as configs
from conveyor.kafka_api.wire.call import Call
from conveyor.kernel.errors import RequestError


def handle(call: Call) -> None:
    call.broker.tasks.start(_alter_all(call))


async def _alter_all(call: Call) -> None:
    call.answer({"responses": [await _alter(call, each) for each in call.request.resources]})


async def _alter(call: Call, resource: Any) -> dict[str, Any]:
    changes = [ConfigChange(name=each.name, operation=Operation.SET, value=each.value) for each in resource.configs]
    try:
        await configs.change(call, resource, changes, replaces=True)
    except RequestError as error:
        return configs.result(resource, error)
    return configs.result(resource, None)
