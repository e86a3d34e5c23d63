"""Lanes: slow jobs run one after the other for each partition, so that its batches keep their order.

A lane exists while it has jobs. Lanes of different partitions do not wait for each other.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from conveyor.broker.tasks import Tasks
from conveyor.replication.partition import Partition

Job = Callable[[], Awaitable[None]]


class Lanes:
    """See the module's docstring."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._lanes: dict[Partition, deque[Job]] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    def has(self, partition: Partition) -> bool:
        """Return whether a partition has jobs; a new batch must then queue behind them."""
        return partition in self._lanes

    def add(self, partition: Partition, job: Job) -> None:
        """Queue a job behind all other jobs of its partition."""
        lane = self._lanes.get(partition)
        if lane is not None:
            return lane.append(job)
        self._lanes[partition] = deque([job])
        self._idle.clear()
        self._tasks.start(self._run(partition))

    async def drain(self) -> None:
        """Wait until no job is left."""
        await self._idle.wait()

    async def _run(self, partition: Partition) -> None:
        lane = self._lanes[partition]
        try:
            while lane:
                await lane[0]()
                lane.popleft()
                await asyncio.sleep(0)  # Let other tasks run.
        finally:
            del self._lanes[partition]
            if not self._lanes:
                self._idle.set()
