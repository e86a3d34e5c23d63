"""DescribeProducers (key 61): the producers that partitions remember, and where their open transactions begin
(KIP-664).
"""

from typing import Any

from conveyor.broker.partitions.active_producers import ActiveProducer, active_producers
from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import RequestError

_PRODUCER_BYTES = 1_000
"""Memory for a producer in an answer until it is encoded."""


def handle(call: KafkaCall) -> None:
    call.wait(call.start(_describe(call)).cancel)


async def _describe(call: KafkaCall) -> None:
    topics, count = [], 0
    for topic in call.request.topics:
        partitions = [await _partition(call, topic.name, number) for number in topic.partition_indexes]
        topics.append({"name": topic.name, "partitions": partitions})
        count += sum(len(partition["active_producers"]) for partition in partitions)
    call.answer({"topics": topics}, count)


async def _partition(call: KafkaCall, topic: str, number: int) -> dict[str, Any]:
    producers, error = [], None
    try:
        active = active_producers(call.broker.partitions.table, topic, number)
        producers = [_producer(producer) async for producer in call.broker.slices.each(active)]
    except RequestError as failure:
        error = failure.detached()
    call.weigh(len(producers) * _PRODUCER_BYTES)
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
