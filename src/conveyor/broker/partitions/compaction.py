"""Compacting logs: one at a time, the one with most to gain first, by a `Compactor` that works off the event loop.

A compaction that fails is tried again after a pause, which doubles each time up to an hour: its process may have been
killed for want of memory, or its log may be damaged.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol

from conveyor.broker.partitions.disk_room import DiskRoom
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.tasks import Tasks
from conveyor.kernel.errors import OutOfFiles, StorageFailure
from conveyor.kernel.ports import Clock
from conveyor.log.compaction.compaction_plan import CompactionPlan
from conveyor.log.compaction.key_compaction import CompactionResult
from conveyor.replication.partition import Partition
from conveyor.settings.tree import BrokerSettings

log = logging.getLogger(__name__)

_LONGEST_PAUSE_MS = 3_600_000


class Compactor(Protocol):
    """Carries out a plan off the event loop, in another process where that can see the disk."""

    async def compact(self, plan: CompactionPlan) -> CompactionResult:
        """Raises StorageFailure."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pause:
    """How long a log is left alone after a failure, and until when, in steady time."""

    length_ms: int
    until_ms: int


class Compaction:
    """See the module's docstring.

    failures: compactions that have failed, since the start. unreadable_batches: kept in place of being cleaned, because
    their records cannot be read; each compaction that meets one counts it.
    """

    def __init__(
        self,
        *,
        partitions: PartitionTable,
        room: DiskRoom,
        compactor: Compactor,
        clock: Clock,
        threads: Executor,
        tasks: Tasks,
        settings: BrokerSettings,
    ) -> None:
        self._partitions = partitions
        self._room = room
        self._compactor = compactor
        self._clock = clock
        self._threads = threads
        self._tasks = tasks
        self._settings = settings
        self._pauses: dict[Partition, _Pause] = {}
        self.failures = 0
        self.unreadable_batches = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._cancel_alarm: Callable[[], None] | None = None

    def start(self) -> None:
        """Look for work from now on, every now and then."""
        interval_ms = self._settings.compaction_check_ms
        self._cancel_alarm = self._clock.call_later(interval_ms, self._on_alarm)

    def use(self, settings: BrokerSettings) -> None:
        """Let these settings of the broker hold from now on."""
        is_as_often = settings.compaction_check_ms == self._settings.compaction_check_ms
        self._settings = settings
        if self._cancel_alarm is not None and not is_as_often:
            self._cancel_alarm()
            self.start()

    def stop(self) -> None:
        if self._cancel_alarm is not None:
            self._cancel_alarm()

    @property
    def is_idle(self) -> bool:
        """Whether no log is being compacted."""
        return self._idle.is_set()

    async def drain(self) -> None:
        """Wait until no log is being compacted."""
        await self._idle.wait()

    async def compact_all(self) -> None:
        """Compact every log that is due."""
        now_ms, steady_ms, max_keys = self._clock.now_ms(), self._clock.steady_ms(), self._settings.compaction_max_keys
        present = list(self._partitions)
        self._pauses = {each: self._pauses[each] for each in present if each in self._pauses}
        rested = [each for each in present if each not in self._pauses or self._pauses[each].until_ms <= steady_ms]
        plans = [(each, each.plan_compaction(now_ms, max_keys)) for each in rested]
        due = [(partition, plan) for partition, plan in plans if plan is not None and self._fits(plan)]
        for partition, plan in sorted(due, key=lambda each: -_dirty_bytes(each[1])):
            await self._compact(partition, plan)

    def _on_alarm(self) -> None:
        self._cancel_alarm = None
        self._tasks.start(self._look_over())

    async def _look_over(self) -> None:
        self._idle.clear()
        try:
            await self.compact_all()
        finally:
            self._idle.set()
        self.start()

    async def _compact(self, partition: Partition, plan: CompactionPlan) -> None:
        try:
            result = await self._compactor.compact(plan)
        except StorageFailure as failure:
            if partition.offline_reason is None:  # Else its topic may be deleted, and another be in its directory.
                self._pause(partition, failure)
                await self._discard(partition, [each.base_offset for each in plan.segments])
            return
        self._pauses.pop(partition, None)
        if partition.offline_reason is not None:
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
        length_ms = min(_LONGEST_PAUSE_MS, 2 * last.length_ms if last else self._settings.compaction_check_ms)
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
        try:
            job = partition.begin_swap(result)
        except OutOfFiles as failure:
            self._pause(partition, failure)
            job = None
        if job is None:
            return await self._discard(partition, [each.base_offset for each in result.cleaned])
        loop = asyncio.get_running_loop()
        with partition.job():
            new = await loop.run_in_executor(self._threads, job.run)
        partition.complete_swap(result, new)
        await loop.run_in_executor(self._threads, job.free)

    async def _discard(self, partition: Partition, base_offsets: Sequence[int]) -> None:
        """Remove what a compaction has made in vain; else it would take up room until the next start."""
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._threads, partition.log.discard, base_offsets)
        except StorageFailure as failure:
            log.warning("compaction not discarded partition=%s reason=%s", partition.identity, failure)

    def _fits(self, plan: CompactionPlan) -> bool:
        """Whether a copy surely finds room, if there is little: that is for acknowledgements."""
        usable = self._room.usable_bytes
        return not self._room.is_low or usable is None or sum(each.size for each in plan.segments) <= usable


def _dirty_bytes(plan: CompactionPlan) -> int:
    return sum(each.size for each in plan.segments if each.next_offset > plan.first_dirty_offset)
