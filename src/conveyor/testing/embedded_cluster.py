"""A whole cluster of real brokers on real TCP, inside the test's process, with all data in memory.

Each broker has a thread with an event loop. The metadata store is a tree in memory on one more thread. Killing a broker
stops its loop between two callbacks, closes its sockets, and leaves the rest as it is; its disk keeps what was written.
"""

import asyncio
import contextlib
import ctypes
import threading
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain, repeat
from types import TracebackType
from typing import Any, Self, TypeVar

import uvloop

from conveyor.cluster.image import ClusterImage
from conveyor.kernel.peers import PeerNetwork
from conveyor.server.server import Server
from conveyor.settings.tree import from_sources
from conveyor.testing.broker_addresses import Addressed
from conveyor.testing.broker_security import BrokerSecurity, Secured
from conveyor.testing.coordination import Coordination
from conveyor.testing.cuttable_peers import CuttablePeers, NetworkGroups
from conveyor.testing.held_port import HeldPort, hold_listeners
from conveyor.testing.memory_disk import MemoryDisk
from conveyor.testing.shared_store import SharedStore

Result = TypeVar("Result")

ImageTest = Callable[[ClusterImage], bool]

_PATIENCE_S = 60.0


class ClusterBroker(Addressed):
    """One broker of a `Cluster`. disk: its memory disk, which can inject faults; another one after a kill."""

    def __init__(self, node_id: int, cluster: "Cluster", settings: Mapping[str, object]) -> None:
        self.node_id = node_id
        self.disk = MemoryDisk()
        self._cluster = cluster
        self._settings = {**settings, "broker.node_id": node_id}
        self._ports: dict[str, HeldPort] = {}
        self._process: _Process | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        """Start with the data of the last run, and return once requests are accepted. Raises ValueError if it runs."""
        if self._process is not None:
            raise ValueError(f"broker {self.node_id} is running: kill or stop it first")
        self._ports |= hold_listeners(self._settings)
        addresses, security = {name: port.address for name, port in self._ports.items()}, self._cluster.security
        self._settings |= addresses if security is None else security.listeners(addresses)
        process = _Process(self.node_id, self._cluster, self._settings, self.disk)
        self._server = process.start()
        self._process = process
        listeners = self._server.listeners
        self._settings |= {"network.kafka": str(listeners), "network.http": str(listeners.http)}

    def stop(self) -> None:
        """Stop cleanly: other brokers take over its partitions first. Raises the failure of the broker, if any."""
        process, self._process = self._taken_process(), None
        process.stop()

    def kill(self) -> None:
        """End it at once, as SIGKILL does. The cluster notices at once, as when a machine closes the sockets."""
        process, self._process = self._taken_process(), None
        process.kill()
        self.disk = self.disk.process_crash()

    def restart(self) -> None:
        """Kill it and start it again."""
        self.kill()
        self.start()

    def release_ports(self) -> None:
        """Let other programs have its ports: it does not start again."""
        for port in self._ports.values():
            port.close()

    @property
    def incarnation(self) -> str:
        """The id of its registration. Raises ValueError if it does not run."""
        return self._taken_process().incarnation

    def image(self) -> ClusterImage:
        return self._taken_process().image()

    def wait_until(self, is_so: ImageTest, what: str) -> None:
        """Return once the cluster as this broker sees it passes a test. Raises TimeoutError after a minute."""
        self._taken_process().wait_until(is_so, what)

    def enforce_groups(self) -> None:
        """End the links that the test has cut."""
        if self._process is not None:
            self._process.enforce_groups()

    def _taken_process(self) -> "_Process":
        if self._process is None:
            raise ValueError(f"broker {self.node_id} is not running: start it first")
        return self._process


