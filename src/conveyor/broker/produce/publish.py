"""Publishing record batches, and telling the publisher when they are as safe as it asked for.

acks 0: nobody is told. 1: written (page cache). -1, all: the high watermark has passed them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.produce.inspected_appends import Entry, Intake
from conveyor.cluster.image import is_internal
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NO_TIMESTAMP
from conveyor.kernel.ports import Bytes, Clock
from conveyor.log.log import AppendInfo
from conveyor.records.timestamps import stamps_records
from conveyor.replication.partition import Partition

ACKS_NONE, ACKS_LEADER, ACKS_ALL = 0, 1, -1


@dataclass(slots=True)
class Published:
    """What became of one batch: its place, or the error. append_timestamp_ms: -1 unless the topic stamps records.

    error: a `RefusedRecords` names the records that are to blame. log_start_offset: -1 if there is no such partition.
    duplicates: where the first one lies, by number in the batch, of each record that was left out as a duplicate.
    inbox_offset: the place in the partition's inbox, if the batch (and `duplicates`) lies there: `base_offset` is -1,
    as each record gets its offset when it is due.
    """

    error: RequestError | None = None
    base_offset: int = -1
    append_timestamp_ms: int = NO_TIMESTAMP
    log_start_offset: int = -1
    duplicates: Mapping[int, int] | None = None
    inbox_offset: int = -1


Finished = Callable[[Sequence[Published]], None]


class Publisher:
    """Appends to partitions by name."""

    def __init__(self, partitions: PartitionTable, clock: Clock, intake: Intake) -> None:
        self._partitions = partitions
        self._clock = clock
        self._intake = intake

    async def drain(self) -> None:
        """Wait until every batch that was published is appended."""
        await self._intake.drain()

    def publish(
        self,
        batches: Sequence[tuple[str, int, Bytes | None]],
        acks: int,
        finished: Finished,
        *,
        deduplicates: bool = False,
    ) -> None:
        """Append batches of (topic, partition, batch); `finished` gets one result each, in order, now or later.

        deduplicates: leave out records whose `conveyor-dedup-id` is known, whatever the topic's `dedup.enable` says.
        Raises RequestError (INVALID_REQUIRED_ACKS).
        """
        if acks not in (ACKS_NONE, ACKS_LEADER, ACKS_ALL):
            raise RequestError(ErrorKind.INVALID_REQUIRED_ACKS, f"acks is 0, 1 or all (-1), not {acks}")
        now_ms = self._clock.now_ms()
        pending = _Pending(len(batches), finished, deduplicates)
        for number, (topic, partition, batch) in enumerate(batches):
            try:
                self._append(topic, partition, batch, now_ms, acks, pending, number)
            except RequestError as error:
                pending.results[number].error = error
                pending.settle_one()
        pending.settle_one()

    def _append(
        self, topic: str, number: int, batch: Bytes | None, now_ms: int, acks: int, pending: "_Pending", index: int
    ) -> None:
        partition = self._writable(topic, number)
        result = pending.results[index]
        result.log_start_offset = partition.log.log_start_offset
        if batch is None:
            raise RequestError(ErrorKind.INVALID_RECORD, "no records")
        if acks == ACKS_ALL:
            partition.check_replicas()
        if not self._intake.takes(partition, pending.deduplicates):
            try:
                info = partition.append(batch, now_ms)
            except RequestError as error:
                if error.kind is not ErrorKind.INVALID_TIMESTAMP:
                    raise
            else:
                return self._appended(partition, partition, info, acks, pending, result)
        entered = partial(self._entered, partition, acks, pending, result)
        self._intake.add(partition, batch, pending.deduplicates, entered)

    def _entered(
        self, partition: Partition, acks: int, pending: "_Pending", result: Published, entry: Entry | RequestError
    ) -> None:
        if isinstance(entry, RequestError):
            return pending.settle(result, entry)
        result.duplicates = entry.duplicates
        self._appended(partition, entry.into, entry.info, acks, pending, result)

    def _appended(
        self, partition: Partition, into: Partition, info: AppendInfo, acks: int, pending: "_Pending", result: Published
    ) -> None:
        """Answer as soon as a batch is as safe as `acks` says."""
        if into is not partition:
            result.inbox_offset = info.first_offset
        else:
            result.base_offset = info.first_offset
            if stamps_records(partition.log.topic):
                result.append_timestamp_ms = info.append_timestamp_ms
        if acks == ACKS_ALL:
            into.when_committed(info.last_offset + 1, partial(pending.settle, result))
        elif acks == ACKS_LEADER:
            into.when_written(info.last_offset + 1, partial(pending.settle, result))
        else:
            pending.settle_one()

    def _writable(self, topic: str, number: int) -> Partition:
        if is_internal(topic):
            raise RequestError(ErrorKind.INVALID_TOPIC, f"topic '{topic}' is the broker's own")
        return self._partitions.find_for_producer(topic, number)


class _Pending:
    """A request that is answered when all its batches are settled. One extra count is held while it is being made."""

    __slots__ = ("_finished", "_open", "deduplicates", "results")

    def __init__(self, count: int, finished: Finished, deduplicates: bool) -> None:
        self.deduplicates = deduplicates
        self.results = [Published() for _ in range(count)]
        self._open = count + 1
        self._finished = finished

    def settle(self, result: Published, error: RequestError | None) -> None:
        if error is not None:
            result.error = error
            result.base_offset = -1
        self.settle_one()

    def settle_one(self) -> None:
        self._open -= 1
        if self._open == 0:
            self._finished(self.results)
