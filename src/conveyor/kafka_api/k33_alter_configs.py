"""AlterConfigs (key 33): replace all settings of a topic; what is not named goes back to its default. v2 flexible."""

from typing import Any

from conveyor.kafka_api import configs
from conveyor.kafka_api.call import Call
from conveyor.kernel.errors import RequestError


def handle(call: Call) -> None:
    call.broker.tasks.start(_alter_all(call))


async def _alter_all(call: Call) -> None:
    call.answer({"responses": [await _alter(call, each) for each in call.request.resources]})


async def _alter(call: Call, resource: Any) -> dict[str, Any]:
    try:
        configs.check_changeable(call, resource)
        config = {each.name: each.value for each in resource.configs}
        await call.broker.topics.replace_config(resource.resource_name, config, check_only=call.request.validate_only)
    except RequestError as error:
        return configs.result(resource, error)
    return configs.result(resource, None)
