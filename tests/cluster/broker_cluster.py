"""Brokers as processes on one machine, their ZooKeeper, and a proxy between each broker and it."""

import asyncio
import signal
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from tests.coordination.tcp_proxy import TcpProxy
from tests.coordination.zookeeper_process import ZookeeperProcess
from tests.processes import BrokerProcess

Result = TypeVar("Result")

_START_S = 60


class ClusterNode:
    """One broker, and its connection to the ZooKeeper."""

    def __init__(self, process: BrokerProcess, proxy: TcpProxy, loop: asyncio.AbstractEventLoop) -> None:
        self.process = process
        self.proxy = proxy
        self._loop = loop

    @property
    def kafka(self) -> str:
        return self.process.kafka

    @property
    def http(self) -> str:
        return self.process.http

    def start(self) -> None:
        self.process.start()

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        return self.process.stop()

    def pause(self) -> None:
        """SIGSTOP: its sockets accept connections, and nothing answers."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def cut_zookeeper(self) -> None:
        """Close its connections to the ZooKeeper, and refuse new ones."""
        self._loop.call_soon_threadsafe(self.proxy.cut)

    def stall_zookeeper(self) -> None:
        """Pass on nothing between it and the ZooKeeper."""
        self._loop.call_soon_threadsafe(self.proxy.stall)

    def heal_zookeeper(self) -> None:
        self._loop.call_soon_threadsafe(self.proxy.heal)


class BrokerCluster:
    """`start` returns when all brokers are ready; `end` kills everything."""

    def __init__(self, directory: Path, size: int = 3, options: tuple[str, ...] = ()) -> None:
        self._directory = directory
        self._size = size
        self._options = options
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self.zookeeper = ZookeeperProcess(directory / "zookeeper")
        self.nodes: list[ClusterNode] = []

    @property
    def bootstrap(self) -> str:
        return ",".join(node.kafka for node in self.nodes)

    def start(self) -> "BrokerCluster":
        self._thread.start()
        self.zookeeper.start()
        self.nodes = [self._node(number) for number in range(1, self._size + 1)]
        with ThreadPoolExecutor(self._size) as threads:
            list(threads.map(ClusterNode.start, self.nodes))
        return self

    def end(self) -> None:
        for node in self.nodes:
            node.process.end()
        self.zookeeper.kill()
        for node in self.nodes:
            self._run(node.proxy.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def log(self, number: int) -> str:
        """Return what the broker at this index has logged."""
        return self.nodes[number].process.log()

    def _node(self, number: int) -> ClusterNode:
        proxy = self._run(TcpProxy(self.zookeeper.port).start())
        directory = self._directory / f"broker-{number}"
        directory.mkdir(exist_ok=True)
        metadata = f"zookeeper://127.0.0.1:{proxy.port}/conveyor"
        options = ("--node-id", str(number), "--metadata", metadata, *self._options)
        return ClusterNode(BrokerProcess(directory / "data", *options), proxy, self._loop)

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_START_S)
