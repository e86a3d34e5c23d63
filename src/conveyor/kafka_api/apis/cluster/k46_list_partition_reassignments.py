"""ListPartitionReassignments (key 46): no partition is ever moved to another broker, so the list is empty (KIP-455).

As in Kafka, topics and partitions that do not exist are left out of the answer without an error.
"""

from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall


def handle(call: KafkaCall) -> None:
    call.answer(result_errors.fields(None) | {"topics": ()})
