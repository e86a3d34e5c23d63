"""Reads for consumers, with long polling: a fetch is answered when enough bytes are available or its wait ends.

A fetch from many partitions reads them in slices.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from conveyor.broker.fetch.replica_reads import NO_REPLICA, RackReads
from conveyor.broker.partitions.loop_tick import LoopTick
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.slices import SLICE_ITEMS, Slices
from conveyor.broker.tasks import Tasks
from conveyor.kernel.errors import RequestError
from conveyor.kernel.ids import NodeId
from conveyor.kernel.ports import Clock, FileSlice
from conveyor.log.transactions.aborted_entries import AbortedTransaction
from conveyor.replication.committed_reads import read_committed
from conveyor.replication.partition import Partition
from conveyor.replication.roles import Follower
from conveyor.replication.transactions import last_stable_offset


class FetchPosition(msgspec.Struct, frozen=True):
    """The position in one partition. leader_epoch: the latest epoch that the client knows, or -1."""

    topic: str
    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int = -1


@dataclass(slots=True)
class Fetched:
    """The result for one partition: stored bytes, nothing, an error, or the replica to read from instead.

    aborted: the aborted transactions among the records, for a consumer that reads committed records only.
    """

    error: RequestError | None = None
    high_watermark: int = -1
    log_start_offset: int = -1
    records: FileSlice | None = None
    preferred_replica: NodeId = NO_REPLICA
    last_stable_offset: int = -1
    aborted: Sequence[AbortedTransaction] = ()


@dataclass(slots=True)
class FetchWait:
    """The limits of a fetch: the longest wait, the bytes that end it early, and the most bytes to return. rack: for a
    consumer that says where it runs. reads_committed: whether the fetch stops at the last stable offset.
    """

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    rack: RackReads | None = None
    reads_committed: bool = False


Finished = Callable[[Sequence[Fetched]], None]


class Fetcher:
    """Reads partitions by name."""

    def __init__(
        self, partitions: PartitionTable, clock: Clock, loop_tick: LoopTick, max_fetch_bytes: int, slices: Slices,
        tasks: Tasks,
    ) -> None:  # fmt: skip
        self._partitions = partitions
        self._clock = clock
        self._loop_tick = loop_tick
        self._slices = slices
        self._tasks = tasks
        self._max_fetch_bytes = max_fetch_bytes
        self._waiting: set[_Waiting | _LongFetch] = set()

    def fetch(
        self, positions: Sequence[FetchPosition], wait: FetchWait, finished: Finished
    ) -> Callable[[], None] | None:
        """Read partitions. finished: called with one result for each position, in order, now or later.

        Returns a function that cancels the wait, if the fetch waits.
        """
        if len(positions) > SLICE_ITEMS:
            return self._fetch_long(positions, wait, finished)
        results, enough = self._read(positions, wait)
        if enough or wait.max_wait_ms <= 0 or not positions:
            finished(results)
            return None
        waiting = _Waiting(partial(self._read, positions, wait), results, self._loop_tick, finished, self._waiting)
        waiting.partitions = [self._partitions.find(position.topic, position.partition) for position in positions]
        waiting.start(self._clock, wait.max_wait_ms)
        return waiting.end

    def finish_all(self) -> None:
        """Answer every waiting fetch with the records available now."""
        for waiting in list(self._waiting):
            waiting.expire()

    def _fetch_long(
        self, positions: Sequence[FetchPosition], wait: FetchWait, finished: Finished
    ) -> Callable[[], None]:
        long = _LongFetch(positions, self._partitions, self._slices)
        if wait.max_wait_ms <= 0:
            long.expire()
        cancel_alarm = self._clock.time_out(max(0, wait.max_wait_ms), long.expire)
        self._waiting.add(long)

        async def fetch() -> None:
            finished(await long.read(lambda: self._begin(wait)))

        def ended(_task: object) -> None:
            cancel_alarm()
            self._waiting.discard(long)

        task = self._tasks.start(fetch())
        task.add_done_callback(ended)  # No code of a task runs that is cancelled before its first step.

        def cancel() -> None:
            task.cancel()

        return cancel

    def _read(self, positions: Sequence[FetchPosition], wait: FetchWait) -> tuple[list[Fetched], bool]:
        """Return the results, and whether to answer at once: enough bytes, or an error."""
        reading = self._begin(wait)
        for position in positions:
            reading.add(position)
        return reading.results, reading.is_enough

    def _begin(self, wait: FetchWait) -> "_Reading":
        return _Reading(self._read_one, wait, min(wait.max_bytes, self._max_fetch_bytes))

    def _read_one(self, position: FetchPosition, left: int, wait: FetchWait, *, at_least_one: bool) -> Fetched:
        fetched, rack = Fetched(), wait.rack
        try:
            partition = self._partitions.find(position.topic, position.partition)
            if rack is not None and isinstance(partition.role, Follower):
                return _read_follower(partition, position, left, wait, rack, at_least_one=at_least_one)
            partition.check_leader_epoch(position.leader_epoch)
            fetched.high_watermark = partition.high_watermark
            fetched.last_stable_offset = last_stable_offset(partition)
            fetched.log_start_offset = partition.log.log_start_offset
            if rack is not None:
                fetched.preferred_replica = rack.preferred_replica(partition, position.offset)
                if fetched.preferred_replica != NO_REPLICA:
                    return fetched
            if left > 0 or at_least_one:
                limit = min(position.max_bytes, left)
                if wait.reads_committed:
                    partition.check_online()
                    _read_committed(fetched, partition, position.offset, limit, at_least_one=at_least_one)
                else:
                    fetched.records = partition.read(position.offset, limit, at_least_one=at_least_one)
        except RequestError as error:
            fetched.error = error.with_traceback(None)  # It would hold this frame, and the frame the result.
        return fetched


def _read_committed(fetched: Fetched, partition: Partition, offset: int, max_bytes: int, *, at_least_one: bool) -> None:
    committed = read_committed(partition, offset, max_bytes, at_least_one=at_least_one)
    fetched.records, fetched.aborted = committed.records, committed.aborted


def _read_follower(
    partition: Partition, position: FetchPosition, left: int, wait: FetchWait, rack: RackReads, *, at_least_one: bool
) -> Fetched:
    """Raises RequestError."""
    fetched = Fetched(high_watermark=partition.high_watermark, log_start_offset=partition.log.log_start_offset)
    fetched.last_stable_offset = last_stable_offset(partition)
    limit = min(position.max_bytes, left)
    rack.check(partition, position.offset, position.leader_epoch)
    if position.offset > partition.high_watermark or not (left > 0 or at_least_one):
        return fetched
    if wait.reads_committed:
        _read_committed(fetched, partition, position.offset, limit, at_least_one=at_least_one)
    else:
        fetched.records = rack.read(partition, position.offset, limit, at_least_one=at_least_one)
    return fetched


class _Reading:
    """One look at the partitions of a fetch, in order. results: of those that were read so far."""

    def __init__(self, read_one: Callable[..., Fetched], wait: FetchWait, max_bytes: int) -> None:
        self.results: list[Fetched] = []
        self._read_one = read_one
        self._wait = wait
        self._left = max_bytes
        self._total = 0
        self._has_failed = False

    def add(self, position: FetchPosition) -> None:
        fetched = self._read_one(position, self._left, self._wait, at_least_one=self._total == 0)
        self.results.append(fetched)
        if fetched.error is not None or fetched.preferred_replica != NO_REPLICA:
            self._has_failed = True
        if fetched.records is not None:
            self._total += fetched.records.length
            self._left = max(0, self._left - fetched.records.length)

    @property
    def is_enough(self) -> bool:
        """Whether to answer at once: enough bytes, or an error."""
        return self._has_failed or self._total >= self._wait.min_bytes


class _LongFetch:
    """A fetch from many partitions. It reads all of them, again whenever one has changed, until there is enough."""

    def __init__(self, positions: Sequence[FetchPosition], partitions: PartitionTable, slices: Slices) -> None:
        self._positions = positions
        self._partitions = partitions
        self._slices = slices
        self._woken = asyncio.Event()
        self._is_expired = self._is_changed = False

    def expire(self) -> None:
        """Answer with the records available now."""
        self._is_expired = True
        self._woken.set()

    def _wake(self) -> None:
        self._is_changed = True
        self._woken.set()

    async def read(self, begin: Callable[[], _Reading]) -> Sequence[Fetched]:
        watched: dict[Partition, None] = {}
        try:
            while True:
                self._woken.clear()
                reading, self._is_changed = begin(), False
                for number, position in enumerate(self._positions, 1):
                    partition = self._partitions.get(position.topic, position.partition)
                    if partition is not None:
                        watched[partition] = None
                        partition.watch(self._wake)  # Before it is read, so that no change is missed.
                    reading.add(position)
                    if number % SLICE_ITEMS == 0:
                        await self._slices.turn()
                if self._is_expired or reading.is_enough:
                    return reading.results
                await self._woken.wait()
                if not self._is_changed and all(result.records is None for result in reading.results):
                    return reading.results
        finally:
            for partition in watched:
                partition.unwatch(self._wake)


class _Waiting:
    """A waiting fetch. It is woken at most once per tick, however many of its partitions have new records.

    While no partition has new records, an empty result stays valid and is not read again for the answer.
    """

    def __init__(
        self,
        read: Callable[[], tuple[list[Fetched], bool]],
        results: Sequence[Fetched],
        loop_tick: LoopTick,
        finished: Finished,
        waiting_fetches: "set[_Waiting | _LongFetch]",
    ) -> None:
        self.partitions: list[Partition] = []
        self._read = read
        self._results = results
        self._loop_tick = loop_tick
        self._finished = finished
        self._waiting_fetches = waiting_fetches
        self._cancel_alarm: Callable[[], None] | None = None
        self._woken = False
        self._done = False

    def start(self, clock: Clock, wait_ms: int) -> None:
        self._waiting_fetches.add(self)
        self._cancel_alarm = clock.time_out(wait_ms, self.expire)
        self._watch()

    def end(self) -> None:
        """Stop waiting, without an answer."""
        self._done = True
        self._waiting_fetches.discard(self)
        if self._cancel_alarm is not None:
            self._cancel_alarm()
            self._cancel_alarm = (
                None  # It refers to this object: break the cycle, so that no garbage collection is needed.
            )
        for partition in self.partitions:
            partition.unwatch(self._wake)

    def _watch(self) -> None:
        for partition in self.partitions:
            partition.watch(self._wake)

    def _wake(self) -> None:
        if not self._woken and not self._done:
            self._woken = True
            self._loop_tick.add_output(self._look_again)

    def _look_again(self) -> None:
        self._woken = False
        if self._done:
            return
        self._results, enough = self._read()
        if enough:
            self._finish()
        else:
            self._watch()

    def expire(self) -> None:
        """Answer with the records available now. Records found earlier are read again: they may be deleted."""
        if self._woken or any(result.records is not None for result in self._results):
            self._results, _ = self._read()
        self._finish()

    def _finish(self) -> None:
        self.end()
        self._finished(self._results)
