"""ListPartitionReassignments (key 46): no partition is ever moved to another broker, so the list is empty (KIP-455).

As in Kafka, topics and partitions that do not exist are left out of the answer without an error.
"""

from conveyor.kafka_api.apis import result_errors as errors
from conveyor.kafka_api.wire.call import Call


def handle(call: Call) -> None:
    call.answer(errors.fields(None) | {"topics": ()})
