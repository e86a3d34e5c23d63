"""Proxies in front of the brokers of a cluster, which cut each connection of a client after a while."""

import asyncio
import contextlib
from collections.abc import Callable
from random import Random

from tests.cluster.broker_cluster import ProxyLoop

_LIFE_S = (0.5, 1.5)
_READ_BYTES = 1 << 18


class CuttingProxy:
    """At an address of its own, which its broker advertises.

    target: the broker, `host:port`; empty until it has started. has_cut: called after each cut.
    """

    def __init__(self, random: Random, has_cut: Callable[[], None]) -> None:
        self.target = ""
        self._random = random
        self._has_cut = has_cut
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> "CuttingProxy":
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"
        return self

    async def stop(self) -> None:
        self._listener.close()
        for writer in self._writers:
            writer.transport.abort()
        await self._listener.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.target.rpartition(":")
        with contextlib.suppress(OSError):
            from_broker, to_broker = await asyncio.open_connection(host, int(port))
            self._writers |= (both := {writer, to_broker})
            cut = asyncio.get_running_loop().call_later(self._random.uniform(*_LIFE_S), self._cut, writer, to_broker)
            await asyncio.gather(_pump(reader, to_broker), _pump(from_broker, writer))
            cut.cancel()
            self._writers -= both
        writer.transport.abort()

    def _cut(self, *writers: asyncio.StreamWriter) -> None:
        for writer in writers:
            writer.transport.abort()
        self._has_cut()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on what one end sends, until either closes the connection."""
    with contextlib.suppress(OSError):
        while content := await reader.read(_READ_BYTES):
            writer.write(content)
            await writer.drain()
    writer.transport.abort()


class CuttingProxies:
    """One proxy for each broker, by the brokers' ids. seed: of the lives of the connections."""

    def __init__(self, brokers_count: int, seed: int) -> None:
        self.cuts_count = 0
        self._loop = ProxyLoop()
        self._cut = asyncio.Event()
        random = Random(seed)
        self.by_id = {
            number: self._loop.run(CuttingProxy(random, self._has_cut).start())
            for number in range(1, brokers_count + 1)
        }

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(proxy.address for proxy in self.by_id.values())

    def await_cuts(self, count: int) -> None:
        """Return after so many further cuts. Raises TimeoutError after a minute."""
        self._loop.run(self._cuts(count))

    def end(self) -> None:
        for proxy in self.by_id.values():
            self._loop.run(proxy.stop())
        self._loop.stop()

    def _has_cut(self) -> None:
        self.cuts_count += 1
        self._cut.set()

    async def _cuts(self, count: int) -> None:
        last = self.cuts_count + count
        while self.cuts_count < last:
            self._cut.clear()
            await self._cut.wait()
