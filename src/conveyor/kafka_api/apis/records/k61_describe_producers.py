"""DescribeProducers (key 61): the producers that partitions remember, and where their open transactions begin
(KIP-664).
"""

from typing import Any

from conveyor.broker.partitions.active_producers import ActiveProducer, active_producers
from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import RequestError


def handle(call: KafkaCall) -> None:
    topics = [
        {"name": topic.name, "partitions": [_partition(call, topic.name, number) for number in topic.partition_indexes]}
        for topic in call.request.topics
    ]
    call.answer({"topics": topics})


def _partition(call: KafkaCall, topic: str, number: int) -> dict[str, Any]:
    producers, error = [], None
    try:
        producers = [_producer(producer) for producer in active_producers(call.broker.partitions.table, topic, number)]
    except RequestError as failure:
        error = failure.detached()
    return {"partition_index": number, **result_errors.fields(error), "active_producers": producers}


def _producer(producer: ActiveProducer) -> dict[str, Any]:
    return {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "last_sequence": producer.last_sequence,
        "last_timestamp": producer.last_append_timestamp_ms,
        "coordinator_epoch": producer.coordinator_epoch,
        "current_txn_start_offset": producer.transaction_start_offset,
    }
