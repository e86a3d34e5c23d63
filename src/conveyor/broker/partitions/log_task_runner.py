"""Runs the changes of followers' logs that block, one at a time for each partition."""

import asyncio

from conveyor.broker.partitions.replica_checkpoint import ReplicaCheckpoint
from conveyor.broker.services import Services
from conveyor.broker.timed_signal import TimedSignal
from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.signal import Signal
from conveyor.replication.partition import Partition
from conveyor.replication.streams.log_tasks import LogTask

_RETRY_MS = 10
"""A task waits this long before it asks again whether a flush or a compaction of its log has ended."""


class LogTaskRunner:
    """See the module's docstring. ended: emitted after each task, when the partition can be followed or led again."""

    def __init__(self, services: Services, checkpoint: ReplicaCheckpoint) -> None:
        self.ended: Signal[Partition] = Signal()
        self._services = services
        self._checkpoint = checkpoint
        self._running: set[Partition] = set()
        self._waiting: dict[Partition, LogTask] = {}

    def is_busy(self, partition: Partition) -> bool:
        return partition in self._running

    def start(self, partition: Partition, task: LogTask) -> None:
        """Run a task as soon as the one in progress, if any, has ended."""
        if partition in self._running:
            assert partition not in self._waiting, "a partition is not followed while a task waits"
            self._waiting[partition] = task
            return
        self._running.add(partition)
        self._services.tasks.start(self._run(partition, task))

    async def _run(self, partition: Partition, task: LogTask) -> None:
        try:
            with partition.offline.job():
                await self._carry_out(partition, task)
        except StorageFailure as failure:
            partition.go_offline(failure)
        finally:
            self._running.remove(partition)
            waiting = self._waiting.pop(partition, None)
        if waiting is not None:
            self.start(partition, waiting)
        else:
            self.ended.emit(partition)

    async def _carry_out(self, partition: Partition, task: LogTask) -> None:
        retry = TimedSignal(self._services.clock)
        while partition.offline.reason is None and not task.begin(self._services.clock.now_ms()):
            await retry.wait(_RETRY_MS)
        if partition.offline.reason is None:
            await self._checkpoint.lower(partition)
        if partition.offline.reason is None:
            await asyncio.get_running_loop().run_in_executor(self._services.threads, task.run)
        if partition.offline.reason is None:
            task.complete()
