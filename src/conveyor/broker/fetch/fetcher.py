"""Reading for consumers, with long poll: an answer comes when there is enough, or when the wait is over."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from conveyor.broker.partitions.loop_tick import Turn
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.kernel.errors import RequestError
from conveyor.kernel.ports import Clock, FileSlice
from conveyor.replication.partition import Partition


@dataclass(frozen=True, slots=True)
class FetchPosition:
    """Where to read on in one partition. `leader_epoch`: the one the client knows, or -1."""

    topic: str
    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int = -1


@dataclass(slots=True)
class Fetched:
    """What one partition has: stored bytes, or nothing, or an error."""

    error: RequestError | None = None
    high_watermark: int = -1
    log_start_offset: int = -1
    records: FileSlice | None = None


@dataclass(slots=True)
class FetchWait:
    """How long, in ms, and for how much a fetch waits; and what it may return at most, in bytes."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int


Finished = Callable[[Sequence[Fetched]], None]


class Fetcher:
    """Reads partitions by name."""

    def __init__(self, partitions: PartitionTable, clock: Clock, turn: Turn, max_fetch_bytes: int) -> None:
        self._partitions = partitions
        self._clock = clock
        self._turn = turn
        self._max_fetch_bytes = max_fetch_bytes
        self._waiting: set[_Waiting] = set()

    def fetch(
        self, positions: Sequence[FetchPosition], wait: FetchWait, finished: Finished
    ) -> Callable[[], None] | None:
        """Read; `finished` gets one result for each position, in order, now or later. Returns what cancels the wait."""
        results, enough = self._read(positions, wait)
        if enough or wait.max_wait_ms <= 0 or not positions:
            finished(results)
            return None
        waiting = _Waiting(partial(self._read, positions, wait), results, self._turn, finished, self._waiting)
        waiting.partitions = [self._partitions.find(each.topic, each.partition) for each in positions]
        waiting.start(self._clock, wait.max_wait_ms)
        return waiting.end

    def finish_all(self) -> None:
        """Answer every fetch that waits, with what there is."""
        for waiting in list(self._waiting):
            waiting.expire()

    def _read(self, positions: Sequence[FetchPosition], wait: FetchWait) -> tuple[list[Fetched], bool]:
        """Results, and whether they are worth an answer at once: enough bytes, or an error to tell."""
        results = []
        left = min(wait.max_bytes, self._max_fetch_bytes)
        total = 0
        failed = False
        for position in positions:
            fetched = self._read_one(position, left, at_least_one=total == 0)
            results.append(fetched)
            failed = failed or fetched.error is not None
            if fetched.records is not None:
                total += fetched.records.length
                left = max(0, left - fetched.records.length)
        return results, failed or total >= wait.min_bytes

    def _read_one(self, position: FetchPosition, left: int, *, at_least_one: bool) -> Fetched:
        fetched = Fetched()
        try:
            partition = self._partitions.find(position.topic, position.partition)
            partition.check_leader_epoch(position.leader_epoch)
            fetched.high_watermark = partition.high_watermark
            fetched.log_start_offset = partition.log.log_start_offset
            if left > 0 or at_least_one:
                limit = min(position.max_bytes, left)
                fetched.records = partition.read(position.offset, limit, at_least_one=at_least_one)
        except RequestError as error:
            fetched.error = error
        return fetched


class _Waiting:
    """A fetch that waits for more. It is woken at most once a turn, however many of its partitions have moved.

    While none of them has moved, what found nothing has still found nothing, and is not read again for the answer.
    """

    def __init__(
        self,
        read: Callable[[], tuple[list[Fetched], bool]],
        results: Sequence[Fetched],
        turn: Turn,
        finished: Finished,
        everybody: "set[_Waiting]",
    ) -> None:
        self.partitions: list[Partition] = []
        self._read = read
        self._results = results
        self._turn = turn
        self._finished = finished
        self._everybody = everybody
        self._cancel_alarm: Callable[[], None] | None = None
        self._woken = False
        self._done = False

    def start(self, clock: Clock, wait_ms: int) -> None:
        self._everybody.add(self)
        self._cancel_alarm = clock.time_out(wait_ms, self.expire)
        self._watch()

    def end(self) -> None:
        """Wait no more, and answer nobody."""
        self._done = True
        self._everybody.discard(self)
        if self._cancel_alarm is not None:
            self._cancel_alarm()
            self._cancel_alarm = None  # It knows this one: a cycle, which only the collector would free.
        for partition in self.partitions:
            partition.unwatch(self._wake)

    def _watch(self) -> None:
        for partition in self.partitions:
            partition.watch(self._wake)

    def _wake(self) -> None:
        if not self._woken and not self._done:
            self._woken = True
            self._turn.add_output(self._look_again)

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
        """Answer with what there is. Records that were too few to be worth an answer may be deleted by now."""
        if self._woken or any(each.records is not None for each in self._results):
            self._results, _ = self._read()
        self._finish()

    def _finish(self) -> None:
        self.end()
        self._finished(self._results)
