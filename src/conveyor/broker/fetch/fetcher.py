"""Reads for consumers, with long polling: a fetch is answered when enough bytes are available or its wait ends.

A fetch that waits reads only the partitions that have changed again. A fetch from many partitions reads them in slices,
and many fetches that wake, or end, at once read in slices.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from conveyor.broker.fetch.replica_reads import NO_REPLICA, RackReads
from conveyor.broker.partitions.loop_tick import LoopTick
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.services import Services
from conveyor.broker.slices import SLICE_ITEMS, Slices
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import RequestError
from conveyor.kernel.ids import NodeId
from conveyor.kernel.ports import Clock, FileSlice
from conveyor.log.transactions.aborted_entries import AbortedTransaction
from conveyor.replication.partition import Partition
from conveyor.replication.reads import check_leader_epoch, read_available, read_committed
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


_UNREAD = Fetched()

_FEW = 10
"""A fetch from many partitions reads so many that have changed without waiting for its turn."""


@dataclass(slots=True)
class FetchWait:
    """The limits of a fetch: the longest wait, the bytes that end it early, and the most bytes to return, which also
    end it early. rack: for a consumer that says where it runs. reads_committed: whether the fetch stops at the last
    stable offset. refusal: returns the error for a topic that the client may not read; asked whenever a partition is
    read.
    """

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    rack: RackReads | None = None
    reads_committed: bool = False
    refusal: Callable[[str], RequestError | None] | None = None


Finished = Callable[[Sequence[Fetched]], None]


class Fetcher:
    """Reads partitions by name."""

    def __init__(
        self, services: Services, partitions: PartitionTable, loop_tick: LoopTick, max_fetch_bytes: int
    ) -> None:
        self._partitions = partitions
        self._clock = services.clock
        self._loop_tick = loop_tick
        self._slices = services.slices
        self._tasks = services.tasks
        self._max_fetch_bytes = max_fetch_bytes
        self._waiting: dict[_Waiting | _LongFetch, None] = {}
        self._woken: deque[_Waiting] = deque()

    def fetch(
        self, caller: Caller, positions: Sequence[FetchPosition], wait: FetchWait, finished: Finished
    ) -> Callable[[], None] | None:
        """Read partitions. finished: called with one result for each position, in order, now or later: now if a
        partition is named repeatedly, because each of its changes would have to be looked at as often.

        Returns a function that cancels the wait, if the fetch waits.
        """
        if len(positions) > SLICE_ITEMS:
            return self._fetch_long(positions, wait, finished)
        reading = self._begin(positions, wait)
        reading.read_all()
        if reading.is_enough or wait.max_wait_ms <= 0 or not positions:
            finished(reading.results)
            return None
        find = self._partitions.find
        numbers = {find(position.topic, position.partition): number for number, position in enumerate(positions)}
        if len(numbers) < len(positions):
            finished(reading.results)
            return None
        waiting = _Waiting(reading, self._wake, finished, self._waiting)
        waiting.start(numbers, self._clock, wait.max_wait_ms)
        return waiting.end

    def finish_all(self) -> None:
        """Answer every waiting fetch with the records available now."""
        for waiting in list(self._waiting):
            waiting.answer()

    def _fetch_long(
        self, positions: Sequence[FetchPosition], wait: FetchWait, finished: Finished
    ) -> Callable[[], None]:
        long = _LongFetch(self._begin(positions, wait), self._partitions, self._slices)
        if wait.max_wait_ms <= 0:
            long.answer()
        cancel_alarm = self._clock.time_out(max(0, wait.max_wait_ms), long.answer)
        self._waiting[long] = None

        async def fetch() -> None:
            finished(await long.read())

        def ended(_task: object) -> None:
            cancel_alarm()
            self._waiting.pop(long, None)

        task = self._tasks.start(fetch())
        task.add_done_callback(ended)  # No code of a task runs that is cancelled before its first step.

        def cancel() -> None:
            task.cancel()

        return cancel

    def _wake(self, waiting: "_Waiting") -> None:
        """Let a fetch look again at the end of the tick."""
        self._woken.append(waiting)
        if len(self._woken) == 1:
            self._loop_tick.add_output(self._look_again)

    def _look_again(self) -> None:
        room = SLICE_ITEMS
        while self._woken and room > 0:
            room -= self._woken.popleft().look_again()
        if self._woken:
            self._slices.later(self._look_again)

    def _begin(self, positions: Sequence[FetchPosition], wait: FetchWait) -> "_Reading":
        return _Reading(positions, self._partitions, wait, min(wait.max_bytes, self._max_fetch_bytes))


def _read_committed(fetched: Fetched, partition: Partition, offset: int, max_bytes: int, *, at_least_one: bool) -> None:
    committed = read_committed(partition, offset, max_bytes, at_least_one=at_least_one)
    fetched.records, fetched.aborted = committed.records, committed.aborted


def _read_follower(
    partition: Partition, position: FetchPosition, left: int, wait: FetchWait, rack: RackReads, *, at_least_one: bool
) -> Fetched:
    """Raises RequestError."""
    fetched = Fetched(high_watermark=partition.term.high_watermark, log_start_offset=partition.log.log_start_offset)
    fetched.last_stable_offset = last_stable_offset(partition)
    limit = min(position.max_bytes, left)
    rack.check(partition, position.offset, position.leader_epoch)
    if position.offset > partition.term.high_watermark or not (left > 0 or at_least_one):
        return fetched
    if wait.reads_committed:
        _read_committed(fetched, partition, position.offset, limit, at_least_one=at_least_one)
    else:
        fetched.records = read_available(partition, position.offset, limit, at_least_one=at_least_one)
    return fetched


class _Reading:
    """The results of a fetch by the numbers of its positions. Positions that are read first get the room first."""

    def __init__(
        self, positions: Sequence[FetchPosition], partitions: PartitionTable, wait: FetchWait, max_bytes: int
    ) -> None:
        self.positions = positions
        self.results = [_UNREAD] * len(positions)
        self.total_bytes = 0
        self._partitions = partitions
        self._wait = wait
        self._max_bytes = max_bytes
        self._has_failed = False

    def begun_again(self) -> "_Reading":
        """Return a reading of the same positions that has read none of them."""
        return _Reading(self.positions, self._partitions, self._wait, self._max_bytes)

    def read_all(self) -> None:
        for number in range(len(self.positions)):
            self.read(number)

    def read(self, number: int) -> None:
        """Read a partition, or read it again."""
        records = self.results[number].records
        if records is not None:
            self.total_bytes -= records.length
        total_bytes = self.total_bytes
        self.results[number] = fetched = self._read_one(
            self.positions[number], self._max_bytes - total_bytes, at_least_one=total_bytes == 0
        )
        if fetched.error is not None or fetched.preferred_replica != NO_REPLICA:
            self._has_failed = True
        if fetched.records is not None:
            self.total_bytes = total_bytes + fetched.records.length

    @property
    def is_enough(self) -> bool:
        """True if the fetch is answered at once: enough bytes, or an error."""
        total_bytes = self.total_bytes
        return self._has_failed or total_bytes >= self._wait.min_bytes or total_bytes >= max(1, self._max_bytes)

    def _read_one(self, position: FetchPosition, left: int, *, at_least_one: bool) -> Fetched:
        fetched, wait, rack = Fetched(), self._wait, self._wait.rack
        if wait.refusal is not None and (refusal := wait.refusal(position.topic)) is not None:
            return Fetched(error=refusal)
        try:
            partition = self._partitions.find(position.topic, position.partition)
            if rack is not None and partition.leader_term is None:
                return _read_follower(partition, position, left, wait, rack, at_least_one=at_least_one)
            check_leader_epoch(partition, position.leader_epoch)
            fetched.high_watermark = partition.term.high_watermark
            fetched.last_stable_offset = last_stable_offset(partition)
            fetched.log_start_offset = partition.log.log_start_offset
            if rack is not None:
                fetched.preferred_replica = rack.preferred_replica(partition, position.offset)
                if fetched.preferred_replica != NO_REPLICA:
                    return fetched
            if left > 0 or at_least_one:
                partition.leading()
                limit = min(position.max_bytes, left)
                if wait.reads_committed:
                    _read_committed(fetched, partition, position.offset, limit, at_least_one=at_least_one)
                else:
                    fetched.records = read_available(partition, position.offset, limit, at_least_one=at_least_one)
        except RequestError as error:
            fetched.error = error.detached()
        return fetched


class _LongFetch:
    """A fetch from many partitions. It reads all of them, and those again that have changed, until there is enough.

    Records that were found before the last look are read again for the answer: they may be deleted.
    """

    def __init__(self, unread: _Reading, partitions: PartitionTable, slices: Slices) -> None:
        self._unread = unread
        self._positions = unread.positions
        self._partitions = partitions
        self._slices = slices
        self._leave: dict[Partition, Callable[[], None]] = {}
        """For each partition of the request, what ends to listen to its changes."""
        self._changed: dict[int, None] = {}
        self._woken = asyncio.Event()
        self._is_expired = False

    def answer(self) -> None:
        """Answer with the records available now."""
        self._is_expired = True
        self._woken.set()

    def _wake(self, number: int, _: None) -> None:
        self._changed[number] = None
        self._woken.set()

    async def read(self) -> Sequence[Fetched]:
        try:
            reading, has_older = await self._read_all(), False
            while len(self._leave) >= len(self._positions):
                if self._is_expired or reading.is_enough:
                    if not has_older:
                        break
                    reading, has_older = await self._read_all(), False
                    continue
                await self._woken.wait()
                self._woken.clear()
                has_older = reading.total_bytes > 0
                changed, self._changed = self._changed, {}
                await self._read(reading, list(changed))
            return reading.results
        finally:
            for leave in self._leave.values():
                leave()

    async def _read_all(self) -> _Reading:
        reading = self._unread.begun_again()
        self._changed.clear()
        await self._read(reading, range(len(self._positions)))
        return reading

    async def _read(self, reading: _Reading, numbers: Sequence[int]) -> None:
        """Read partitions, in the turns of this fetch: many others may read as many in the same turn of the loop."""
        for count, number in enumerate(numbers):
            if count % SLICE_ITEMS == 0 and len(numbers) > _FEW:
                await self._slices.turn()
            self._listen(number)  # Before it is read, so that no change is missed.
            reading.read(number)

    def _listen(self, number: int) -> None:
        position = self._positions[number]
        partition = self._partitions.get(position.topic, position.partition)
        if partition is not None and partition not in self._leave:
            self._leave[partition] = partition.changed.listen(partial(self._wake, number))


class _Waiting:
    """A waiting fetch. A partition wakes it once, until the fetch has looked at it again.

    While a partition has no new records, an empty result stays valid and is not read again for the answer. Records that
    were found before the last look are read again: they may be deleted.
    """

    def __init__(
        self,
        reading: _Reading,
        woken: "Callable[[_Waiting], None]",
        finished: Finished,
        waiting_fetches: "dict[_Waiting | _LongFetch, None]",
    ) -> None:
        self._reading = reading
        self._woken = woken
        self._finished = finished
        self._waiting_fetches = waiting_fetches
        self._leave: list[Callable[[], None]] = []
        """Functions that stop listening to the changes of one partition each."""
        self._changed: dict[int, None] = {}
        self._cancel_alarm: Callable[[], None] | None = None
        self._done = False
        self._is_expired = False

    def start(self, numbers: Mapping[Partition, int], clock: Clock, wait_ms: int) -> None:
        """Wait. numbers: those of the positions, by partition, in order."""
        self._waiting_fetches[self] = None
        self._cancel_alarm = clock.time_out(wait_ms, self.expire)
        for partition, number in numbers.items():
            self._leave.append(partition.changed.listen(partial(self._wake, number)))

    def end(self) -> None:
        """Stop waiting, without an answer."""
        self._done = True
        self._waiting_fetches.pop(self, None)
        if self._cancel_alarm is not None:
            self._cancel_alarm()
            self._cancel_alarm = (
                None  # It refers to this object: break the cycle, so that no garbage collection is needed.
            )
        for leave in self._leave:
            leave()
        self._leave.clear()  # For the same reason.

    def _wake(self, number: int, _: None) -> None:
        if not self._changed:
            self._woken(self)
        self._changed[number] = None

    def look_again(self) -> int:
        """Read the partitions again that have changed. Returns how many partitions were read or answered."""
        if self._done:
            return 0
        reading, changed = self._reading, self._changed
        self._changed = {}
        has_older = reading.total_bytes > 0 and len(changed) < len(reading.results)
        for number in changed:
            reading.read(number)
        count = len(changed)
        if has_older and (self._is_expired or reading.is_enough):
            self._reading = reading = reading.begun_again()
            reading.read_all()
            count += len(reading.results)
        if self._is_expired or reading.is_enough:
            self._finish()
            count = max(count, len(reading.results))
        return count

    def expire(self) -> None:
        """Answer once it is this fetch's turn to look, or at once if there is little to answer and nothing to read."""
        self._is_expired = True
        if self._changed:
            return  # It waits for its turn already.
        if self._reading.total_bytes or len(self._reading.results) > _FEW:
            self._woken(self)
        else:
            self._finish()

    def answer(self) -> None:
        """Answer with the records available now."""
        self._is_expired = True
        self.look_again()

    def _finish(self) -> None:
        self.end()
        self._finished(self._reading.results)
