"""CreateAcls (key 30): each ACL is refused, as Kafka without an authorizer does. v2 flexible · v3 user types."""

from conveyor.kafka_api import errors
from conveyor.kafka_api.call import Call


def handle(call: Call) -> None:
    call.answer({"results": [errors.fields(errors.security_disabled()) for _ in call.request.creations]})
