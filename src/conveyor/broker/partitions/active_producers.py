"""The idempotent and transactional producers whose state a partition keeps, until they have been inactive for long."""

from collections.abc import Iterator

import msgspec

from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.periodic import Periodic
from conveyor.broker.services import Services
from conveyor.cluster.topic_creation import check_name
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NO_SEQUENCE
from conveyor.log.log import Log

_NO_TRANSACTION = -1
_EXPIRY_INTERVAL_MS = 60_000
_MANY = 500
"""Producers whose removal takes a part of a turn of the event loop that should not add up over logs."""


class ActiveProducer(msgspec.Struct, frozen=True, kw_only=True):
    """One producer, and the last sequence of its last batch in the partition.

    coordinator_epoch: of its last marker; -1 without one.
    transaction_start_offset: the first offset of its open transaction; -1 if none is open.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_append_timestamp_ms: int
    coordinator_epoch: int
    transaction_start_offset: int


class ProducerExpiry(Periodic):
    """Removes the state of producers that have been inactive for long."""

    def __init__(self, services: Services, partitions: PartitionTable) -> None:
        super().__init__(services)
        self._partitions = partitions

    @property
    def interval_ms(self) -> int:
        return _EXPIRY_INTERVAL_MS

    async def run_once(self) -> None:
        slices = self._services.slices
        async for partition in slices.each(list(self._partitions)):
            if partition.log.producers.expire(self._clock.now_ms()) > _MANY:
                await slices.turn()


def active_producers(partitions: PartitionTable, topic: str, number: int) -> Iterator[ActiveProducer]:
    """Return a partition's producers as they are now, the longest inactive first.

    Raises RequestError: INVALID_TOPIC, UNKNOWN_TOPIC, PARTITION_OFFLINE.
    """
    check_name(topic)
    partition = partitions.find(topic, number)
    if partition.offline.reason is not None:
        raise RequestError(ErrorKind.PARTITION_OFFLINE, f"{partition.identity} is offline: {partition.offline.reason}")
    return _producers(partition.log)


def _producers(log: Log) -> Iterator[ActiveProducer]:
    entries = log.producers.entries()
    opened = dict(entries.opened)
    return (
        ActiveProducer(
            producer_id=producer_id,
            producer_epoch=producer.epoch,
            last_sequence=producer.batches[-1].last_sequence if producer.batches else NO_SEQUENCE,
            last_append_timestamp_ms=producer.last_timestamp_ms,
            coordinator_epoch=producer.coordinator_epoch,
            transaction_start_offset=opened[producer_id].first_offset if producer_id in opened else _NO_TRANSACTION,
        )
        for producer_id, producer in zip(entries.producer_ids, entries.producers, strict=True)
    )
