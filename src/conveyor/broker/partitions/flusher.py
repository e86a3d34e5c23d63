"""Group commit: each log has at most one flush in progress. All flushes requested meanwhile are merged into the next
one.

If the system has a queue for syncs, the logs that request a flush in one tick go to that queue together. Without a
queue, and for logs that need more than a sync, the logs are divided among the free threads, one round for each thread.
While all threads are busy, requests accumulate for the next rounds. So a round's fixed cost is shared by more logs
under higher load, and a slow flush delays only its own round.

No reply waits for the flush of a log with `flush.policy=os`, which may have a whole segment to write. Such flushes take
one thread, one after the other, and leave the others to the logs for which replies wait.
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
        self._background: dict[Partition, None] = {}
        """The requests for which no reply waits."""
        self._in_background: Partition | None = None
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
        wanted = self._wanted if partition.log.topic.flush_policy == "ack" else self._background
        wanted[partition] = None
        if partition not in self._flushing:
            self._idle.clear()
            self._start_soon()

    @property
    def pending(self) -> dict[Partition, FlushJob | None]:
        """The partitions whose replies wait for a flush: with the flush in progress, or None if it has not begun."""
        flushes = {**dict.fromkeys(self._wanted), **self._flushing}
        return {partition: job for partition, job in flushes.items() if partition.log.topic.flush_policy == "ack"}

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
        if self._background and self._free_rounds and self._in_background is None:
            self._start_in_background()
        if self._free_rounds or self._syncs is not None:
            self._for_threads += self._begin_syncs(self._take_jobs(self._wanted))
        rounds = min(self._free_rounds, len(self._for_threads))
        for number in range(rounds):
            self._submit(self._for_threads[number::rounds])
        if rounds:
            self._for_threads = []
        if not self._flushing and not self._wanted and not self._background:
            self._idle.set()

    def _start_in_background(self) -> None:
        """Start one of the flushes for which no reply waits."""
        jobs = self._take_jobs(self._background, most=1)
        if jobs:
            [(self._in_background, _)] = jobs
            self._submit(jobs)

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
        self._free_rounds -= 1
        running = self._threads.submit(_run, [job for _, job in jobs])
        running.add_done_callback(lambda done: self._loop.call_soon_threadsafe(self._done, jobs, done))

    def _take_jobs(self, wanted: dict[Partition, None], most: int | None = None) -> Round:
        jobs: Round = []
        for partition in [partition for partition in wanted if partition not in self._flushing]:
            if len(jobs) == most:
                break
            del wanted[partition]
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
        if partition is self._in_background:
            self._in_background = None
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
