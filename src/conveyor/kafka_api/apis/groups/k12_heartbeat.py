"""Heartbeat (key 12). v3 static members · v4 flexible."""

from conveyor.groups.group_commands import Heartbeat
from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import RequestError


def handle(call: KafkaCall) -> None:
    request = call.request
    command = Heartbeat(
        group_id=request.group_id,
        generation_id=request.generation_id,
        member_id=request.member_id,
        group_instance_id=getattr(request, "group_instance_id", None),
    )
    call.wait(call.broker.coordinators.groups.submit(call.caller, command, call.guarded(_finish)))


def _finish(call: KafkaCall, reply: object) -> None:
    call.answer({"error_code": result_errors.code(reply if isinstance(reply, RequestError) else None)})
