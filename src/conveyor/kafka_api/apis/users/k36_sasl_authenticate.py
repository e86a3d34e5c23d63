"""SaslAuthenticate (key 36): a message of the mechanism that SaslHandshake has named (KIP-152). v1 the lifetime of the
session (KIP-368) · v2 flexible.

The login of a connection answers on listeners with SASL. Here: everywhere else.
"""

from conveyor.kafka_api.apis.users.k17_sasl_handshake import ILLEGAL_SASL_STATE
from conveyor.kafka_api.wire.call import KafkaCall

_REASON = "SaslAuthenticate follows SaslHandshake, at a listener with SASL"


def handle(call: KafkaCall) -> None:
    call.answer({"error_code": ILLEGAL_SASL_STATE, "error_message": _REASON, "auth_bytes": b""})
