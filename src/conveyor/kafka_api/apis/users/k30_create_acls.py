"""CreateAcls (key 30): each ACL is refused, as Kafka without an authorizer does. v2 flexible · v3 user types."""

from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall


def handle(call: KafkaCall) -> None:
    call.answer({"results": [result_errors.fields(result_errors.security_disabled()) for _ in call.request.creations]})
