"""Runs batches whose records must be inspected through their stages, up to the append:

    (ids are loaded) -> record stages -> append -> note ids -> `appended`
                                      -> (an id is held by another transaction) -> `refused`

A small batch is processed on the event loop at once, if no earlier batch of its partition is waiting, and this turn of
the loop has inspected little so far. All others queue in their partition's lane: a task appends them one after the
other, so that they keep their order. Lanes of different partitions do not wait for each other. The record stages of
large batches run on threads, so that neither large content nor many batches block other clients. The number of batches
decompressed at once in the whole broker is limited, which bounds memory.
"""

import asyncio
from collections import deque
from concurrent.futures import Executor

from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.produce.acknowledgement import Appended, ProducedBatch
from conveyor.broker.produce.deduplication import DedupIndexes
from conveyor.broker.produce.early_batches import EarlyBatches
from conveyor.broker.produce.record_stages import ProducedRecords, StagedBatch, inspect_records, run_record_stages
from conveyor.broker.services import Services
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import Offset
from conveyor.log.append_info import AppendInfo
from conveyor.records.batch import COMPRESSION_MASK, NAMES_PUBLISHER, BatchHeader
from conveyor.records.publishers import publisher_of
from conveyor.records.record import UnreadableBatch, unpack_records
from conveyor.records.record_checks import RefusedRecords, demands_record_checks
from conveyor.records.repack import AS_PRODUCED, wants_recompression
from conveyor.replication.partition import Partition

UNPACKED_AT_ONCE = 2
_SMALL_RECORDS = 1024
_SMALL_BYTES = 1 << 16
_SMALL_NAMED_BYTES = 1 << 14
_NAMING_FACTOR, _NAMING_BYTES = 8, 32
"""To name the publisher of a record takes about as long as to inspect so many times its bytes, and so many besides."""
TURN_BYTES = 1 << 17
"""About the most decompressed bytes that are inspected in one turn of the event loop. The smallest records and headers
take 0.3 us for each byte.
"""


