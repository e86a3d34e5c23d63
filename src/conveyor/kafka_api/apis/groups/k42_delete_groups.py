"""DeleteGroups (key 42): forget groups without members, and their offsets. v2 flexible."""

from functools import partial
from typing import Any

from conveyor.groups.group_commands import DeleteGroup
from conveyor.kafka_api.apis import result_errors as errors
from conveyor.kafka_api.apis.groups.gather import ask_groups
from conveyor.kafka_api.wire.call import Call
from conveyor.kernel.errors import RequestError


def handle(call: Call) -> None:
    commands = [DeleteGroup(group_id=each) for each in call.request.groups_names]
    ask_groups(call, commands, partial(_result, call), lambda results: call.answer({"results": results}))


def _result(call: Call, number: int, reply: object) -> dict[str, Any]:
    error = reply if isinstance(reply, RequestError) else None
    return {"group_id": call.request.groups_names[number], "error_code": errors.code(error)}
