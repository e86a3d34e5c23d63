"""ListGroups (key 16): the groups that this broker coordinates. v3 flexible · v4 filter by state (KIP-518) ·
v5 filter by type (KIP-848)."""

from collections.abc import Sequence

from conveyor.groups.group_commands import ListGroups
from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import RequestError

_LONGEST = 32


def handle(call: KafkaCall) -> None:
    call.start(_list(call))


async def _list(call: KafkaCall) -> None:
    states, types = (getattr(call.request, name, ()) for name in ("states_filter", "types_filter"))
    command = ListGroups(states=_lowered(states), types=_lowered(types))
    try:
        listings = await call.broker.coordinators.groups.list_groups(call.caller, command)
    except RequestError as error:
        return call.answer({"error_code": result_errors.code(error), "groups": []})
    groups = (
        {
            "group_id": group.group_id,
            "protocol_type": group.protocol_type,
            "group_state": group.state,
            "group_type": group.group_type,
        }
        for group in listings
    )
    call.answer({"error_code": result_errors.NONE, "groups": groups}, len(listings))


def _lowered(texts: Sequence[str]) -> frozenset[str]:
    """Return a filter in lower case. What is longer than any state or type matches none, whatever it is."""
    return frozenset(text.lower() if len(text) <= _LONGEST else "" for text in texts)
