"""The bytes of large answers that are on their way: a client that does not read its own must not take all memory."""

import asyncio

from aiohttp import web

SMALL_BYTES = 64 << 10
_MAX_BYTES = 256 << 20
_SECONDS = 60


class Answers:
    """Large answers that are being sent, all connections together."""

    def __init__(self) -> None:
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether no request should be begun that may have a large answer."""
        return self._bytes >= _MAX_BYTES

    async def send(self, request: web.Request, response: web.Response) -> web.Response:
        """Send an answer and wait until most of it is read, but not for ever: then the connection is closed."""
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
