"""DeleteAcls (key 31): each filter is refused, as Kafka without an authorizer does. v2 flexible · v3 user types."""

from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall


def handle(call: KafkaCall) -> None:
    refused = result_errors.fields(result_errors.security_disabled()) | {"matching_acls": ()}
    call.answer({"filter_results": [refused for _ in call.request.filters]})
