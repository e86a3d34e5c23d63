"""Runs batches whose records must be inspected through their stages, up to the append:

    (ids are loaded) -> record stages -> append -> note ids -> `appended`
                                      -> (an id is held by another transaction) -> refused

A small batch is processed on the event loop at once, if no earlier batch of its partition is waiting, and this turn of
the loop has inspected little so far. All others queue in their partition's lane. The record stages of large batches run
on threads, so that neither large content nor many batches block other clients. The number of batches decompressed at
once in the whole broker is limited, which bounds memory.
"""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import NamedTuple

from conveyor.broker.produce.deduplication import DedupIndexes
from conveyor.broker.produce.held_ids import HeldIds
from conveyor.broker.produce.lanes import Lanes
from conveyor.broker.produce.record_stages import ProducedRecords, StagedBatch, inspect_records, run_record_stages
from conveyor.broker.produce.turn_budget import TurnBudget
from conveyor.kernel.errors import RequestError
from conveyor.kernel.ids import Offset
from conveyor.kernel.ports import Clock
from conveyor.log.append_info import AppendInfo
from conveyor.records.checked_batch import CheckedBatch
from conveyor.records.record import UnreadableBatch, unpack_records
from conveyor.records.record_checks import RefusedRecords, demands_record_checks
from conveyor.records.repack import AS_PRODUCED, wants_recompression
from conveyor.replication.partition import Partition

UNPACKED_AT_ONCE = 2
_SMALL_RECORDS = 1024
_SMALL_BYTES = 1 << 16
TURN_BYTES = 1 << 17
"""About the most decompressed bytes that are inspected in one turn of the event loop. The smallest records and headers
take 0.3 us for each byte.
"""


class Appended(NamedTuple):
    """The place of an appended batch. duplicates: see `Published`."""

    info: AppendInfo
    duplicates: Mapping[int, int]


OnAppended = Callable[[Appended | RequestError], None]
Recheck = Callable[[], None]
"""Checks a transactional batch directly before its append. Raises RequestError to refuse it."""


class _ProducedBatch(NamedTuple):
    """The arguments of one call of `InspectedAppends.append`."""

    partition: Partition
    batch: CheckedBatch
    deduplicates: bool
    appended: OnAppended
    recheck: Recheck | None


class InspectedAppends:
    """See the module's docstring."""

    def __init__(self, clock: Clock, threads: Executor, lanes: Lanes, dedup_indexes: DedupIndexes) -> None:
        self._clock = clock
        self._threads = threads
        self._lanes = lanes
        self._dedup_indexes = dedup_indexes
        self._held_ids = HeldIds()
        self._room = asyncio.Semaphore(UNPACKED_AT_ONCE)
        self._turn = TurnBudget(TURN_BYTES)

    def is_needed(self, partition: Partition, deduplicates: bool) -> bool:
        """Return whether a partition's batches must currently pass through this class."""
        topic = partition.log.topic
        return (
            topic.compression_type != AS_PRODUCED
            or demands_record_checks(topic)
            or deduplicates
            or topic.dedup_enable
            or self._dedup_indexes.covers(partition)
            or self._lanes.has(partition)
        )

    def append(
        self, partition: Partition, batch: CheckedBatch, deduplicates: bool, appended: OnAppended,
        recheck: Recheck | None = None,
    ) -> None:  # fmt: skip
        """Append a batch. `appended` is called once, now or later; for the batches of one partition in the order of the
        calls of `append`.

        deduplicates: drop records with known ids, even if `dedup.enable` is off.
        """
        produced = _ProducedBatch(partition, batch, deduplicates, appended, recheck)
        if self._lanes.has(partition) or not self._append_at_once(produced):
            self._lanes.add(partition, partial(self._append_in_turn, produced))

    def transaction_ended(self, partition: Partition, producer_id: int, *, commits: bool) -> None:
        """Decide on the message ids of a transaction with records in a partition: its marker was just appended."""
        self._dedup_indexes.ended(partition, producer_id, commits=commits)

    async def drain(self) -> None:
        """Wait until no batch is in progress."""
        await self._lanes.drain()

    def _append_at_once(self, produced: _ProducedBatch) -> bool:
        """Append a batch now, if its inspection is fast."""
        batch, partition = produced.batch, produced.partition
        try:
            partition.leading()
            if partition.log.producers.find(batch.header) is not None:
                staged = StagedBatch(batch)
            elif self._turn.is_spent or not _is_small(produced) or self._must_load(produced):
                return False
            else:
                content = unpack_records(batch.header, batch.content, _SMALL_BYTES)
                self._turn.spend(len(content))
                staged = inspect_records(self._records(produced), content)
        except UnreadableBatch:  # The content may only be too large to decompress here.
            return False
        except RequestError as error:
            produced.appended(error)
            return True
        self._append(produced, staged)
        return True

    async def _append_in_turn(self, produced: _ProducedBatch) -> None:
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
            produced.appended(error)

    def _append(self, produced: _ProducedBatch, staged: StagedBatch) -> None:
        partition, now_ms = produced.partition, self._clock.now_ms()
        if staged.held_by >= 0:
            return produced.appended(self._held_ids.refuse(partition, produced.batch.header, staged.held_by))
        base_offset = partition.log.log_end_offset
        if staged.batch is None:
            offsets = staged.duplicates
            info = AppendInfo(Offset(offsets[0]), Offset(max(offsets.values())), now_ms, duplicate=True)
        else:
            try:
                if produced.recheck is not None:
                    produced.recheck()
                self._held_ids.check(partition, staged.batch.header)
                info = partition.append(staged.batch, now_ms)
            except RequestError as error:
                return produced.appended(error)
            self._dedup_indexes.note(partition, produced.batch.header, staged.fresh, info)
        repeats = {number: base_offset + first for number, first in staged.repeats.items()}
        produced.appended(Appended(info, {**staged.duplicates, **repeats}))

    def _must_load(self, produced: _ProducedBatch) -> bool:
        return _drops_known(produced) and self._dedup_indexes.current(produced.partition) is None

    def _records(self, produced: _ProducedBatch) -> ProducedRecords:
        return ProducedRecords(
            batch=produced.batch,
            topic=produced.partition.log.topic,
            now_ms=self._clock.now_ms(),
            ids=self._dedup_indexes.current(produced.partition),
            drops_known=_drops_known(produced),
        )


def _drops_known(produced: _ProducedBatch) -> bool:
    return produced.deduplicates or produced.partition.log.topic.dedup_enable


def _is_small(produced: _ProducedBatch) -> bool:
    """Return whether inspecting a batch takes only some milliseconds, unless its content is large."""
    header = produced.batch.header
    return (
        header.records_count <= _SMALL_RECORDS
        and header.size <= _SMALL_BYTES
        and not wants_recompression(produced.partition.log.topic, header)
    )


def _run_off_loop(records: ProducedRecords) -> StagedBatch | RequestError:
    """Create a new error: a traceback would keep the decompressed records, and the event loop would free them."""
    try:
        return run_record_stages(records)
    except RefusedRecords as refused:
        return RefusedRecords(refused.kind, refused.message, refused.record_errors)
    except RequestError as error:
        return RequestError(error.kind, error.message)
