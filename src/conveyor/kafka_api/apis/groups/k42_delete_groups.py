"""DeleteGroups (key 42): delete groups without members, and their offsets. v2 flexible."""

import asyncio

from conveyor.groups.group_commands import DeleteGroup
from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import ErrorKind, RequestError


def handle(call: KafkaCall) -> None:
    call.start(_delete(call))


async def _delete(call: KafkaCall) -> None:
    names = call.request.groups_names
    codes = await asyncio.gather(*(_error(call, group_id) for group_id in names))
    results = [{"group_id": group_id, "error_code": code} for group_id, code in zip(names, codes, strict=True)]
    call.answer({"results": results})


async def _error(call: KafkaCall, group_id: str) -> int:
    """Delete a group, a part of its offsets in each turn. Returns the code of the error; see `result_errors`."""
    has_begun = False
    try:
        while not (await call.broker.coordinators.groups.ask(call.caller, DeleteGroup(group_id=group_id))).is_complete:
            has_begun = True
            await call.broker.slices.turn()
    except RequestError as error:
        if not (has_begun and error.kind is ErrorKind.GROUP_ID_NOT_FOUND):  # The rest has expired meanwhile.
            return result_errors.code(error)
    return result_errors.NONE
