"""SaslHandshake (key 17): the mechanism by which the client will prove who it is (KIP-43), by SaslAuthenticate (v1).

The login of a connection answers on listeners with SASL. Here: everywhere else.
"""

from conveyor.kafka_api.wire.call import KafkaCall

ILLEGAL_SASL_STATE = 34


def handle(call: KafkaCall) -> None:
    call.answer({"error_code": ILLEGAL_SASL_STATE, "mechanisms": ()})
