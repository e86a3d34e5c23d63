"""DescribeAcls (key 29): refused, as Kafka without an authorizer does. v1 pattern types · v2 flexible · v3 user
types."""

from conveyor.kafka_api.apis import result_errors as errors
from conveyor.kafka_api.wire.call import Call


def handle(call: Call) -> None:
    call.answer(errors.fields(errors.security_disabled()) | {"resources": ()})
