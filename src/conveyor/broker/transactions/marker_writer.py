"""Appends transaction markers to the partitions that this broker leads, for the coordinators of all brokers."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import msgspec

from conveyor.broker.answers import answered
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.produce.inspected_appends import InspectedAppends
from conveyor.broker.remote.calls import Call, CallHandlers
from conveyor.broker.transactions.verifications import Verifications
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import TopicPartition
from conveyor.kernel.ports import Clock
from conveyor.records.transaction_marker import TransactionMarker
from conveyor.replication.partition import Partition
from conveyor.replication.transactions import append_marker


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


AppendMarker = Callable[[Partition, TransactionMarker, int], Awaitable[None]]
"""Appends a marker of a transaction version to a partition whose machine takes part. Raises RequestError."""

MarkerResults = list[list[RequestError | None]]
WRITE_MARKERS: Call[WriteMarkers, MarkerResults] = Call(
    "transactions.write_markers", WriteMarkers, MarkerResults, is_repeatable=True
)


class MarkerWriter:
    """See the module's docstring. machines: by topic, for the topics whose partitions have machines that take part."""

    def __init__(
        self,
        *,
        partitions: PartitionTable,
        verifications: Verifications,
        inspected_appends: InspectedAppends,
        clock: Clock,
        handlers: CallHandlers,
        machines: Mapping[str, AppendMarker],
    ) -> None:
        self._partitions = partitions
        self._verifications = verifications
        self._inspected_appends = inspected_appends
        self._clock = clock
        self._machines = machines
        handlers.register(WRITE_MARKERS, self.write)

    async def write(self, request: WriteMarkers) -> MarkerResults:
        """Append the markers, in one tick unless a machine must be loaded first, and wait for all of them."""
        places = [(markers, identity) for markers in request.transactions for identity in markers.partitions]
        results = iter(await asyncio.gather(*(self._result(markers, identity) for markers, identity in places)))
        return [[next(results) for _ in markers.partitions] for markers in request.transactions]

    async def _result(self, markers: MarkersOfTransaction, identity: TopicPartition) -> RequestError | None:
        try:
            partition = self._partitions.find(*identity)
            self._verifications.ended(identity, markers.producer_id)
            append = self._machines.get(identity.topic)
            if append is None:
                self._append(partition, markers)
            else:
                await append(partition, _marker(markers), markers.transaction_version)
            await answered(partial(partition.when_acknowledged, partition.log.log_end_offset))
        except RequestError as error:
            return error
        return None

    def _append(self, partition: Partition, markers: MarkersOfTransaction) -> None:
        """Append a marker, unless the log has it. Raises RequestError: see `append_marker`."""
        if partition.inbox is not None:
            return _check_inbox(partition, markers.producer_id)
        marker = _marker(markers)
        is_open = marker.producer_id in partition.log.producers.transactions.opened
        info = append_marker(partition, marker, markers.transaction_version, self._clock.now_ms())
        if is_open and info is not None:
            self._inspected_appends.transaction_ended(partition, marker.producer_id, commits=marker.commits)


def _marker(markers: MarkersOfTransaction) -> TransactionMarker:
    return TransactionMarker(
        producer_id=markers.producer_id,
        producer_epoch=markers.producer_epoch,
        coordinator_epoch=markers.coordinator_epoch,
        commits=markers.commit,
    )


def _check_inbox(partition: Partition, producer_id: int) -> None:
    """Only the forwarder appends to a topic with an inbox: a marker would break its count of forwarded records. So a
    transaction that was open when `delay.enable` was turned on cannot end. Raises RequestError.
    """
    partition.check_writable()
    if producer_id in partition.log.producers.transactions.opened:
        reason = f"{partition.identity} has an open transaction, which cannot end while the topic has an inbox"
        raise RequestError(ErrorKind.POLICY_VIOLATION, reason)


def is_final(result: RequestError | None) -> bool:
    """Return whether a marker need not be sent again."""
    return result is None or result.kind in (
        ErrorKind.INVALID_PRODUCER_EPOCH,
        ErrorKind.TRANSACTION_COORDINATOR_FENCED,
    )
