"""Loads, runs and stops the state machines of the partitions that this broker leads.

    (a request, or `gained`) -> loading -> running -> (`lost`) -> gone
                                      -> failed -> (after a pause, or the next request) loading

The host loads a machine once, however many requests wait for it; they fail with COORDINATOR_LOADING after half a
minute, and at once with NOT_ENOUGH_REPLICAS while the ISR is too small to commit. It reads the logs once all their
records are committed: earlier leaders may have acknowledged any of them, and uncommitted records may still be lost. A
load ends with NOT_LEADER when the broker resigns during it. `gained` for a reopened partition loads the machine again,
unless its state is still valid. The host discards a load whose partition was lost or replaced in the meantime. After a
failed load, a host that retries loads again after pauses that double.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Generic, Protocol, TypeVar

from conveyor.broker.answers import answered
from conveyor.broker.tasks import Tasks
from conveyor.kernel.alarm import Alarm
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import TopicPartition
from conveyor.kernel.ports import Clock
from conveyor.replication.partition import Partition

log = logging.getLogger(__name__)

_LONGEST_PAUSE_MS = 30_000
_PATIENCE_MS = 30_000
MARKER_PATIENCE_MS = 500
"""How long a marker waits for a machine to be loaded. Others wait behind it; its coordinator sends it again."""


class Running(Protocol):
    """A running machine, together with its runner."""

    def stop(self) -> None:
        """Answer every waiting request and accept no more commands."""
        ...


Machine = TypeVar("Machine", bound=Running)


class MachineKind(Protocol[Machine]):
    """How the machines of one kind are loaded. name: their name in log messages."""

    name: str

    def logs(self, partition: Partition) -> Sequence[Partition]:
        """Return the partitions that `load` reads. Raises RequestError."""
        ...

    async def load(self, partition: Partition, check_wanted: Callable[[], None]) -> Machine:
        """Read the machine's state and start it. Raises RequestError.

        check_wanted: raises RequestError if the host has discarded this load, and may have begun another. To be called
        before the machine starts: it must not decide what another machine has decided, or is about to.
        """
        ...

    def try_continue(self, machine: Machine, partition: Partition) -> bool:
        """Continue a running machine with a partition that may be reopened. Returns False if the machine cannot."""
        ...


class _Load:
    """One load of a machine. waiters: called when it ends."""

    def __init__(self) -> None:
        self.waiters: list[Callable[[None], None]] = []

    def end(self) -> None:
        waiters, self.waiters = self.waiters, []
        for ended in waiters:
            ended(None)


class _Place(Generic[Machine]):
    """The state of one partition. loading: the latest load, while it runs."""

    def __init__(self, partition: Partition, retry: Alarm, pause_ms: int) -> None:
        self.partition = partition
        self.machine: Machine | None = None
        self.loading: _Load | None = None
        self.failure: RequestError | None = None
        self.retry = retry
        self.pause_ms = pause_ms


class Host(Generic[Machine]):
    """See the module's docstring. retry_ms: the first pause after a failure; None: only requests load again."""

    def __init__(self, kind: MachineKind[Machine], clock: Clock, tasks: Tasks, retry_ms: int | None) -> None:
        self._kind = kind
        self._clock = clock
        self._tasks = tasks
        self._retry_ms = retry_ms
        self._places: dict[TopicPartition, _Place[Machine]] = {}
        self._is_stopped = False
        self.changes_count = 0
        """The number of machines started and stopped so far."""

    def running(self, identity: TopicPartition) -> Machine | None:
        """Return the running machine of a partition, if any."""
        place = self._places.get(identity)
        return None if place is None else place.machine

    def all_running(self) -> Iterator[Machine]:
        """Yield every running machine."""
        return (place.machine for place in self._places.values() if place.machine is not None)

    def partitions(self) -> list[Partition]:
        """Return the partitions whose machines run, are being loaded, or will be loaded again."""
        return [place.partition for place in self._places.values()]

    def has(self, partition: Partition) -> bool:
        """Return whether the machine of a partition runs, is being loaded, or will be loaded again."""
        place = self._places.get(partition.identity)
        return place is not None and place.partition is partition

    def failure(self, identity: TopicPartition) -> RequestError | None:
        """Return the error of the last load of a partition's machine, if it failed."""
        place = self._places.get(identity)
        return None if place is None else place.failure

    async def loaded(self, partition: Partition, patience_ms: int = _PATIENCE_MS) -> Machine:
        """Return a partition's machine, loaded first if necessary. Raises RequestError: COORDINATOR_LOADING if that
        takes longer than `patience_ms`.
        """
        place = self._place_of(partition)
        if place.machine is None and place.loading is None:
            self._begin(place)
        while place.loading is not None:
            self._check_commits(partition)
            await self._ended(place.loading, partition, patience_ms)
        if place.machine is not None:
            return place.machine
        if place.failure is not None:
            raise place.failure
        partition.leading()  # The load was discarded: the usual reason is that another broker leads now.
        raise RequestError(ErrorKind.COORDINATOR_NOT_AVAILABLE, f"{partition.identity} is being closed: ask again")

    def gained(self, partition: Partition) -> None:
        """Load the machine of a partition, unless it runs and can continue; see `LeadershipListener`."""
        place = self._place_of(partition)
        if place.machine is not None:
            if self._kind.try_continue(place.machine, partition):
                return
            self._stop(place)
        self._begin(place)

    def lost(self, partition: Partition) -> None:
        """Stop the machine of a partition; see `LeadershipListener`."""
        if self.has(partition):
            self._stop(self._places.pop(partition.identity))

    def failed(self, partition: Partition, error: RequestError) -> None:
        """A running machine cannot continue: stop it, and load it again after a pause."""
        if self.has(partition):
            place = self._places[partition.identity]
            self._stop(place)
            self._fail(place, error)

    def stop(self) -> None:
        """Stop all machines and load no more."""
        self._is_stopped = True
        places, self._places = self._places, {}
        for place in places.values():
            self._stop(place)

    def _place_of(self, partition: Partition) -> _Place[Machine]:
        place = self._places.get(partition.identity)
        if place is not None and place.partition is partition:
            return place
        if place is not None and place.machine is not None and self._kind.try_continue(place.machine, partition):
            place.partition = partition
            return place
        if place is not None:
            self._stop(place)
        made: _Place[Machine] = _Place(partition, Alarm(self._clock, lambda: self._begin(made)), self._retry_ms or 0)
        if not self._is_stopped:
            self._places[partition.identity] = made
        return made

    def _begin(self, place: _Place[Machine]) -> None:
        """Load a machine. A running load is discarded."""
        place.retry.cancel()
        if self._is_stopped:
            return
        before, place.loading = place.loading, _Load()
        self._tasks.start(self._load(place, place.loading))
        if before is not None:
            before.end()

    async def _ended(self, loading: _Load, partition: Partition, patience_ms: int) -> None:
        def wait(ended: Callable[[RequestError | None], None]) -> Callable[[], None]:
            late = RequestError(
                ErrorKind.COORDINATOR_LOADING, f"the log of {partition.identity} is being read: ask again"
            )
            time_limit = Alarm(self._clock, lambda: ended(late))
            time_limit.time_out(patience_ms)
            loading.waiters.append(ended)
            return time_limit.cancel

        await answered(wait)

    async def _load(self, place: _Place[Machine], loading: _Load) -> None:
        if place.loading is not loading:  # Another load has replaced this one.
            return
        try:
            await self._committed(place.partition)
            machine = await self._kind.load(place.partition, partial(_check_wanted, place, loading))
        except RequestError as error:
            if place.loading is loading:
                self._fail(place, error)
        else:
            if place.loading is loading:
                place.machine, place.failure, place.pause_ms = machine, None, self._retry_ms or 0
                self.changes_count += 1
            else:
                machine.stop()
        finally:
            if place.loading is loading:
                place.loading = None
            loading.end()

    def _check_commits(self, partition: Partition) -> None:
        """Raise RequestError (NOT_ENOUGH_REPLICAS) if a load waits for records that cannot be committed now."""
        for read in self._kind.logs(partition):
            if read.term.high_watermark < read.log.log_end_offset:
                read.term.check_replicas()

    async def _committed(self, partition: Partition) -> None:
        """Wait until the logs of a machine are committed up to their present ends. Raises RequestError: NOT_LEADER."""
        for read in self._kind.logs(partition):
            read.leading()
            if read.log.needs_write:
                read.write()
            await answered(partial(read.term.when_committed, read.log.log_end_offset))

    def _fail(self, place: _Place[Machine], error: RequestError) -> None:
        identity = place.partition.identity
        if error.kind is ErrorKind.NOT_LEADER and place.partition.leader_term is None:
            # `gained` loads it again when this broker leads the partition.
            place.failure = error
            if self._places.get(identity) is place:
                del self._places[identity]
            return
        if place.failure is None or place.failure.message != error.message:
            log.warning("%s not loaded partition=%s reason=%s", self._kind.name, identity, error)
        place.failure = error
        if self._retry_ms is not None:
            place.retry.after(place.pause_ms)
            place.pause_ms = min(2 * place.pause_ms, _LONGEST_PAUSE_MS)

    def _stop(self, place: _Place[Machine]) -> None:
        """Stop the running machine, or discard the running load."""
        place.retry.cancel()
        loading, place.loading = place.loading, None
        if loading is not None:
            loading.end()
        machine, place.machine = place.machine, None
        if machine is not None:
            self.changes_count += 1
            machine.stop()


def _check_wanted(place: _Place[Machine], loading: _Load) -> None:
    if place.loading is not loading:
        identity = place.partition.identity
        raise RequestError(ErrorKind.COORDINATOR_NOT_AVAILABLE, f"another load has replaced that of {identity}")
