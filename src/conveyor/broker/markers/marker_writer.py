"""Appends transaction markers to the partitions that this broker leads, for the coordinators of all brokers."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Protocol

import msgspec

from conveyor.broker.answers import answered
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.produce.publisher import Publisher
from conveyor.broker.produce.verification import Verifications
from conveyor.broker.remote.calls import Call, CallHandlers
from conveyor.cluster.image import QUEUE_STATE, companion_of
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import TopicPartition
from conveyor.records.transaction_marker import TransactionMarker
from conveyor.replication.partition import Partition


class MarkersOfTransaction(msgspec.Struct, frozen=True, array_like=True):
    """The end of one transaction in some partitions. For the fields, see `TransactionMarkers`."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    transaction_version: int
    partitions: list[TopicPartition]


class WriteMarkers(msgspec.Struct, frozen=True, array_like=True):
    """Append markers, and answer once they are committed: for each partition of each transaction None, or why not."""

    transactions: list[MarkersOfTransaction]


class ResolvesTransactions(Protocol):
    """The coordinators of machines that take part in transactions."""

    async def resolve_transaction(
        self, partition: Partition, marker: TransactionMarker, transaction_version: int
    ) -> None:
        """End a producer's transaction in the machine of a partition. Raises RequestError."""
        ...


MarkerResults = list[list[RequestError | None]]
WRITE_MARKERS: Call[WriteMarkers, MarkerResults] = Call(
    "transactions.write_markers", WriteMarkers, MarkerResults, is_repeatable=True
)


class MarkerWriter:
    """See the module's docstring. machines: those that take part, by the topic that is their log, or by its kind if it
    is a companion of others.
    """

    def __init__(
        self,
        partitions: PartitionTable,
        verifications: Verifications,
        publisher: Publisher,
        handlers: CallHandlers[Caller],
        machines: Mapping[str, ResolvesTransactions],
    ) -> None:
        self._partitions = partitions
        self._verifications = verifications
        self._publisher = publisher
        self._machines = machines
        handlers.register(WRITE_MARKERS, self.write)

    async def write(self, caller: Caller, request: WriteMarkers) -> MarkerResults:
        """Append the markers, in one tick unless a machine must be loaded first, and wait for all of them."""
        places = [(markers, identity) for markers in request.transactions for identity in markers.partitions]
        results = iter(await asyncio.gather(*(self._result(markers, identity) for markers, identity in places)))
        return [[next(results) for _ in markers.partitions] for markers in request.transactions]

    async def _result(self, markers: MarkersOfTransaction, identity: TopicPartition) -> RequestError | None:
        try:
            partition = self._partitions.find(*identity)
            self._verifications.transaction_ended(identity, markers.producer_id)
            machines = self._machines_of(identity.topic)
            if machines is None:
                self._publisher.publish_marker(partition, _marker(markers), markers.transaction_version)
            else:
                await machines.resolve_transaction(partition, _marker(markers), markers.transaction_version)
            await answered(partial(partition.term.when_acknowledged, partition.log.log_end_offset))
        except RequestError as error:
            return error.detached()
        return None

    def _machines_of(self, topic: str) -> ResolvesTransactions | None:
        kind = topic if companion_of(QUEUE_STATE, topic) is None else QUEUE_STATE
        return self._machines.get(kind)


def _marker(markers: MarkersOfTransaction) -> TransactionMarker:
    return TransactionMarker(
        producer_id=markers.producer_id,
        producer_epoch=markers.producer_epoch,
        coordinator_epoch=markers.coordinator_epoch,
        commits=markers.commit,
    )


def is_final(result: RequestError | None) -> bool:
    """Return whether a marker need not be sent again."""
    return result is None or result.kind in (
        ErrorKind.INVALID_PRODUCER_EPOCH,
        ErrorKind.TRANSACTION_COORDINATOR_FENCED,
    )
