"""Limits the memory of large responses in flight, so that clients that do not read cannot exhaust it."""

import asyncio

from aiohttp import web

SMALL_BYTES = 64 << 10
_MAX_BYTES = 256 << 20
_SECONDS = 60


class ResponseBudget:
    """Counts the bytes of large responses in flight, over all connections."""

    def __init__(self) -> None:
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether responses in flight use the whole budget, so that new requests must be refused."""
        return self._bytes >= _MAX_BYTES

    async def send(self, request: web.Request, response: web.Response) -> web.Response:
        """Send a response and wait until the client has read most of it. If it is too slow, close the connection."""
        size = response.content_length or 0
        if size <= SMALL_BYTES:
            return response
        self._bytes += size
        try:
            async with asyncio.timeout(_SECONDS):
                await response.prepare(request)
                await response.write_eof()
        except (TimeoutError, ConnectionError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._bytes -= size
        return response
