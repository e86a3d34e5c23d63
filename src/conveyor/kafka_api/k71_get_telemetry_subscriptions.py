"""GetTelemetrySubscriptions (key 71): which of its metrics a client is to push (KIP-714). None are wanted here."""

from conveyor.broker.telemetry import COMPRESSION_TYPES
from conveyor.kafka_api.call import Call
from conveyor.kernel.errors import RequestError


def handle(call: Call) -> None:
    try:
        subscription = call.broker.telemetry.subscribe(call.request.client_instance_id, call.broker.clock.now_ms())
    except RequestError as error:
        return call.answer(
            {
                "error_code": error.kafka_code,
                "client_instance_id": None,
                "subscription_id": 0,
                "push_interval": 0,
                "telemetry_max_bytes": 0,
                "delta_temporality": False,
            }
        )
    call.answer(
        {
            "error_code": 0,
            "client_instance_id": subscription.client_instance_id,
            "subscription_id": subscription.subscription_id,
            "accepted_compression_types": COMPRESSION_TYPES,
            "push_interval": subscription.push_interval_ms,
            "telemetry_max_bytes": subscription.max_bytes,
            "delta_temporality": True,
            "requested_metrics": (),
        }
    )
