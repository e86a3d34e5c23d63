"""DescribeAcls (key 29): refused, as Kafka without an authorizer does. v1 pattern types · v2 flexible · v3 user
types."""

from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall


def handle(call: KafkaCall) -> None:
    call.answer(result_errors.fields(result_errors.security_disabled()) | {"resources": ()})
