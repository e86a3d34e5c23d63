"""Group commit: at most one flush of a log runs at a time, and all that are wanted meanwhile are one flush after it.

The logs that want a flush in one turn of the loop go to the system together, if it has a queue for syncs. Where it has
none, and for a log that needs more than a sync, they are dealt out to the threads that are free, a round each; while
all threads are busy, more logs gather for the next rounds. So a round's fixed price is shared by more logs the more
there is to do, and a slow flush holds up only its own round.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from functools import partial

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ports import FileSyncs
from conveyor.log.flush import FlushJob
from conveyor.replication.partition import Partition

Round = list[tuple[Partition, FlushJob]]


class Flusher:
    """Runs flush jobs off the loop, and hands the results back on it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: Executor, max_rounds: int) -> None:
        self._loop = loop
        self._threads = threads
        self._syncs: FileSyncs | None = None
        self._free_rounds = max_rounds
        self._wanted: dict[Partition, None] = {}
        self._flushing: set[Partition] = set()
        self._for_threads: Round = []
        self._scheduled = False
        self._idle = asyncio.Event()
        self._idle.set()

    def use(self, syncs: FileSyncs) -> None:
        """From now on the system's queue takes what is only a sync."""
        self._syncs = syncs

    def want(self, partition: Partition) -> None:
        """Flush a partition's log: at the end of this turn, or after the flush that is running."""
        self._wanted[partition] = None
        if partition not in self._flushing:
            self._idle.clear()
            self._start_soon()

    @property
    def is_idle(self) -> bool:
        """Whether no flush is running or wanted."""
        return self._idle.is_set()

    async def drain(self) -> None:
        """Wait until no flush is running or wanted."""
        await self._idle.wait()

    def _start_soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._start)

    def _start(self) -> None:
        """Begin what is wanted. While all threads are busy, more gathers for them, until the next round has ended."""
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
        """Let the system carry out what it can. Returns what is left for threads."""
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

    def _submit(self, mine: Round) -> None:
        """Without a future of the loop for each round: its making and passing on cost as much as a request."""
        running = self._threads.submit(_run, [job for _, job in mine])
        running.add_done_callback(lambda done: self._loop.call_soon_threadsafe(self._done, mine, done))

    def _take_jobs(self) -> Round:
        jobs: Round = []
        for partition in [each for each in self._wanted if each not in self._flushing]:
            del self._wanted[partition]
            job = partition.begin_flush()
            if job is not None:
                self._flushing.add(partition)
                jobs.append((partition, job))
        return jobs

    def _done(self, mine: Round, running: "Future[list[StorageFailure | None]]") -> None:
        self._free_rounds += 1
        for (partition, job), failure in zip(mine, running.result(), strict=True):
            self._end(partition, job, failure)

    def _end(self, partition: Partition, job: FlushJob, failure: StorageFailure | None) -> None:
        """A bug in one is told, and the others go on: whoever stops the broker waits for them."""
        self._flushing.discard(partition)
        try:
            partition.complete_flush(job, failure)
        except Exception as bug:  # noqa: BLE001
            self._loop.call_exception_handler({"message": f"the flush of {partition.identity} ends", "exception": bug})
        self._start_soon()


def _run(jobs: Sequence[FlushJob]) -> list[StorageFailure | None]:
    return [_failure_of(job) for job in jobs]


def _failure_of(job: FlushJob) -> StorageFailure | None:
    try:
        job.run()
    except StorageFailure as failure:
        return failure
    return None
