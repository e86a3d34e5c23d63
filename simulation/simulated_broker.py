"""A broker as a process that can be killed, on a machine whose power can be cut."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from contextvars import copy_context
from functools import partial
from random import Random
from typing import Protocol, TypeVar
from uuid import UUID

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.broker_ports import BrokerPorts
from conveyor.broker.metadata.cluster_secret import SecretKeys
from conveyor.broker.queues.pushing.push_client import OpenPushClient, no_push_client
from conveyor.cluster.image import BrokerEndpoint, ClusterImage
from conveyor.kernel.access.acl import Acl
from conveyor.kernel.access.caller import PLAINTEXT
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.peers import PeerNetwork
from conveyor.log.compaction.compaction_plan import CompactionPlan
from conveyor.log.compaction.key_compaction import CompactionResult, compact
from conveyor.settings.tree import from_sources
from conveyor.testing.memory_disk import MemoryDisk
from simulation.cluster.flaky_store import FlakyStore
from simulation.doors.broker_doors import KAFKA_PORT, BrokerDoors
from simulation.doors.client_network import ClientNetwork
from simulation.image_ledger import ImageLedger
from simulation.ledger import InvariantBroken
from simulation.simulated_clock import SimulatedClock
from simulation.simulated_threads import SimulatedThreads
from simulation.virtual_loop import PROCESS, Process, VirtualLoop

Reply = TypeVar("Reply")

_START_RETRY_S = 1.0


class Machine(Protocol):
    """A simulated machine, and what it is connected to. clients: the network of its clients."""

    host: str
    clients: ClientNetwork

    @property
    def store(self) -> FlakyStore:
        """The session of the present process with the metadata store, or that of the last one."""
        ...

    def enter(self) -> PeerNetwork | None:
        """Connect a new process, in its context, before its broker starts."""
        ...

    def leave(self, *, has_power: bool) -> None:
        """Disconnect the process, which dies now. has_power: its machine goes on, and closes its connections."""
        ...

    def pause(self) -> None:
        """The process sends nothing more."""
        ...

    def resume(self) -> None: ...


class AcknowledgedEpochs(Protocol):
    """Checks in which leader epochs the starts of a broker acknowledge records."""

    def note_crash(self, incarnation: int) -> None: ...

    def acknowledge(self, topic_id: UUID, partition: int, epoch: int, incarnation: int, *, is_new: bool) -> None:
        """is_new: otherwise the records were appended before."""
        ...


class SimulatedBroker:
    """One broker; see the module's docstring. `bugs`: unexpected exceptions, each of which would stop a real broker.
    `machine`: its name; `boots`: how often it was switched on.

    seed: of everything that is random about this broker.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        seed: object,
        settings: dict[str, object],
        surroundings: Machine,
        epochs: AcknowledgedEpochs,
    ) -> None:
        self.clock = SimulatedClock(loop)
        self.disk = MemoryDisk()
        self.bugs: list[BaseException] = []
        self.starts = 0
        self._loop = loop
        self._name = seed
        self._settings = from_sources(settings)
        self.last_node: BrokerNode | None = None
        """The broker inside the last process that has ended, unless its disk was replaced."""
        self.compactions: dict[str, CompactionResult] = {}
        """The last result of compaction, by directory. It may be discarded."""
        self._ids, self._threads, self._power = (Random(f"{seed} {concern}") for concern in ("ids", "threads", "power"))
        self.surroundings = surroundings
        self.machine, self.boots = self.surroundings.host, 1
        self.epochs = epochs
        self.open_push_client: OpenPushClient = no_push_client
        self.secret_keys: SecretKeys | None = None
        self.may_fail_with: tuple[type[Exception], ...] = (StorageFailure,)
        """The exceptions of a start that are no bugs."""
        self._images = ImageLedger(self.surroundings.store.nodes)
        self.replaced_acls: list[Mapping[Acl, None]] = []
        """The ACLs that other ones have replaced at `acls_replaced_at_s`."""
        self.acls_replaced_at_s = 0.0
        self._process: Process | None = None
        self._jobs: SimulatedThreads | None = None
        self._broker: BrokerNode | None = None
        self._doors: BrokerDoors | None = None
        self._ready = asyncio.Event()
        self._context = copy_context()

    @property
    def is_ready(self) -> bool:
        return self._ready.is_set()

    @property
    def is_running(self) -> bool:
        """True if there is a process: a broker that starts, serves or stops."""
        return self._process is not None

    @property
    def is_sound(self) -> bool:
        """True if the broker serves, and its disk works."""
        return self.is_ready and self.disk.faults.is_sound and not (self.is_paused or self.is_hanging)

    @property
    def is_paused(self) -> bool:
        return self._process is not None and self._process.is_paused

    @property
    def is_hanging(self) -> bool:
        """True if the disk does not answer."""
        return self._process is not None and self._jobs is not None and self._jobs.is_hanging

    @property
    def node(self) -> BrokerNode | None:
        """The broker inside the process, for checks that take no time."""
        return self._broker

    @property
    def store(self) -> FlakyStore:
        return self.surroundings.store

    @property
    def host(self) -> str:
        """The name at which clients reach the machine."""
        return self.surroundings.host

    async def start(self) -> None:
        """Start, and retry while disk faults prevent it. Returns once the broker serves."""
        has_started = await self.try_to_start()
        while not has_started:
            await asyncio.sleep(_START_RETRY_S)
            has_started = await self.try_to_start()

    async def try_to_start(self) -> bool:
        """Start once. Returns whether the broker serves."""
        self.starts += 1
        process = self._process = Process(f"broker {self.starts}")
        started: asyncio.Future[bool] = self._loop.create_future()
        process.at_death(lambda: _settle(started, False))
        task = self._loop.create_task(self._started(), context=process.context.copy())
        task.add_done_callback(lambda done: _settle(started, _succeeded(done)), context=copy_context())
        if await started:
            self._ready.set()
            return True
        if self._process is process:
            self._die(self.disk)
        return False

    def set_wall_clock(self, by_ms: int) -> None:
        """Set the machine's wall clock forward or (negative) back."""
        context = copy_context() if self._process is None else self._process.context.copy()
        context.run(self.clock.set_wall_clock, by_ms)

    def crash(self) -> None:
        """Kill the process. All written data survives, synced or not."""
        self.epochs.note_crash(self.starts)
        self._die(self.disk.process_crash())

    def cut_power(self) -> None:
        """Cut the power: synced data survives, and randomly some of the rest."""
        self.epochs.note_crash(self.starts)
        self._die(self.disk.power_cut(self._power), has_power=False)

    def wipe(self) -> None:
        """Take the machine away. The next start is on a new one, with an empty disk."""
        self.epochs.note_crash(self.starts)
        self._die(MemoryDisk(), has_power=False)
        self.last_node = None

    def replace_disk(self, disk: MemoryDisk, *, has_power: bool) -> None:
        """Kill the process, or cut the power of its machine. The next start is on this disk."""
        self.epochs.note_crash(self.starts)
        self._die(disk, has_power=has_power)
        self.last_node = None

    def pause(self) -> None:
        """Stop the process for a while, as SIGSTOP does. Does nothing if there is none."""
        if self._process is not None:
            self._process.pause()
            self.surroundings.pause()

    def resume(self) -> None:
        """Let the process continue."""
        if self._process is not None and self._process.is_paused:
            self._process.resume()
            self.surroundings.resume()

    def hang_threads(self, duration_s: float) -> None:
        """Let no job of the process's threads begin for a while, as if the disk hung."""
        if self._jobs is not None:
            self._jobs.hang()
            self._loop.call_later(duration_s, self._jobs.go_on)

    def cut_power_after(self, operations: int, died: Callable[[], None]) -> None:
        """Cut the power in the middle of the broker's disk operations, after a number of them."""
        disk = self.disk

        def cut() -> None:
            if self.disk is disk:
                self.cut_power()
                self._loop.call_soon(died, context=self._context)

        disk.faults.call_after(operations, cut)

    async def stop(self) -> None:
        """Stop cleanly: accept no more requests, answer the pending ones, seal the logs."""
        self._ready.clear()
        assert self._broker is not None
        assert self._doors is not None
        await self._in_process(partial(_stopped, self._doors), self._broker)
        self._die(self.disk.process_crash())

    def run_inside(self, work: Callable[[BrokerNode], None]) -> None:
        """Let something that is no request of a client happen in the process, if there is one."""
        process, broker = self._process, self._broker
        if process is not None and broker is not None and self.is_ready:
            self._loop.call_soon(work, broker, context=process.context.copy())

    def _die(self, disk: MemoryDisk, *, has_power: bool = True) -> None:
        self.disk, self.clock = disk, self.clock.next_process()
        self._ready.clear()
        self.last_node = self._broker or self.last_node
        process, self._process, self._broker, self._doors = self._process, None, None, None
        if process is not None:
            self.surroundings.clients.leave(self.host, has_power=has_power)
            self.surroundings.leave(has_power=has_power)
            process.kill()
        self.boots += not has_power

    async def _started(self) -> bool:
        process = PROCESS.get()
        assert process is not None
        threads = self._jobs = process.threads = SimulatedThreads(self._loop, self._threads)
        peers, boot = self.surroundings.enter(), f"{self.machine} boot {self.boots}"
        ports = BrokerPorts(
            disk=self.disk,
            store=self.store,
            clock=self.clock,
            threads=threads,
            new_id=lambda: UUID(int=self._ids.getrandbits(128), version=4),
            failed=self.bugs.append,
            compactor=_ExecutorCompactor(self.disk, threads, self.compactions),
            boot_id=boot,
            cache_id=boot,
            lock_id=f"{boot}, directory of {self._name}",
            peers=peers,
            secret_keys=self.secret_keys,
            open_push_client=self.open_push_client,
        )
        self._broker = BrokerNode(self._settings, ports)
        self._broker.metadata.listen(self._observed)
        try:
            await self._broker.start({PLAINTEXT: BrokerEndpoint(self.host, KAFKA_PORT)})
        except self.may_fail_with:
            return False
        self._doors = BrokerDoors(self._broker, self.surroundings.clients, self.host)
        await self._doors.open()
        return True

    def _observed(self, old: ClusterImage, new: ClusterImage) -> None:
        """Check the image. The story raises a broken invariant, not the broker."""
        if old.acls is not new.acls:
            now_s = self._loop.time()
            self.replaced_acls = [*(self.replaced_acls if self.acls_replaced_at_s == now_s else ()), old.acls]
            self.acls_replaced_at_s = now_s
        try:
            self._images.observe(new)
        except InvariantBroken as broken:
            self.bugs.append(broken)

    async def _in_process(self, work: Callable[[BrokerNode], Awaitable[None]], broker: BrokerNode) -> None:
        assert self._process is not None
        done: asyncio.Future[None] = self._loop.create_future()
        self._process.at_death(lambda: _settle(done, None))
        task = self._loop.create_task(_executed(work, broker), context=self._process.context.copy())
        task.add_done_callback(lambda ended: _deliver(ended, done), context=copy_context())
        await done


