"""WriteTxnMarkers (key 27): ends transactions in partitions that this broker leads. v1 flexible · v2 the
version of the transaction (KIP-1228).

Between brokers, markers are calls of their own: see `conveyor.broker.markers.marker_writer`. This API is for tools
that end a hanging transaction: one that is open in a partition, but unknown to its coordinator (KIP-664). They send the
coordinator epoch that DescribeProducers has answered, or 0. An epoch above both that and the lowest one of all
coordinators is refused: the marker could fence the producer's coordinator, whose next transaction would never end.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from conveyor.broker.markers.marker_writer import MarkersOfTransaction, WriteMarkers
from conveyor.cluster.image import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, ClusterImage, is_internal
from conveyor.cluster.topic_decisions import owned_by_broker
from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import TopicPartition

Results = Sequence[RequestError | None]


def handle(call: KafkaCall) -> None:
    call.start(_write(call))


async def _write(call: KafkaCall) -> None:
    markers = [(marker, list(_partitions(marker))) for marker in call.request.markers]
    refusals = [[_refusal(call, marker, partition) for partition in partitions] for marker, partitions in markers]
    accepted = [
        _of_transaction(
            marker, [partition for partition, error in zip(partitions, errors, strict=True) if error is None]
        )
        for (marker, partitions), errors in zip(markers, refusals, strict=True)
    ]
    written = await call.broker.coordinators.transactions.write_markers(call.caller, WriteMarkers(accepted))
    answers = [
        _answer(marker, errors, results)
        for (marker, _), errors, results in zip(markers, refusals, written, strict=True)
    ]
    call.answer({"markers": answers})


def _partitions(marker: Any) -> Iterator[TopicPartition]:
    for topic in marker.topics:
        for number in topic.partition_indexes:
            yield TopicPartition(topic.name, number)


def _refusal(call: KafkaCall, marker: Any, partition: TopicPartition) -> RequestError | None:
    if min(marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) < 0:
        return RequestError(ErrorKind.INVALID_REQUEST, "a marker needs a producer id and the epochs")
    if partition.topic != OFFSETS_TOPIC and is_internal(partition.topic):
        return owned_by_broker(partition.topic)
    try:
        producers = call.broker.partitions.table.find(*partition).log.producers
    except RequestError as error:
        return error.detached()
    known_epoch = producers.remembered(marker.producer_id).coordinator_epoch
    if marker.coordinator_epoch > max(known_epoch, _lowest_epoch(call.broker.metadata.image)):
        return RequestError(
            ErrorKind.INVALID_REQUEST, f"the producer's coordinator may not have had epoch {marker.coordinator_epoch}"
        )
    return None


def _lowest_epoch(image: ClusterImage) -> int:
    """Return the lowest epoch of all coordinators; 0 if there is none yet."""
    topic = image.topics.get(TRANSACTIONS_TOPIC)
    return 0 if topic is None else max(0, min(partition.leader_epoch for partition in topic.partitions))


def _of_transaction(marker: Any, partitions: list[TopicPartition]) -> MarkersOfTransaction:
    return MarkersOfTransaction(
        marker.producer_id,
        marker.producer_epoch,
        marker.coordinator_epoch,
        marker.transaction_result,
        getattr(marker, "transaction_version", 0),
        partitions,
    )


def _answer(marker: Any, refusals: Results, results: Results) -> dict[str, Any]:
    """Return the answer for one marker. results: for the partitions that were not refused, in order."""
    following = iter(results)
    codes = iter([result_errors.code(next(following) if error is None else error) for error in refusals])
    topics = [
        {
            "name": topic.name,
            "partitions": [
                {"partition_index": number, "error_code": next(codes)} for number in topic.partition_indexes
            ],
        }
        for topic in marker.topics
    ]
    return {"producer_id": marker.producer_id, "topics": topics}
