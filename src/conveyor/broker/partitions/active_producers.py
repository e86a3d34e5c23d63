"""The idempotent producers that a partition remembers."""

from collections.abc import Iterable
from dataclasses import dataclass

from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.cluster.topic_creation import check_name
from conveyor.kernel.errors import ErrorKind, RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveProducer:
    """One producer, and the last sequence of the last batch that the partition has of it."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_append_timestamp_ms: int


def active_producers(partitions: PartitionTable, topic: str, number: int) -> Iterable[ActiveProducer]:
    """Longest silent first. Raises RequestError: INVALID_TOPIC, UNKNOWN_TOPIC, PARTITION_OFFLINE."""
    check_name(topic)
    partition = partitions.find(topic, number)
    if partition.offline_reason is not None:
        raise RequestError(ErrorKind.PARTITION_OFFLINE, f"{partition.identity} is offline: {partition.offline_reason}")
    return [
        ActiveProducer(
            producer_id=producer_id,
            producer_epoch=producer.epoch,
            last_sequence=producer.batches[-1].last_sequence,
            last_append_timestamp_ms=producer.last_timestamp_ms,
        )
        for producer_id, producer in zip(*partition.log.producers.entries(), strict=True)
    ]
