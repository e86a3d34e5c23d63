"""AddPartitionsToTxn (key 24): adds partitions to a producer's transaction, which begins with the first.

v2 PRODUCER_FENCED (KIP-588) · v3 flexible. Versions 4 and 5, for several producers at once, are used between Kafka's
brokers only; ours have a call of their own.
"""

from typing import Any

from conveyor.cluster.topic_decisions import check_takes_part
from conveyor.kafka_api.apis.transactions import fenced_producers
from conveyor.kafka_api.apis.transactions.reserved_ids import check_not_reserved
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import ERRORS, ErrorKind, RequestError
from conveyor.kernel.ids import ProducerEpoch, ProducerId, ProducerIdentity, TopicPartition
from conveyor.transactions.transaction_commands import AddPartitions

_PRODUCER_FENCED = 2
_NOT_ATTEMPTED = ERRORS[ErrorKind.OPERATION_NOT_ATTEMPTED].kafka_code
"""For the other partitions of a request that is refused because of one."""


def handle(call: KafkaCall) -> None:
    call.start(_add(call))


async def _add(call: KafkaCall) -> None:
    topics = _topics(call)
    partitions = [TopicPartition(topic.name, number) for topic in topics for number in topic.partitions]
    refusals = [_refusal(call, partition) for partition in partitions]
    if any(refusals):
        return _answer(call, [_NOT_ATTEMPTED if error is None else error.kafka_code for error in refusals])
    try:
        check_not_reserved(call.request.v3_and_below_transactional_id)
        reply = await call.broker.coordinators.transactions.ask(call.caller, _command(call, partitions))
        errors = list(reply.errors)
    except RequestError as error:
        errors = [error.detached()] * len(partitions)
    _answer(call, [fenced_producers.code(error, call.header.api_version, _PRODUCER_FENCED) for error in errors])


def _command(call: KafkaCall, partitions: list[TopicPartition]) -> AddPartitions:
    request = call.request
    return AddPartitions(
        transactional_id=request.v3_and_below_transactional_id,
        producer=ProducerIdentity(
            ProducerId(request.v3_and_below_producer_id), ProducerEpoch(request.v3_and_below_producer_epoch)
        ),
        partitions=tuple(partitions),
        transaction_version=0,
        connection=call.caller.connection_id,
    )


def _topics(call: KafkaCall) -> Any:
    return call.request.v3_and_below_topics


def _refusal(call: KafkaCall, partition: TopicPartition) -> RequestError | None:
    try:
        check_takes_part(call.broker.metadata.image, partition)
    except RequestError as error:
        return error.detached()
    return None


def _answer(call: KafkaCall, codes: list[int]) -> None:
    following = iter(codes)
    results = [
        {
            "name": topic.name,
            "results_by_partition": [
                {"partition_index": number, "partition_error_code": next(following)} for number in topic.partitions
            ],
        }
        for topic in _topics(call)
    ]
    call.answer({"results_by_topic_v3_and_below": results})
