"""A site: one application and its open connections."""

import asyncio
from typing import Any

from aiohttp import web

from conveyor.http_api.engine.http_connection import Connection
from conveyor.http_api.engine.request_log import RequestLog

_OPTIONS: dict[str, Any] = {
    "access_log": None,
    "auto_decompress": False,  # `request_reader` decompresses bodies and reports errors as problems.
    "max_field_size": 8190,
    "max_headers": 128,
    "max_line_size": 8190,
}
_FORCED_S = 1.0
_TICKS_TO_BEGIN = 3
"""Ticks of the event loop within which aiohttp calls the handler of a received request."""


class Site:
    """One application and its connections. Create it with `make_site`."""

    def __init__(self, runner: web.AppRunner, manager: web.Server, idle_s: float) -> None:
        self._runner = runner
        self._manager = manager
        self._idle_s = idle_s
        self._loop = asyncio.get_running_loop()
        self._connections: dict[Connection, None] = {}
        self._all_closed = asyncio.Event()
        self._all_closed.set()

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def connection(self) -> Connection:
        """Return the protocol for a newly accepted connection."""
        options: dict[str, Any] = {**_OPTIONS, "logger": RequestLog(), "keepalive_timeout": self._idle_s}
        made = Connection(self._manager, loop=self._loop, **options)
        made.opened, made.closed = self._opened, self._closed
        return made

    def make_room(self, limit: int) -> None:
        """Close the oldest connections until their number is below the limit."""
        while len(self._connections) >= limit:
            oldest = next(iter(self._connections))
            self._closed(oldest)
            oldest.force_close()

    async def finish_requests(self, seconds: float) -> None:
        """Accept no more requests, and wait for the received ones, at most this long."""
        for connection in list(self._connections):
            connection.finish()
        for _ in range(_TICKS_TO_BEGIN):
            await asyncio.sleep(0)
        try:
            async with asyncio.timeout(seconds):
                await self._runner.app.shutdown()
        except TimeoutError:
            return

    async def drain(self, seconds: float) -> None:
        """Wait until clients have read their responses, at most this long."""
        try:
            async with asyncio.timeout(seconds):
                await self._all_closed.wait()
        except TimeoutError:
            return

    async def close(self) -> None:
        """Close all connections at once."""
        await self._manager.shutdown(_FORCED_S)
        await self._runner.app.cleanup()

    def _opened(self, connection: Connection) -> None:
        self._connections[connection] = None
        self._all_closed.clear()

    def _closed(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        if not self._connections:
            self._all_closed.set()


async def make_site(application: web.Application, idle_s: float) -> Site:
    """Prepare an application to serve. idle_s: close a connection that sends no complete request for this long."""
    runner = web.AppRunner(application, handler_cancellation=True)
    await runner.setup()
    manager: Any = runner.server
    return Site(runner, manager, idle_s)