class _ExecutorCompactor:
    """Runs compaction as a job of the simulated threads."""

    def __init__(self, disk: MemoryDisk, threads: Executor, results: dict[str, CompactionResult]) -> None:
        self._disk = disk
        self._threads = threads
        self._results = results

    async def compact(self, plan: CompactionPlan) -> CompactionResult:
        """Execute a plan. Raises StorageFailure."""
        result = await asyncio.get_running_loop().run_in_executor(self._threads, compact, self._disk, plan)
        self._results[plan.directory] = result
        return result


async def _executed(work: Callable[[BrokerNode], Awaitable[Reply]], broker: BrokerNode) -> Reply:
    """Begin the work within the task: a task that never begins then leaves nothing behind."""
    return await work(broker)


async def _stopped(doors: BrokerDoors, broker: BrokerNode) -> None:
    await doors.close()
    await broker.stop()


def _settle(future: "asyncio.Future[Reply]", value: Reply) -> None:
    if not future.done():
        future.set_result(value)


def _succeeded(task: "asyncio.Task[bool]") -> bool:
    return not task.cancelled() and task.result()


def _deliver(task: "asyncio.Task[Reply]", reply: "asyncio.Future[Reply]") -> None:
    if reply.done():
        return
    if task.cancelled():
        reply.set_exception(RequestError(ErrorKind.REQUEST_TIMED_OUT, "the broker cancelled the request"))
    elif (error := task.exception()) is not None:
        reply.set_exception(error)
    else:
        reply.set_result(task.result())
