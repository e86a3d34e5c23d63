"""PushTelemetry (key 72): a client's metrics (KIP-714). They are checked, and dropped: nothing here receives them."""

from conveyor.broker.telemetry import Push
from conveyor.kafka_api import errors
from conveyor.kafka_api.call import Call
from conveyor.kernel.errors import RequestError


def handle(call: Call) -> None:
    request = call.request
    push = Push(
        client_instance_id=request.client_instance_id,
        subscription_id=request.subscription_id,
        terminating=request.terminating,
        compression_type=request.compression_type,
        size_bytes=len(request.metrics),
    )
    failure: RequestError | None = None
    try:
        call.broker.telemetry.push(push, call.broker.clock.now_ms())
    except RequestError as error:
        failure = error
    call.answer({"error_code": errors.code(failure)})
