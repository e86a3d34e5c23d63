"""LeaveGroup (key 13). v3 several members, static ones by their instance id · v4 flexible · v5 reason."""

from conveyor.groups.group_commands import LeaveGroup, LeavingMember
from conveyor.groups.replies import Left
from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import RequestError

_MEMBER_LIST = 3


def handle(call: KafkaCall) -> None:
    request = call.request
    if call.header.api_version >= _MEMBER_LIST:
        members = tuple(
            LeavingMember(member_id=member.member_id, group_instance_id=member.group_instance_id)
            for member in request.members
        )
    else:
        members = (LeavingMember(member_id=request.member_id),)
    command = LeaveGroup(group_id=request.group_id, members=members)
    call.wait(call.broker.coordinators.groups.submit(call.caller, command, call.guarded(_finish, members)))


def _finish(call: KafkaCall, members: tuple[LeavingMember, ...], reply: object) -> None:
    if not isinstance(reply, Left):
        assert isinstance(reply, RequestError)
        return call.answer({"error_code": result_errors.code(reply), "members": []})
    if call.header.api_version < _MEMBER_LIST:
        return call.answer({"error_code": result_errors.code(reply.errors[0])})
    left = [
        {
            "member_id": member.member_id,
            "group_instance_id": member.group_instance_id,
            "error_code": result_errors.code(error),
        }
        for member, error in zip(members, reply.errors, strict=True)
    ]
    call.answer({"error_code": result_errors.NONE, "members": left})
