"""The HTTP listener. Its socket listens from the start; the web framework is loaded when somebody first connects.

Loading it takes some hundreds of milliseconds and 20 MiB, which a broker inside a test, or one that nobody asks over
HTTP, need not pay. It is loaded on a thread, so that Kafka clients are served meanwhile; the first HTTP client waits.
"""

import asyncio
import socket
from typing import Any

from conveyor.broker.broker import Broker
from conveyor.server.probe import NetworkProbe


class HttpListener:
    """See the module's docstring."""

    def __init__(self, broker: Broker, probe: NetworkProbe, bound: socket.socket) -> None:
        self._broker = broker
        self._probe = probe
        self._socket = bound
        self._loop = asyncio.get_running_loop()
        self._runner: Any = None

    def start(self) -> None:
        """Wait for the first connection."""
        self._loop.add_reader(self._socket.fileno(), self._first_connection)

    async def stop(self) -> None:
        self._loop.remove_reader(self._socket.fileno())
        if self._runner is not None:
            await self._runner.cleanup()

    def _first_connection(self) -> None:
        self._loop.remove_reader(self._socket.fileno())
        self._broker.tasks.start(self._serve())

    async def _serve(self) -> None:
        application, web = await self._loop.run_in_executor(None, _load)
        self._runner = web.AppRunner(application.make_application(self._broker, self._probe), access_log=None)
        await self._runner.setup()
        await web.SockSite(self._runner, self._socket).start()


def _load() -> tuple[Any, Any]:
    from aiohttp import web

    from conveyor.http_api import application

    return application, web
