"""Publishing record batches, and telling the publisher when they are as safe as it asked for.

acks 0: nobody is told. 1: written (page cache). -1, all: the high watermark has passed them.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

from conveyor.broker.deduplication import Deduplication, Ready
from conveyor.broker.inbox_entrance import way_in
from conveyor.broker.partitions import PartitionTable
from conveyor.broker.recompression import Recompression
from conveyor.cluster.image import is_internal
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NO_TIMESTAMP, Offset
from conveyor.kernel.ports import Bytes, Clock
from conveyor.log.batch import check_batch
from conveyor.log.log import AppendInfo
from conveyor.log.recompression import AS_PRODUCED
from conveyor.replication.partition import Partition

ACKS_NONE, ACKS_LEADER, ACKS_ALL = 0, 1, -1


@dataclass(slots=True)
class Published:
    """What became of one batch: its place, or the error. append_timestamp_ms: -1 unless the topic stamps records.

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

    def __init__(
        self, partitions: PartitionTable, clock: Clock, threads: Executor, deduplication: Deduplication
    ) -> None:
        self._partitions = partitions
        self._clock = clock
        self._deduplication = deduplication
        self._recompression = Recompression(threads)

    async def drain(self) -> None:
        """Wait until every batch that was published is appended."""
        await self._recompression.drain()
        await self._deduplication.drain()

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
        if deduplicates:
            self._deduplication.is_on = True
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
        if batch is None:
            raise RequestError(ErrorKind.INVALID_RECORD, "no records")
        if acks == ACKS_ALL:
            partition.check_replicas()
        result = pending.results[index]
        topic_settings = partition.log.topic
        if topic_settings.compression_type != AS_PRODUCED or self._recompression.is_busy:
            check_batch(batch, topic_settings.max_message_bytes)
            if self._recompression.must_wait(partition, batch):
                ready = partial(self._append_packed, partition, acks, pending, result)
                return self._recompression.add(partition, batch, ready)
        self._append_ready(partition, batch, now_ms, acks, pending, result)

    def _append_packed(
        self, partition: Partition, acks: int, pending: "_Pending", result: Published, packed: Bytes | RequestError
    ) -> None:
        try:
            if isinstance(packed, RequestError):
                raise packed
            self._append_ready(partition, packed, self._clock.now_ms(), acks, pending, result)
        except RequestError as error:
            pending.settle(result, error)

    def _append_ready(
        self, partition: Partition, batch: Bytes, now_ms: int, acks: int, pending: "_Pending", result: Published
    ) -> None:
        into = partition if partition.inbox is None else way_in(partition, partition.inbox, batch)
        if self._deduplication.is_on or into.log.topic.dedup_enable:
            ready = partial(self._append_packed, partition, acks, pending, result)
            info = self._append_once(into, batch, now_ms, ready, pending.deduplicates, result)
            if info is None:
                return
        else:
            info = into.append(batch, now_ms)
        result.log_start_offset = partition.log.log_start_offset
        if into is not partition:
            result.inbox_offset = info.first_offset
        else:
            result.base_offset = info.first_offset
            if partition.log.topic.message_timestamp_type == "LogAppendTime":
                result.append_timestamp_ms = info.append_timestamp_ms
        if acks == ACKS_ALL:
            into.when_committed(info.last_offset + 1, partial(pending.settle, result))
        elif acks == ACKS_LEADER:
            into.when_written(info.last_offset + 1, partial(pending.settle, result))
        else:
            pending.settle_one()

    def _append_once(
        self, partition: Partition, batch: Bytes, now_ms: int, ready: Ready, deduplicates: bool, result: Published
    ) -> AppendInfo | None:
        """Append what of a batch is new; None if that has to wait until it is known: `ready` is called then."""
        known = self._deduplication
        drops = deduplicates or partition.log.topic.dedup_enable
        if not drops and not known.covers(partition):
            return partition.append(batch, now_ms)
        partition.check_online()
        if known.must_wait(partition):
            known.add(partition, batch, ready)
            return None
        thinned = known.look(partition, batch, now_ms, drops=drops)
        base_offset = partition.log.log_end_offset
        repeats = {number: base_offset + first for number, first in thinned.repeats.items()}
        result.duplicates = {**thinned.duplicates, **repeats}
        if thinned.batch is None:
            offsets = thinned.duplicates
            return AppendInfo(Offset(offsets[0]), Offset(max(offsets.values())), now_ms, duplicate=True)
        info = partition.append(thinned.batch, now_ms, may_have_gaps=thinned.batch is not batch)
        known.note(partition, thinned, info)
        return info

    def _writable(self, topic: str, number: int) -> Partition:
        if is_internal(topic):
            raise RequestError(ErrorKind.INVALID_TOPIC, f"topic '{topic}' is the broker's own")
        return self._partitions.find(topic, number)


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