class InspectedAppends:
    def __init__(
        self,
        services: Services,
        partitions: PartitionTable,
        dedup_indexes: DedupIndexes,
        early_batches: EarlyBatches,
    ) -> None:
        self._partitions = partitions
        self._clock = services.clock
        self._threads: Executor = services.threads
        self._tasks = services.tasks
        self._dedup_indexes = dedup_indexes
        self._early_batches = early_batches
        self._room = asyncio.Semaphore(UNPACKED_AT_ONCE)
        self._turn = _TurnBudget()
        self._lanes: dict[Partition, deque[ProducedBatch]] = {}
        """A lane exists while it has batches."""
        self._idle = asyncio.Event()
        self._idle.set()

    def is_needed(self, partition: Partition, deduplicates: bool) -> bool:
        """Return whether a partition's batches must currently pass through this class."""
        topic = partition.log.topic
        return (
            topic.compression_type != AS_PRODUCED
            or demands_record_checks(topic)
            or deduplicates
            or topic.dedup_enable
            or topic.publisher_enable
            or (topic.delay_target != "" and self._names_publisher(partition))
            or self._dedup_indexes.covers(partition)
            or partition in self._lanes
        )

    def append(self, produced: ProducedBatch) -> None:
        """Append a batch. Its `appended` or `refused` is called once, now or later; for the batches of one partition in
        the order of the calls of `append`.
        """
        lane = self._lanes.get(produced.partition)
        if lane is not None:
            return lane.append(produced)
        if not self._append_at_once(produced):
            self._lanes[produced.partition] = deque([produced])
            self._idle.clear()
            self._tasks.start(self._run_lane(produced.partition))

    async def drain(self) -> None:
        """Wait until no batch is in progress."""
        await self._idle.wait()

    async def _run_lane(self, partition: Partition) -> None:
        lane = self._lanes[partition]
        try:
            while lane:
                await self._append_in_turn(lane[0])
                lane.popleft()
                await asyncio.sleep(0)  # Let other tasks run.
        finally:
            del self._lanes[partition]
            if not self._lanes:
                self._idle.set()

    def _append_at_once(self, produced: ProducedBatch) -> bool:
        """Append a batch now, if its inspection is fast."""
        batch, partition = produced.batch, produced.partition
        try:
            partition.leading()
            if partition.log.producers.find(batch.header) is not None:
                staged = StagedBatch(batch)
            elif self._turn.is_spent or not self._is_small(produced) or self._must_load(produced):
                return False
            else:
                content = unpack_records(batch.header, batch.content, _SMALL_BYTES)
                records = self._records(produced)
                cost = len(content)
                if records.publisher is not None:
                    cost = _NAMING_FACTOR * cost + _NAMING_BYTES * batch.header.records_count
                self._turn.spend(cost)
                staged = inspect_records(records, content)
        except UnreadableBatch:  # The content may only be too large to decompress here.
            return False
        except RequestError as error:
            produced.refused(error)
            return True
        self._append(produced, staged)
        return True

    async def _append_in_turn(self, produced: ProducedBatch) -> None:
        partition = produced.partition
        try:
            while not self._append_at_once(produced):
                if self._must_load(produced):
                    await self._dedup_indexes.load(partition)
                    continue
                records, leader_epoch = self._records(produced), partition.term.epoch
                async with self._room:
                    loop = asyncio.get_running_loop()
                    staged = await loop.run_in_executor(self._threads, _run_off_loop, records)
                if isinstance(staged, RequestError):
                    raise staged
                # In a later epoch, the stages have not seen the ids that other leaders may have appended.
                if partition.term.epoch == leader_epoch:
                    return self._append(produced, staged)
        except RequestError as error:
            produced.refused(error)

    def _append(self, produced: ProducedBatch, staged: StagedBatch) -> None:
        partition, now_ms = produced.partition, self._clock.now_ms()
        if staged.held_by >= 0:
            self._early_batches.hold(partition, produced.batch.header)
            return produced.refused(_held(partition, staged.held_by))
        base_offset = partition.log.log_end_offset
        if staged.batch is None:
            offsets = staged.duplicates
            info = AppendInfo(Offset(offsets[0]), Offset(max(offsets.values())), now_ms, duplicate=True)
        else:
            try:
                produced.recheck()
                info = self._early_batches.append(partition, staged.batch, now_ms)
            except RequestError as error:
                return produced.refused(error)
            self._dedup_indexes.note(partition, produced.batch.header, staged.fresh, info)
        repeats = {number: base_offset + first for number, first in staged.repeats.items()}
        produced.appended(Appended(info, {**staged.duplicates, **repeats}))

    def _must_load(self, produced: ProducedBatch) -> bool:
        return produced.deduplicates and self._dedup_indexes.current(produced.partition) is None

    def _records(self, produced: ProducedBatch) -> ProducedRecords:
        return ProducedRecords(
            batch=produced.batch,
            topic=produced.partition.log.topic,
            now_ms=self._clock.now_ms(),
            ids=self._dedup_indexes.current(produced.partition),
            drops_known=produced.deduplicates,
            publisher=self._publisher(produced),
        )

    def _publisher(self, produced: ProducedBatch) -> bytes | None:
        """Return the name that the records get; None if they stay as they are, as those do that a broker has named."""
        if produced.batch.header.attributes & NAMES_PUBLISHER or not self._names_publisher(produced.partition):
            return None
        return publisher_of(produced.request.caller)

    def _names_publisher(self, partition: Partition) -> bool:
        """Return whether the topic names the publishers of records, or gets them from a delayed topic, and does so."""
        topic = partition.log.topic
        if topic.publisher_enable or not topic.delay_target:
            return topic.publisher_enable
        target = self._partitions.get(topic.delay_target, partition.identity.partition)
        return target is None or target.log.topic.publisher_enable  # Rather named in vain than forged.

    def _is_small(self, produced: ProducedBatch) -> bool:
        """Return whether inspecting a batch takes only some milliseconds, unless its content is large."""
        header = produced.batch.header
        return (
            header.records_count <= _SMALL_RECORDS
            and header.size <= _SMALL_BYTES
            and not wants_recompression(produced.partition.log.topic, header)
            and (_is_named_fast(header) or self._publisher(produced) is None)
        )


def _is_named_fast(header: BatchHeader) -> bool:
    return header.size <= _SMALL_NAMED_BYTES and not header.attributes & COMPRESSION_MASK


class _TurnBudget:
    """The bytes that may still be inspected in this turn of the event loop. What is begun within the budget may exceed
    it.
    """

    def __init__(self) -> None:
        self._left_bytes = TURN_BYTES

    @property
    def is_spent(self) -> bool:
        return self._left_bytes <= 0

    def spend(self, size_bytes: int) -> None:
        """Count bytes until the next turn begins."""
        if self._left_bytes == TURN_BYTES:
            asyncio.get_running_loop().call_soon(self._refill)
        self._left_bytes -= size_bytes

    def _refill(self) -> None:
        self._left_bytes = TURN_BYTES


def _held(partition: Partition, holder: int) -> RequestError:
    """Return the error for a batch with a message id that another producer's open transaction has."""
    reason = (
        f"{partition.identity}: the open transaction of producer {holder} has a message with the same"
        " conveyor-dedup-id: send the message again, it is published or a duplicate once that transaction has ended"
    )
    return RequestError(ErrorKind.NOT_ENOUGH_REPLICAS, reason)


def _run_off_loop(records: ProducedRecords) -> StagedBatch | RequestError:
    """Create a new error: a traceback would keep the decompressed records, and the event loop would free them."""
    try:
        return run_record_stages(records)
    except RefusedRecords as refused:
        return RefusedRecords(refused.kind, refused.message, refused.record_errors)
    except RequestError as error:
        return RequestError(error.kind, error.message)
