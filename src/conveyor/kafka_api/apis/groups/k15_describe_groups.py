"""DescribeGroups (key 15): groups of the classic protocol. v3 authorised operations · v4 static members · v5 flexible ·
v6 GROUP_ID_NOT_FOUND for a group that does not exist; before, its state is `Dead` (KIP-1043)."""

from functools import partial
from typing import Any

from conveyor.groups.group_commands import DescribeGroup
from conveyor.groups.replies import DescribedGroup
from conveyor.kafka_api.access.operations import NOT_ASKED, group_operations
from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.apis.groups.gather import Descriptions, ask_groups
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import ErrorKind, RequestError

_NOT_FOUND_ERROR = 6
_COPIES = 2
"""Of what the members have sent, in memory until the response is sent."""


def handle(call: KafkaCall) -> None:
    commands = [DescribeGroup(group_id=group) for group in call.request.groups]
    ask_groups(call, commands, partial(_group, call), lambda groups: call.answer({"groups": groups}, _count(groups)))


def _count(groups: Descriptions) -> int:
    return sum([len(group["members"]) for group in groups])


def _group(call: KafkaCall, number: int, reply: object) -> dict[str, Any]:
    identity = {"group_id": call.request.groups[number]}
    requested = getattr(call.request, "include_authorized_operations", False)
    operations = group_operations(call, identity["group_id"]) if requested else NOT_ASKED
    if isinstance(reply, DescribedGroup):
        call.weigh(_COPIES * sum(len(member.subscription) + len(member.assignment) for member in reply.members))
        return identity | {
            "error_code": result_errors.NONE,
            "group_state": reply.state,
            "protocol_type": reply.protocol_type,
            "protocol_data": reply.protocol_name,
            "members": [_member(member) for member in reply.members],
            "authorized_operations": operations,
        }
    assert isinstance(reply, RequestError)
    nothing = {"protocol_type": "", "protocol_data": "", "members": []}
    if reply.kind is not ErrorKind.GROUP_ID_NOT_FOUND:
        return identity | nothing | {"error_code": result_errors.code(reply), "group_state": ""}
    dead = identity | nothing | {"group_state": "Dead"}
    if call.header.api_version >= _NOT_FOUND_ERROR:
        return dead | {"error_code": result_errors.code(reply), "error_message": reply.message}
    return dead | {"error_code": result_errors.NONE, "authorized_operations": operations}


def _member(member: Any) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "group_instance_id": member.group_instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "member_metadata": member.subscription,
        "member_assignment": member.assignment,
    }
