"""Loads, runs and stops the state machines of the partitions that this broker leads.

    (a request, or `gained`) -> loading -> running -> (`lost`) -> gone
                                      -> failed -> (after a pause, or the next request) loading

A machine is loaded once, however many requests wait for it; they fail with COORDINATOR_LOADING after half a minute,
and at once with NOT_ENOUGH_REPLICAS while the ISR is too small to commit. Its logs are read once all their records are
committed: earlier leaders may have acknowledged any of them, and uncommitted records may still be lost. A load ends
with NOT_LEADER when the broker resigns during it. `gained` for a reopened partition loads the machine again, unless its
state is still valid. A load whose partition was lost or replaced in the meantime is discarded. After a failed load,
machines of a kind that retries are loaded again after pauses that double.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, Generic, TypeVar

from conveyor.broker.answers import answered, emitted
from conveyor.broker.coordinators.hosted_machine import HostedMachine
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.services import Services
from conveyor.kernel.alarm import Alarm
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ids import TopicPartition
from conveyor.kernel.signal import Signal
from conveyor.records.transaction_marker import TransactionMarker
from conveyor.replication.partition import Partition

log = logging.getLogger(__name__)

_LONGEST_PAUSE_MS = 30_000
_PATIENCE_MS = 30_000
MARKER_PATIENCE_MS = 500
"""A marker waits this long for a machine to be loaded. Others wait behind it; its coordinator sends it again."""

Result = TypeVar("Result")


Runner = TypeVar("Runner", bound=HostedMachine)


class _Load(Signal[None]):
    """One load of a machine. Emitted when it ends, or is discarded. runner: of the machine that was read."""

    def __init__(self) -> None:
        super().__init__()
        self.runner: HostedMachine | None = None

    def discard(self) -> None:
        """End the load. Its machine decides nothing more."""
        if self.runner is not None:
            self.runner.stop()
        self.emit(None)


class _Place(Generic[Runner]):
    """The state of one partition. runner: of its machine, while that runs. loading: the latest load, while it runs."""

    def __init__(self, partition: Partition, retry: Alarm, pause_ms: int) -> None:
        self.partition = partition
        self.runner: Runner | None = None
        self.loading: _Load | None = None
        self.failure: RequestError | None = None
        self.retry = retry
        self.pause_ms = pause_ms


class Coordinators(ABC, Generic[Runner]):
    """See the module's docstring. A kind of machine is a subclass, which says how its machines are loaded.

    name: of the machines, in log messages. retry_ms: the first pause after a failure; None: only requests load again.
    """

    name: ClassVar[str]
    retry_ms: ClassVar[int | None]

    def __init__(self, services: Services, table: PartitionTable) -> None:
        self._services = services
        self._table = table
        self._places: dict[TopicPartition, _Place[Runner]] = {}
        self._is_stopped = False
        self.changes_count = 0
        """The number of machines started and stopped so far."""

    @abstractmethod
    async def load(self, partition: Partition) -> Runner:
        """Return the runner of a partition's machine, whose state is as its logs have it. The machine must not decide
        anything yet: another load may have begun. Raises RequestError.
        """
        ...

    async def begin(self, runner: Runner) -> None:
        """Start a loaded machine. Raises RequestError."""
        runner.start()

    def logs(self, partition: Partition) -> Sequence[Partition]:
        """Return the partitions that `load` reads. Raises RequestError."""
        return (partition,)

    def try_continue(self, runner: Runner, partition: Partition) -> bool:
        """Continue a running machine with a partition that may be reopened. Returns False if its runner cannot."""
        return runner.partition is partition

    def find(self, identity: TopicPartition) -> Runner | None:
        """Return the runner of a partition's machine, if it runs."""
        place = self._places.get(identity)
        return None if place is None else place.runner

    def partitions(self) -> list[Partition]:
        """Return the partitions whose machines run, are being loaded, or will be loaded again."""
        return [place.partition for place in self._places.values()]

    def list(self) -> "list[Runner]":
        """Return the runner of every running machine."""
        return [place.runner for place in self._places.values() if place.runner is not None]

    def has(self, partition: Partition) -> bool:
        """Return whether the machine of a partition runs, is being loaded, or will be loaded again."""
        place = self._places.get(partition.identity)
        return place is not None and place.partition is partition

    def failure(self, identity: TopicPartition) -> RequestError | None:
        """Return the error of the last load of a partition's machine, if it failed."""
        place = self._places.get(identity)
        return None if place is None else place.failure

    async def loaded(self, partition: Partition, patience_ms: int = _PATIENCE_MS) -> Runner:
        """Return the runner of a partition's machine, loaded first if necessary.

        Raises RequestError: COORDINATOR_LOADING if that takes longer than `patience_ms`.
        """
        place = self._place_of(partition)
        if place.runner is None and place.loading is None:
            self._begin(place)
        while place.loading is not None:
            self._check_commits(partition)
            if not await emitted(place.loading, self._services.clock, patience_ms):
                reason = f"the log of {partition.identity} is being read: ask again"
                raise RequestError(ErrorKind.COORDINATOR_LOADING, reason)
        if place.runner is not None:
            return place.runner
        if place.failure is not None:
            raise place.failure
        partition.leading()  # The load was discarded: the usual reason is that another broker leads now.
        raise RequestError(ErrorKind.COORDINATOR_NOT_AVAILABLE, f"{partition.identity} is being closed: ask again")

    def gained(self, partition: Partition) -> None:
        """Load the machine of a partition, unless it runs and can continue; see `LeadershipListener`."""
        place = self._place_of(partition)
        if place.runner is not None:
            if self.try_continue(place.runner, partition):
                return
            self._stop(place)
        self._begin(place)

    def lost(self, partition: Partition) -> None:
        """Stop the machine of a partition; see `LeadershipListener`."""
        if self.has(partition):
            self._stop(self._places.pop(partition.identity))

    async def resolve_transaction(
        self, partition: Partition, marker: TransactionMarker, transaction_version: int
    ) -> None:
        """End a producer's transaction in the machine of a partition, which is loaded first if necessary; see
        `MachineRunner.resolve_by_marker`. Raises RequestError.
        """
        (await self.loaded(partition, MARKER_PATIENCE_MS)).resolve_by_marker(marker, transaction_version)

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

    def _place_of(self, partition: Partition) -> _Place[Runner]:
        place = self._places.get(partition.identity)
        if place is not None and place.partition is partition:
            return place
        if place is not None and place.runner is not None and self.try_continue(place.runner, partition):
            place.partition = partition
            return place
        if place is not None:
            self._stop(place)
        retry = Alarm(self._services.clock, partial(self._load_again, partition.identity))
        made: _Place[Runner] = _Place(partition, retry, self.retry_ms or 0)
        if not self._is_stopped:
            self._places[partition.identity] = made
        return made

    def _load_again(self, identity: TopicPartition) -> None:
        place = self._places.get(identity)
        if place is not None:
            self._begin(place)

    def _begin(self, place: _Place[Runner]) -> None:
        """Load a machine. A running load is discarded."""
        place.retry.cancel()
        if self._is_stopped:
            return
        before, place.loading = place.loading, _Load()
        self._services.tasks.start(self._load(place, place.loading))
        if before is not None:
            before.discard()

    async def _load(self, place: _Place[Runner], loading: _Load) -> None:
        if place.loading is not loading:  # Another load has replaced this one.
            return
        runner: Runner | None = None
        try:
            await self._committed(place.partition)
            runner = await self.load(place.partition)
            if place.loading is loading:
                loading.runner = runner
                await self.begin(runner)
            if place.loading is loading:
                place.runner, place.failure, place.pause_ms = runner, None, self.retry_ms or 0
                self.changes_count += 1
        except RequestError as error:
            if place.loading is loading:
                self._fail(place, error)
        finally:
            if runner is not None and place.runner is not runner and not runner.is_stopped:
                runner.stop()
            if place.loading is loading:
                place.loading = None
            loading.emit(None)

    async def _read(self, partition: Partition, work: Callable[..., Result], *arguments: object) -> Result:
        """Run a function that reads a partition's log on a thread. Raises RequestError, also if another broker leads
        the partition by now.
        """
        partition.leading()
        try:
            result = await asyncio.get_running_loop().run_in_executor(self._services.threads, work, *arguments)
        except StorageFailure as failure:
            raise partition.failed_read(failure) from failure
        partition.leading()
        return result

    def _check_commits(self, partition: Partition) -> None:
        """Raise RequestError (NOT_ENOUGH_REPLICAS) if a load waits for records that cannot be committed now."""
        for read in self.logs(partition):
            if read.term.high_watermark < read.log.log_end_offset:
                read.term.check_replicas()

    async def _committed(self, partition: Partition) -> None:
        """Wait until the logs of a machine are committed up to their present ends. Raises RequestError: NOT_LEADER."""
        for read in self.logs(partition):
            read.leading()
            if read.log.written_offset < read.log.log_end_offset:
                read.write()
            await answered(partial(read.term.when_committed, read.log.log_end_offset))

    def _fail(self, place: _Place[Runner], error: RequestError) -> None:
        identity = place.partition.identity
        if error.kind is ErrorKind.NOT_LEADER and place.partition.leader_term is None:
            # `gained` loads it again when this broker leads the partition.
            place.failure = error
            if self._places.get(identity) is place:
                del self._places[identity]
            return
        if place.failure is None or place.failure.message != error.message:
            log.warning("%s not loaded partition=%s reason=%s", self.name, identity, error)
        place.failure = error
        if self.retry_ms is not None:
            place.retry.after(place.pause_ms)
            place.pause_ms = min(2 * place.pause_ms, _LONGEST_PAUSE_MS)

    def _stop(self, place: _Place[Runner]) -> None:
        """Stop the running machine, or discard the running load."""
        place.retry.cancel()
        loading, place.loading = place.loading, None
        if loading is not None:
            loading.discard()
        runner, place.runner = place.runner, None
        if runner is not None:
            self.changes_count += 1
            runner.stop()