class Cluster(Secured):
    """Start with `with Cluster(brokers=3) as cluster:`, then connect any client to `cluster.bootstrap_servers`.

    settings: of every broker, by name: {"topics.segment_bytes": 1 << 20}. racks: of the brokers, in order of their
    ids. session_timeout_ms: how long the cluster waits for a broker that it cannot reach; a killed one is noticed at
    once. security: see `Broker`.

        cluster.kill(1), cluster.restart(1)     a crash of one broker, whose disk keeps what it has written
        cluster.partition({1}, {2, 3})          the groups cannot reach each other; the largest one keeps the metadata
        cluster.heal()                          everything reaches everything again
        cluster.wait_until_in_sync()            every partition has a leader and all of its replicas

    Clients reach every broker that runs, also one that is partitioned off. Broker ids begin at 1.
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        settings: Mapping[str, object] | None = None,
        racks: Sequence[str] = (),
        session_timeout_ms: int = 2_000,
        security: bool = False,
    ) -> None:
        if brokers < 1:
            raise ValueError(f"a cluster of {brokers} brokers: it needs at least one")
        self.groups = NetworkGroups()
        self.coordination = Coordination(session_timeout_ms)
        self.security = BrokerSecurity() if security else None
        own = {**({} if self.security is None else self.security.settings), **(settings or {})}
        self.brokers = {
            node_id: ClusterBroker(node_id, self, {**own, "broker.rack": rack} if rack else own)
            for node_id, rack in zip(range(1, brokers + 1), chain(racks, repeat("")), strict=False)
        }

    @property
    def bootstrap_servers(self) -> str:
        """`host:port,host:port,...` of all brokers, running or not."""
        return ",".join(broker.bootstrap_servers for broker in self.brokers.values())

    def start(self) -> Self:
        """Start all brokers that do not run, and return once each of them knows all. Raises the failure that prevented
        a start; then nothing runs. Raises ValueError after `stop`.
        """
        self.coordination.start()
        try:
            for broker in self.brokers.values():
                if not broker.is_running:
                    broker.start()
            for broker in self.brokers.values():
                broker.wait_until(lambda image: image.brokers.keys() >= self.brokers.keys(), "brokers are missing")
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop all brokers, and forget the metadata. Raises the failures of brokers."""
        try:
            with contextlib.ExitStack() as calls:
                for broker in self.brokers.values():
                    if broker.is_running:
                        calls.callback(broker.stop)
        finally:
            self.coordination.stop()
            for broker in self.brokers.values():
                broker.release_ports()
            if self.security is not None:
                self.security.remove()

    def kill(self, node_id: int) -> None:
        """See `ClusterBroker.kill`. Raises ValueError for an unknown broker."""
        self._broker(node_id).kill()

    def restart(self, node_id: int) -> None:
        """Start a broker again; one that runs is killed first. Raises ValueError for an unknown broker."""
        broker = self._broker(node_id)
        if broker.is_running:
            broker.kill()
        broker.start()

    def partition(self, *groups: Collection[int]) -> None:
        """Let only brokers of the same group reach each other, until `heal`.

        Only the largest group, the first one of equals, reaches the metadata. The sessions of the others end after
        `session_timeout_ms`. Raises ValueError if a broker is in no group or in two.
        """
        members = sorted(node_id for group in groups for node_id in group)
        if members != sorted(self.brokers):
            raise ValueError(f"the groups {groups} must have each of the brokers {sorted(self.brokers)} once")
        self.groups.split(*map(frozenset, groups))
        majority = max(groups, key=len)
        self.coordination.cut(node_id for node_id in self.brokers if node_id not in majority)
        self._enforce_groups()

    def heal(self) -> None:
        """End a partition."""
        self.groups.split()
        self.coordination.heal()
        self._enforce_groups()

    def leader(self, topic: str, partition: int) -> int | None:
        """Return the leader of a partition; None if it has none now. Raises KeyError for an unknown topic."""
        leader = self._any_running().image().topics[topic].partitions[partition].leader
        return None if leader < 0 else leader

    def wait_until_in_sync(self) -> None:
        """Return once all brokers that run agree that each partition has a leader and all its replicas in sync.

        They know by then which brokers have been killed, stopped and started. Raises ValueError if no broker runs, or
        if a broker that does not run has replicas, which cannot be in sync; TimeoutError after a minute.
        """
        self._any_running()
        running = [broker for broker in self.brokers.values() if broker.is_running]
        for broker in running:
            broker.wait_until(self._is_current, "its image shows other brokers than those that run")
        self._check_replicas(running[0].image())
        for broker in running:
            broker.wait_until(_is_in_sync, "not all replicas are in sync")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, trace)

    def _broker(self, node_id: int) -> ClusterBroker:
        broker = self.brokers.get(node_id)
        if broker is None:
            raise ValueError(f"there is no broker {node_id}: this cluster has the brokers {sorted(self.brokers)}")
        return broker

    def _any_running(self) -> ClusterBroker:
        for broker in self.brokers.values():
            if broker.is_running:
                return broker
        raise ValueError("no broker is running: start one first")

    def _is_current(self, image: ClusterImage) -> bool:
        """Return whether an image shows each broker that runs, by its present registration, and no other as live."""
        shown = {broker.node_id: broker.incarnation for broker in image.live_brokers}
        return shown == {node_id: own.incarnation for node_id, own in self.brokers.items() if own.is_running}

    def _check_replicas(self, image: ClusterImage) -> None:
        for name, topic in image.topics.items():
            for number, partition in enumerate(topic.partitions):
                for node_id in partition.replicas:
                    if not self._broker(node_id).is_running:
                        raise ValueError(
                            f"broker {node_id} does not run and has a replica of {name}-{number}, which cannot be in"
                            " sync: restart the broker first"
                        )

    def _enforce_groups(self) -> None:
        for broker in self.brokers.values():
            broker.enforce_groups()


