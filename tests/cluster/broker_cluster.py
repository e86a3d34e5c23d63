"""Brokers as processes on one machine, their ZooKeeper, and proxies between all of them."""

import asyncio
import os
import shutil
import signal
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar
from uuid import uuid4

from tests.cluster.faulty_broker import BOOT
from tests.cluster.peer_proxy import FIRST_CLONE, PeerLinks, PeerProxy
from tests.coordination.tcp_proxy import TcpProxy
from tests.coordination.zookeeper_process import ZookeeperProcess
from tests.processes import BrokerProcess

Result = TypeVar("Result")

_START_S = 60
_STARTS = 5
_PEER_PORT = 9190
_ZOOKEEPER_IS_LATE = ("or the ZooKeeper cannot be used", ": start it, or check --metadata")
_FAULTY = ("-m", "tests.cluster.faulty_broker")


class ProxyLoop:
    """The event loop of all proxies, on a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Return the result of work on the loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_START_S)

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function on the loop, and return when it has been called."""

        async def called() -> None:
            function(*arguments)

        self.run(called())

    def stop(self) -> None:
        self.run(_end_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class ClusterNode:
    """One broker, its connection to the ZooKeeper, and the proxy that other brokers dial."""

    def __init__(self, directory: Path, process: BrokerProcess, proxy: TcpProxy, peers: PeerProxy, loop: ProxyLoop):
        self.process = process
        self.proxy = proxy
        self._directory = directory
        self._peers = peers
        self._loop = loop

    @property
    def kafka(self) -> str:
        return self.process.kafka

    @property
    def http(self) -> str:
        return self.process.http

    @property
    def data(self) -> Path:
        """The data directory."""
        return self._directory / "data"

    def start(self) -> None:
        """Start it; again, as a supervisor does, if it ends because it has lost its ZooKeeper meanwhile."""
        self._loop.run(self._peers.open())
        for _ in range(_STARTS):
            try:
                return void(self.process.start())
            except AssertionError:
                self.process.wait()
                if not any(reason in self.process.log()[-500:] for reason in _ZOOKEEPER_IS_LATE):
                    raise
        raise AssertionError(f"the broker ended {_STARTS} times as it started: {self.process.log()[-2000:]}")

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self._loop.run(self._peers.close())

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        code = self.process.stop()
        self._loop.run(self._peers.close())
        return code

    def end(self) -> None:
        """Kill it if it still runs. Nothing of it is left."""
        self.process.end()
        self._loop.run(self._peers.close())

    def pause(self) -> None:
        """SIGSTOP: its sockets accept connections, and nothing answers."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def cut_zookeeper(self) -> None:
        """Close its connections to the ZooKeeper, and refuse new ones."""
        self._loop.call(self.proxy.cut)

    def stall_zookeeper(self) -> None:
        """Pass on nothing between it and the ZooKeeper."""
        self._loop.call(self.proxy.stall)

    def heal_zookeeper(self) -> None:
        self._loop.call(self.proxy.heal)

    def break_disk(self, fault: str) -> None:
        """Begin or end a fault of its disk; see `faulty_broker`."""
        self.process.tell(fault)

    def reboot(self) -> None:
        """Let its next start find another boot of the machine. What it has not flushed is for the caller to remove."""
        (self._directory / BOOT).write_text(str(uuid4()))

    def remove_set_aside(self) -> int:
        """Remove the logs that the broker has set aside. Returns how many there were."""
        directories = list(self.data.glob("logs/*.damaged"))
        for directory in directories:
            shutil.rmtree(directory)
        return len(directories)


class BrokerCluster:
    """`start` returns when all brokers are ready; `end` kills everything.

    options: of all brokers. own_options: of single brokers, by their ids.
    """

    def __init__(
        self,
        directory: Path,
        size: int = 3,
        options: tuple[str, ...] = (),
        own_options: Mapping[int, tuple[str, ...]] = MappingProxyType({}),
    ) -> None:
        self._directory = directory
        self._size = size
        self._options = options
        self._own_options = own_options
        self._loop = ProxyLoop()
        self._links = PeerLinks()
        self.zookeeper = ZookeeperProcess(directory / "zookeeper")
        self.nodes: list[ClusterNode] = []
        self._clones: list[BrokerProcess] = []

    @property
    def bootstrap(self) -> str:
        return ",".join(node.kafka for node in self.nodes)

    def start(self, *first: int) -> "BrokerCluster":
        """first: the indexes of the brokers that start before the others, in this order."""
        self.zookeeper.start()
        self.nodes = [self._node(number) for number in range(1, self._size + 1)]
        try:
            for index in first:
                self.nodes[index].start()
            others = [node for index, node in enumerate(self.nodes) if index not in first]
            with ThreadPoolExecutor(self._size) as threads:
                list(threads.map(ClusterNode.start, others))
        except BaseException:
            self.end()
            raise
        return self

    def end(self) -> None:
        for node in self.nodes:
            node.end()
        for clone in self._clones:
            clone.end()
        self.zookeeper.kill()
        for node in self.nodes:
            self._loop.run(node.proxy.stop())
        self._loop.stop()

    def log(self, number: int) -> str:
        """Return what the broker at this index has logged."""
        return self.nodes[number].process.log()

    def cut_link(self, one: int, other: int) -> None:
        """Let two brokers not connect, by their ids."""
        self._loop.call(self._links.cut, one, other)

    def mute_link(self, sender: int, receiver: int) -> None:
        """Pass on nothing from one broker to another."""
        self._loop.call(self._links.mute, sender, receiver)

    def delay_link(self, one: int, other: int, seconds: float) -> None:
        """Hold back what two brokers send each other."""
        self._loop.call(self._links.delay, one, other, seconds)

    def reset_link(self, one: int, other: int) -> None:
        """Abort the connections between two brokers once."""
        self._loop.call(self._links.reset, one, other)

    def heal_links(self) -> None:
        self._loop.call(self._links.heal)

    def clone(self, number: int, data: Path) -> BrokerProcess:
        """Return a second process of a broker, on a copy of its data directory. The caller starts it."""
        listener, announced = peer_addresses(FIRST_CLONE + number)
        metadata = f"zookeeper://127.0.0.1:{self.zookeeper.port}/conveyor"
        clone = self._process(number, data, metadata, listener, announced)
        self._clones.append(clone)
        return clone

    def _node(self, number: int) -> ClusterNode:
        proxy = self._loop.run(TcpProxy(self.zookeeper.port).start())
        directory = self._directory / f"broker-{number}"
        directory.mkdir(exist_ok=True)
        metadata = f"zookeeper://127.0.0.1:{proxy.port}/conveyor"
        listener, announced = peer_addresses(number)
        process = self._process(number, directory / "data", metadata, listener, announced)
        peers = PeerProxy(number, target=listener, own=announced, links=self._links)
        return ClusterNode(directory, process, proxy, peers, self._loop)

    def _process(
        self, number: int, data: Path, metadata: str, listener: tuple[str, int], announced: tuple[str, int]
    ) -> BrokerProcess:
        options = ("--node-id", str(number), "--metadata", metadata, "--peer", "{}:{}".format(*listener))
        announcement = ("--set", "network.peer_advertised={}:{}".format(*announced))
        own = self._own_options.get(number, ())
        return BrokerProcess(data, *options, *announcement, *self._options, *own, command=_FAULTY)


def void(_: object) -> None:
    """Make a function that returns something one that returns nothing."""


async def _end_tasks() -> None:
    """Let all connections of the proxies come to their end."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    if tasks:
        await asyncio.wait(tasks, timeout=_START_S / 2)


def peer_addresses(number: int) -> tuple[tuple[str, int], tuple[str, int]]:
    """Return the addresses of a broker's listener, and of its proxy, which it announces. No other run uses these."""
    high, low = divmod(os.getpid() % (1 << 14), 1 << 8)
    return (f"127.{64 + high}.{low}.{number}", _PEER_PORT), (f"127.{128 + high}.{low}.{number}", _PEER_PORT)
