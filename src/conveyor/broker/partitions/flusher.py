"""Group commit: each log has at most one flush in progress. All flushes requested meanwhile are merged into the next
one.

If the system has a queue for syncs, the logs that request a flush in one tick go to that queue together. Without a
queue, and for logs that need more than a sync, the logs are divided among the free threads, one round for each thread.
While all threads are busy, requests accumulate for the next rounds. So a round's fixed cost is shared by more logs
under higher load, and a slow flush delays only its own round.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from functools import partial

from conveyor.kernel.attempts import attempt
from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ports import FileSyncs
from conveyor.log.flush import FlushJob
from conveyor.replication.partition import Partition

Round = list[tuple[Partition, FlushJob]]


class Flusher:
    """Runs flush jobs off the loop, and returns the results on it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: Executor, max_rounds: int) -> None:
        self._loop = loop
        self._threads = threads
        self._syncs: FileSyncs | None = None
        self._free_rounds = max_rounds
        self._wanted: dict[Partition, None] = {}
        self._flushing: dict[Partition, FlushJob] = {}
        self._for_threads: Round = []
        self._scheduled = False
        self._idle = asyncio.Event()
        self._idle.set()

    def use(self, syncs: FileSyncs) -> None:
        """Use the system's queue for jobs that only sync."""
        self._syncs = syncs

    def want(self, partition: Partition) -> None:
        """Flush a partition's log: at the end of this tick, or after the flush in progress."""
        self._wanted[partition] = None
        if partition not in self._flushing:
            self._idle.clear()
            self._start_soon()

    @property
    def pending(self) -> dict[Partition, FlushJob | None]:
        """The partitions that wait for a flush: with the flush in progress, or None if it has not begun."""
        return {**dict.fromkeys(self._wanted), **self._flushing}

    @property
    def is_idle(self) -> bool:
        """True if no flush is in progress or requested."""
        return self._idle.is_set()

    async def drain(self) -> None:
        """Wait until no flush is in progress or requested."""
        await self._idle.wait()

    def _start_soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._start)

    def _start(self) -> None:
        """Start the requested flushes. While all threads are busy, requests accumulate until a round has ended."""
        self._scheduled = False
        if self._free_rounds or self._syncs is not None:
            self._for_threads += self._begin_syncs(self._take_jobs())
        rounds = min(self._free_rounds, len(self._for_threads))
        for number in range(rounds):
            self._free_rounds -= 1
            self._submit(self._for_threads[number::rounds])
        if rounds:
            self._for_threads = []
        if not self._flushing and not self._wanted:
            self._idle.set()

    def _begin_syncs(self, jobs: Round) -> Round:
        """Pass jobs to the system's queue. Returns the jobs that remain for threads."""
        if self._syncs is None:
            return jobs
        others: Round = []
        plain: Round = []
        for partition, job in jobs:
            (plain if job.is_only_a_sync else others).append((partition, job))
        if not plain:
            return others
        taken = self._syncs.begin([(job.active.file, partial(self._end, partition, job)) for partition, job in plain])
        return others + plain[taken:]

    def _submit(self, jobs: Round) -> None:
        """Submit a round without an asyncio future: creating one and passing it on costs as much as a request."""
        running = self._threads.submit(_run, [job for _, job in jobs])
        running.add_done_callback(lambda done: self._loop.call_soon_threadsafe(self._done, jobs, done))

    def _take_jobs(self) -> Round:
        jobs: Round = []
        for partition in [partition for partition in self._wanted if partition not in self._flushing]:
            del self._wanted[partition]
            job = partition.begin_flush()
            if job is not None:
                self._flushing[partition] = job
                jobs.append((partition, job))
        return jobs

    def _done(self, jobs: Round, running: "Future[list[StorageFailure | None]]") -> None:
        self._free_rounds += 1
        for (partition, job), failure in zip(jobs, running.result(), strict=True):
            self._end(partition, job, failure)

    def _end(self, partition: Partition, job: FlushJob, failure: StorageFailure | None) -> None:
        """An exception in one job is reported as a bug; the other jobs continue, because `drain` waits for them."""
        self._flushing.pop(partition, None)
        attempt(self._failed, partition.complete_flush, job, failure)
        self._start_soon()

    def _failed(self, bug: BaseException) -> None:
        self._loop.call_exception_handler({"message": "a flush ends", "exception": bug})


def _run(jobs: Sequence[FlushJob]) -> list[StorageFailure | None]:
    return [_failure_of(job) for job in jobs]


def _failure_of(job: FlushJob) -> StorageFailure | None:
    try:
        job.run()
    except StorageFailure as failure:
        return failure
    return None
