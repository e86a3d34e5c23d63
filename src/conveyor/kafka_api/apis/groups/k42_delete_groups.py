"""DeleteGroups (key 42): delete groups without members, and their offsets. v2 flexible."""

from functools import partial
from typing import Any

from conveyor.groups.group_commands import DeleteGroup
from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.apis.groups.gather import ask_groups
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import RequestError


def handle(call: KafkaCall) -> None:
    commands = [DeleteGroup(group_id=group_id) for group_id in call.request.groups_names]
    ask_groups(call, commands, partial(_result, call), lambda results: call.answer({"results": results}))


def _result(call: KafkaCall, number: int, reply: object) -> dict[str, Any]:
    error = reply if isinstance(reply, RequestError) else None
    return {"group_id": call.request.groups_names[number], "error_code": result_errors.code(error)}
