"""ListPartitionReassignments (key 46, KIP-455): the list is empty, because no partition moves to another broker.

As in Kafka, the response omits topics and partitions that do not exist, without an error.
"""

from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall


def handle(call: KafkaCall) -> None:
    call.answer(result_errors.fields(None) | {"topics": ()})
