"""Group commit: at most one flush of a log runs; all that are wanted meanwhile are one flush after it."""

import asyncio
from concurrent.futures import Executor
from functools import partial

from conveyor.kernel.errors import StorageFailure
from conveyor.log.flush import FlushJob
from conveyor.replication.partition import Partition


class Flusher:
    """Runs flush jobs on threads, and hands the results back on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: Executor) -> None:
        self._loop = loop
        self._threads = threads
        self._wanted_again: dict[Partition, bool] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    def want(self, partition: Partition) -> None:
        """Flush a partition's log, now or right after the flush that is running."""
        if partition in self._wanted_again:
            self._wanted_again[partition] = True
        else:
            self._start(partition)

    async def drain(self) -> None:
        """Wait until no flush is running or wanted."""
        await self._idle.wait()

    def _start(self, partition: Partition) -> None:
        job = partition.begin_flush()
        if job is None:
            return
        self._wanted_again[partition] = False
        self._idle.clear()
        running = self._loop.run_in_executor(self._threads, _run, job)
        running.add_done_callback(partial(self._done, partition, job))

    def _done(self, partition: Partition, job: FlushJob, running: "asyncio.Future[StorageFailure | None]") -> None:
        again = self._wanted_again.pop(partition)
        partition.complete_flush(job, running.result())
        if again:
            self.want(partition)
        if not self._wanted_again:
            self._idle.set()


def _run(job: FlushJob) -> StorageFailure | None:
    try:
        job.run()
    except StorageFailure as failure:
        return failure
    return None
