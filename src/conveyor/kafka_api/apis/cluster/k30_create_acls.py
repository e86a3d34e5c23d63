"""CreateAcls (key 30): each ACL is refused, as Kafka without an authorizer does. v2 flexible · v3 user types."""

from conveyor.kafka_api.apis import result_errors as errors
from conveyor.kafka_api.wire.call import Call


def handle(call: Call) -> None:
    call.answer({"results": [errors.fields(errors.security_disabled()) for _ in call.request.creations]})
