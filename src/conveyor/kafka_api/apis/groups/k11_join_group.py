"""JoinGroup (key 11). v1 rebalance timeout · v4 requires a member id (KIP-394) · v5 static members · v6 flexible ·
v7 protocol type in the response · v8 reason · v9 a leader may skip the assignment (KIP-814)."""

from datetime import timedelta

from conveyor.groups.group_commands import JoinGroup
from conveyor.groups.replies import Joined, JoinRefused
from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import RequestError

_MEMBER_ID_REQUIRED = 4
_SKIP_ASSIGNMENT = 9
_NULL_PROTOCOL = 7
_MILLISECOND = timedelta(milliseconds=1)


def handle(call: KafkaCall) -> None:
    request = call.request
    command = JoinGroup(
        group_id=request.group_id,
        member_id=request.member_id,
        new_member_id=call.broker.coordinators.groups.new_member_id(
            getattr(request, "group_instance_id", None) or call.header.client_id
        ),
        client_id=call.header.client_id,
        client_host=f"/{call.caller.address}",
        session_timeout_ms=request.session_timeout // _MILLISECOND,
        rebalance_timeout_ms=getattr(request, "rebalance_timeout", request.session_timeout) // _MILLISECOND,
        protocol_type=request.protocol_type,
        protocols=tuple((protocol.name, bytes(protocol.metadata)) for protocol in request.protocols),
        group_instance_id=getattr(request, "group_instance_id", None),
        requires_known_id=call.header.api_version >= _MEMBER_ID_REQUIRED,
        skips_assignment=call.header.api_version >= _SKIP_ASSIGNMENT,
    )
    call.wait(call.broker.coordinators.groups.submit(call.caller, command, call.guarded(_finish)))


def _finish(call: KafkaCall, reply: object) -> None:
    if isinstance(reply, Joined):
        return _joined(call, reply)
    member_id = call.request.member_id
    if isinstance(reply, JoinRefused):
        member_id, reply = reply.member_id, reply.error
    assert isinstance(reply, RequestError)
    call.answer(
        {
            "error_code": result_errors.code(reply),
            "generation_id": -1,
            "protocol_name": None if call.header.api_version >= _NULL_PROTOCOL else "",
            "leader": "",
            "member_id": member_id,
            "members": [],
        }
    )


def _joined(call: KafkaCall, reply: Joined) -> None:
    members = [
        {"member_id": member.member_id, "group_instance_id": member.group_instance_id, "metadata": member.metadata}
        for member in reply.members
    ]
    call.answer(
        {
            "error_code": result_errors.NONE,
            "generation_id": reply.generation_id,
            "protocol_type": reply.protocol_type,
            "protocol_name": reply.protocol_name,
            "leader": reply.leader,
            "skip_assignment": reply.skip_assignment,
            "member_id": reply.member_id,
            "members": members,
        },
        len(members),
    )
