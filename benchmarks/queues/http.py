"""HTTP/1.1 for a load generator: requests are bytes, made beforehand where they can be; of an answer only the status
and the length are looked at. A client library would take more of the machine's two cores than the broker."""

import asyncio
import http.client
import json
from typing import Any

_STATUS = slice(9, 12)
_LENGTH = b"content-length:"


def request(method: str, path: str, body: bytes = b"") -> bytes:
    """One request on a connection that stays open; a body is JSON."""
    return b"%s %s HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
        method.encode(),
        path.encode(),
        len(body),
        body,
    )


class Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self._answer: asyncio.Future[bytes] | None = None
        self._received = b""

    def connection_made(self, transport: Any) -> None:
        self._transport: asyncio.Transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error or ConnectionError("closed before the answer was complete"))

    async def ask(self, sent: bytes) -> bytes:
        """The body of the answer. Raises RuntimeError unless its status is of success."""
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(sent)
        return await self._answer

    def close(self) -> None:
        self._answer = None
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        received = self._received = self._received + data if self._received else data
        head = received.find(b"\r\n\r\n")
        if head < 0:
            return
        start = received[:head].lower().find(_LENGTH)
        length = 0 if start < 0 else int(received[start + len(_LENGTH) : received.find(b"\r", start)])
        if len(received) < head + 4 + length:
            return
        self._received = b""
        if self._answer is None or self._answer.done():
            return
        if received[_STATUS][:1] == b"2":
            self._answer.set_result(received[head + 4 :])
        else:
            self._answer.set_exception(RuntimeError(f"answered with {received[:2000]!r}"))


async def connect(address: str) -> Connection:
    """A connection to `host:port`."""
    host, _, port = address.rpartition(":")
    _, connection = await asyncio.get_running_loop().create_connection(Connection, host, int(port))
    return connection


def call(address: str, method: str, path: str, document: Any = None) -> Any:
    """One request on a connection of its own, for what is not measured: the answer's document.

    Raises OSError, and RuntimeError unless the status is of success.
    """
    client = http.client.HTTPConnection(address, timeout=600)
    try:
        body = None if document is None else json.dumps(document)
        client.request(method, path, body, {"Content-Type": "application/json"})
        answer = client.getresponse()
        content = answer.read()
    finally:
        client.close()
    if answer.status >= 300:
        raise RuntimeError(f"{method} {path} was answered with {answer.status}: {content[:2000]!r}")
    return json.loads(content) if content else None
