"""SyncGroup (key 14). v3 static members · v4 flexible · v5 protocol type and name."""

from conveyor.groups.group_commands import SyncGroup
from conveyor.groups.replies import Synced
from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import ErrorKind, RequestError

_PROTOCOL_FIELDS = 5


def handle(call: KafkaCall) -> None:
    request = call.request
    if call.header.api_version >= _PROTOCOL_FIELDS and None in (request.protocol_type, request.protocol_name):
        return _finish(call, RequestError(ErrorKind.INCONSISTENT_GROUP_PROTOCOL, "name the protocol and its type"))
    command = SyncGroup(
        group_id=request.group_id,
        generation_id=request.generation_id,
        member_id=request.member_id,
        assignments={assignment.member_id: bytes(assignment.assignment) for assignment in request.assignments},
        group_instance_id=getattr(request, "group_instance_id", None),
        protocol_type=getattr(request, "protocol_type", None),
        protocol_name=getattr(request, "protocol_name", None),
    )
    call.wait(call.broker.coordinators.groups.submit(call.caller, command, call.guarded(_finish)))


def _finish(call: KafkaCall, reply: object) -> None:
    if isinstance(reply, Synced):
        call.answer(
            {
                "error_code": result_errors.NONE,
                "protocol_type": reply.protocol_type,
                "protocol_name": reply.protocol_name,
                "assignment": reply.assignment,
            }
        )
    else:
        assert isinstance(reply, RequestError)
        call.answer(
            {"error_code": result_errors.code(reply), "protocol_type": None, "protocol_name": None, "assignment": b""}
        )
