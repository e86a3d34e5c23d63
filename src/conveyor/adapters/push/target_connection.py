"""One connection to a push target: a request, its answer, and the next request. Bytes only; it opens nothing.

The head of an answer may have MAX_HEAD_BYTES, together with the informational answers (1xx) before it. Its body is
dropped: a connection with more than MAX_BODY_BYTES of it, or one that sends anything unasked, is closed.
"""

import asyncio
import re
from typing import cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from conveyor.broker.queues.pushing.push_client import PushAnswer, PushFailed, PushRequest

MAX_HEAD_BYTES = 16 << 10
MAX_BODY_BYTES = 4 << 10
MAX_RETRY_AFTERS = 4
_FIRST_FINAL_STATUS = 200
_FORBIDDEN = re.compile(r"[\r\n\0]")


class TargetConnection(asyncio.Protocol):
    """See the module's docstring. `is_reusable`: the next request may be sent."""

    def __init__(self) -> None:
        self.is_reusable = False
        self.has_received = False
        """Whether the target has sent anything since the last request."""
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[PushAnswer] | None = None
        self._is_complete: asyncio.Future[None] | None = None
        self._parser = HttpResponseParser(self)
        self._is_in_head = True
        self._head_bytes = self._body_bytes = 0
        self._retry_after: list[str] = []

    async def post(self, content: bytes) -> PushAnswer:
        """Send a request and return the answer to it. content: see `request_bytes`. Raises PushFailed."""
        transport = self._transport
        self.is_reusable = self.has_received = False
        if transport is None or transport.is_closing():
            raise PushFailed("the target has closed the connection", is_sent=False)
        loop = asyncio.get_running_loop()
        self._answer, self._is_complete = loop.create_future(), loop.create_future()
        self._is_in_head, self._head_bytes, self._body_bytes = True, 0, 0
        transport.write(content)
        try:
            return await self._answer
        finally:
            self._answer = None

    async def complete(self, patience_s: float) -> None:
        """Wait a moment for the rest of an answer, after which the connection is reusable, or is to be closed."""
        if self._is_complete is not None and not self._is_complete.done():
            await asyncio.wait([self._is_complete], timeout=patience_s)

    def close(self) -> None:
        """Close the connection at once."""
        self.is_reusable = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.is_reusable = True

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail("the target has closed the connection")

    def data_received(self, data: bytes) -> None:
        if self._is_complete is None or self._is_complete.done():
            return self.close()  # Nobody has asked for this.
        self.has_received = True
        head_bytes = MAX_HEAD_BYTES - self._head_bytes if self._is_in_head else 0
        self._head_bytes += len(data) if self._is_in_head else 0
        try:
            for part in filter(None, (data[:head_bytes], data[head_bytes:])):
                if self._is_in_head and not head_bytes:
                    return self._fail("the head of the target's answer is too long")
                self._parser.feed_data(part)
                head_bytes = 0
        except (HttpParserError, HttpParserUpgrade):
            self._fail("the target's answer is not HTTP/1.1")

    def on_message_begin(self) -> None:
        if self._is_complete is not None and self._is_complete.done():
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"retry-after" and len(self._retry_after) < MAX_RETRY_AFTERS:
            self._retry_after.append(value.decode("latin-1"))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        answer = PushAnswer(status=status, retry_after=tuple(self._retry_after))
        self._retry_after = []
        if status < _FIRST_FINAL_STATUS:
            return
        self._is_in_head = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > MAX_BODY_BYTES:
            self.close()

    def on_message_complete(self) -> None:
        if self._is_in_head:  # An informational answer, before the one that counts.
            return
        transport = self._transport
        is_open = transport is not None and not transport.is_closing()
        self.is_reusable = is_open and self._parser.should_keep_alive()
        if self._is_complete is not None and not self._is_complete.done():
            self._is_complete.set_result(None)

    def _fail(self, reason: str) -> None:
        self.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(PushFailed(reason, is_sent=True))
        if self._is_complete is not None and not self._is_complete.done():
            self._is_complete.set_result(None)


def request_bytes(request: PushRequest) -> bytes:
    """Return a request as it is sent. Raises PushFailed if a header could begin another one."""
    lines = [
        f"POST {request.url.path} HTTP/1.1",
        f"host: {request.url.authority}",
        f"content-length: {len(request.body)}",
        "accept: */*",
        *(f"{name}: {value}" for name, value in request.headers),
    ]
    if any(map(_FORBIDDEN.search, lines)):
        raise PushFailed("a header of the request has a line break", is_sent=False)
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + request.body