class _Process:
    """One run of a broker: a thread with an event loop."""

    def __init__(self, node_id: int, cluster: Cluster, settings: Mapping[str, object], disk: MemoryDisk) -> None:
        self._node_id = node_id
        self._cluster = cluster
        self._settings = from_sources(settings)
        self._disk = disk
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._server: Server | None = None
        self._peers: CuttablePeers | None = None
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=f"conveyor-broker-{node_id}", daemon=True)

    def start(self) -> Server:
        """Return the server once it accepts requests. Raises the failure that prevented the start."""
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        assert self._server is not None
        return self._server

    def stop(self) -> None:
        """Raises the failure that had stopped the broker before, if there was one."""
        with contextlib.suppress(RuntimeError):  # A bug has stopped it.
            self._loop.call_soon_threadsafe(self._running_server().stopping.set)
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def kill(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # About the sockets that a killed process leaves open.
            self._loop.close()
        self._cluster.coordination.end_session(self._node_id)

    @property
    def incarnation(self) -> str:
        return self._running_server().broker.metadata.session.incarnation

    def image(self) -> ClusterImage:
        return self._running_server().broker.metadata.image

    def wait_until(self, is_so: ImageTest, what: str) -> None:
        """Raises TimeoutError; the failure of the broker, if a bug has stopped it."""
        work = self._until(is_so)
        try:
            waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError as closed:
            work.close()
            raise self._failure or closed from None
        try:
            waiting.result(_PATIENCE_S)
        except TimeoutError as error:
            waiting.cancel()
            raise TimeoutError(f"broker {self._node_id}: {what}") from error

    def enforce_groups(self) -> None:
        if self._peers is not None:
            self._loop.call_soon_threadsafe(self._peers.enforce)

    async def _until(self, is_so: ImageTest) -> None:
        metadata, changed = self._running_server().broker.metadata, asyncio.Event()
        metadata.listen(lambda _old, _new: changed.set())
        while not is_so(metadata.image):
            changed.clear()
            await changed.wait()

    def _running_server(self) -> Server:
        assert self._server is not None, "the broker has not started"
        return self._server

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        serving = self._loop.create_task(self._serve())
        serving.add_done_callback(lambda _: self._loop.stop())
        self._loop.run_forever()
        if serving.done():
            self._failure = None if serving.cancelled() else serving.exception()
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()
        else:
            self._abandon()
        self._started.set()

    def _abandon(self) -> None:
        _keep_for_ever(asyncio.all_tasks(self._loop))
        if self._server is not None:
            self._server.abandon()

    async def _serve(self) -> None:
        session = await asyncio.to_thread(self._cluster.coordination.open_session, self._node_id)
        store = SharedStore(session, self._cluster.coordination.loop)
        server = Server(self._settings, (self._disk, store), self._cuttable)
        await server.start()
        if self._cluster.security is not None:
            await self._cluster.security.add_admin(server.broker)
        self._server = server
        self._started.set()
        await server.stopping.wait()
        await server.stop()
        if server.failure is not None:
            raise server.failure

    def _cuttable(self, peers: PeerNetwork) -> PeerNetwork:
        self._peers = CuttablePeers(self._node_id, self._cluster.groups, peers)
        return self._peers


def _keep_for_ever(tasks: set[asyncio.Task[Any]]) -> None:
    """Keep the tasks of a killed broker until the process has ended: as Python freed them, even as it exits, it would
    run their `finally` blocks.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(tasks))


def _is_in_sync(image: ClusterImage) -> bool:
    partitions = [partition for topic in image.topics.values() for partition in topic.partitions]
    return all(
        partition.leader >= 0 and not partition.target and set(partition.isr) == set(partition.replicas)
        for partition in partitions
    )
