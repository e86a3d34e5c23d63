"""Compacts logs one at a time, the one with the largest gain first. A `Compactor` does the work off the event loop.

A failed compaction is repeated after a pause, which doubles each time up to an hour: the system may have killed its
process for lack of memory, or the log may be damaged. A log that is found damaged goes offline if other replicas have
its records, so that it is copied again; the last copy stays online, as it is.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

import msgspec

from conveyor.broker.partitions.disk_room import DiskRoom
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.periodic import Periodic
from conveyor.broker.services import Services
from conveyor.broker.slices import in_slices
from conveyor.kernel.errors import LogDamaged, OutOfFiles, StorageFailure
from conveyor.log.compaction.compaction_plan import CompactionLimits, CompactionPlan
from conveyor.log.compaction.key_compaction import CompactionResult
from conveyor.replication.partition import Partition

log = logging.getLogger(__name__)

_LONGEST_PAUSE_MS = 3_600_000


class Compactor(Protocol):
    """Executes a plan off the event loop, in another process if that process can access the disk."""

    async def compact(self, plan: CompactionPlan) -> CompactionResult:
        """Execute a plan. Raises StorageFailure."""
        ...


class _Pause(msgspec.Struct, frozen=True, kw_only=True):
    """The pause of a log after a failure: its length, and its end in steady time."""

    length_ms: int
    until_ms: int


class Compaction(Periodic):
    """See the module's docstring.

    failures: failed compactions since the start. unreadable_batches: batches kept uncompacted because their records
    cannot be read; each compaction that reads such a batch counts it.
    """

    def __init__(self, services: Services, partitions: PartitionTable, room: DiskRoom, compactor: Compactor) -> None:
        super().__init__(services)
        self._partitions = partitions
        self._room = room
        self._compactor = compactor
        self._pauses: dict[Partition, _Pause] = {}
        self.failures = 0
        self.unreadable_batches = 0

    @property
    def interval_ms(self) -> int:
        return self._services.settings.broker.compaction_check_ms

    async def run_once(self) -> None:
        """Compact every log that is due. A log is looked at just before: to plan its compaction may take some 50 ms."""
        steady_ms = self._clock.steady_ms()
        present = list(self._partitions)
        self._pauses = {partition: self._pauses[partition] for partition in present if partition in self._pauses}
        rested = [
            partition
            for partition in present
            if partition not in self._pauses or self._pauses[partition].until_ms <= steady_ms
        ]
        wanted = [partition async for partition in in_slices(rested) if partition.log.compaction.is_wanted]
        for partition in sorted(wanted, key=_dirty_bytes, reverse=True):
            if partition.offline.reason is not None:
                continue
            max_keys = self._services.settings.broker.compaction_max_keys
            plan = partition.log.compaction.plan(_limits(partition), self._clock.now_ms(), max_keys)
            if plan is not None and self._fits(plan):
                await self._compact(partition, plan)

    async def _compact(self, partition: Partition, plan: CompactionPlan) -> None:
        try:
            result = await self._compactor.compact(plan)
        except StorageFailure as failure:
            if partition.offline.reason is None:  # Otherwise another topic may use the directory.
                self._pause(partition, failure)
                await self._discard(partition, [segment.base_offset for segment in plan.segments])
                if isinstance(failure, LogDamaged) and _can_copy_again(partition, plan):
                    partition.go_offline(failure)
            return
        self._pauses.pop(partition, None)
        if partition.offline.reason is not None:
            return
        self._count_unreadable(partition, result)
        try:
            await self._swap(partition, result)
        except StorageFailure as failure:
            return partition.go_offline(failure)
        log.info(
            "log compacted partition=%s cleaned_offset=%d bytes=%d to=%d",
            partition.identity, result.cleaned_offset, result.bytes_before, result.bytes_after,
        )  # fmt: skip

    def _pause(self, partition: Partition, failure: StorageFailure) -> None:
        last = self._pauses.get(partition)
        length_ms = min(_LONGEST_PAUSE_MS, 2 * last.length_ms if last else self.interval_ms)
        self._pauses[partition] = _Pause(length_ms=length_ms, until_ms=self._clock.steady_ms() + length_ms)
        self.failures += 1
        log.error("compaction failed partition=%s retry_in_ms=%d reason=%s", partition.identity, length_ms, failure)

    def _count_unreadable(self, partition: Partition, result: CompactionResult) -> None:
        if result.unreadable_batches:
            self.unreadable_batches += result.unreadable_batches
            log.warning(
                "batches kept uncompacted partition=%s count=%d first_offset=%d: their records cannot be read",
                partition.identity, result.unreadable_batches, result.first_unreadable_offset,
            )  # fmt: skip

    async def _swap(self, partition: Partition, result: CompactionResult) -> None:
        """Discard a result that lacks tombstones or markers which a replica, perhaps a new one, does not have yet."""
        may_swap = result.removed_tombstones_end_offset <= partition.term.tombstones_end_offset
        try:
            job = partition.log.compaction.begin_swap(result) if may_swap else None
        except OutOfFiles as failure:
            self._pause(partition, failure)
            job = None
        if job is None:
            return await self._discard(partition, [segment.base_offset for segment in result.cleaned])
        loop = asyncio.get_running_loop()
        with partition.offline.job():
            new = await loop.run_in_executor(self._services.threads, job.run)
        if partition.offline.reason is None:
            partition.log.compaction.complete_swap(result, new)
        await loop.run_in_executor(self._services.threads, job.free)

    async def _discard(self, partition: Partition, base_offsets: Sequence[int]) -> None:
        """Remove the output of an unused compaction. Otherwise it would occupy disk space until the next start."""
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._services.threads, partition.log.compaction.discard, base_offsets)
        except StorageFailure as failure:
            log.warning("compaction not discarded partition=%s reason=%s", partition.identity, failure)

    def _fits(self, plan: CompactionPlan) -> bool:
        """Return whether the disk has space for a copy. If space is low, it is kept for acknowledgements."""
        usable = self._room.usable_bytes
        return not self._room.is_low or usable is None or sum(segment.size for segment in plan.segments) <= usable


def _limits(partition: Partition) -> CompactionLimits:
    return CompactionLimits(partition.term.high_watermark, partition.term.tombstones_end_offset)


def _can_copy_again(partition: Partition, plan: CompactionPlan) -> bool:
    """Return whether another replica has all committed records, the leader or an in-sync replica. A log that has been
    truncated meanwhile need not be damaged.
    """
    term = partition.leader_term
    has_copies = partition.term.role.leader is not None if term is None else len(term.role.isr) > 1
    return has_copies and partition.log.compaction.is_current(plan)


def _dirty_bytes(partition: Partition) -> int:
    log = partition.log
    return sum(segment.size for segment in log.segments.all if segment.next_offset > log.compaction.cleaned_offset)
