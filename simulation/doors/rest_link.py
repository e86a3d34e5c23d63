"""One connection of a client to a broker's HTTP door. Requests may be sent before earlier ones are answered."""

import asyncio
from base64 import b64encode
from collections import deque
from typing import Any, NamedTuple, cast

import msgspec

from conveyor.kernel.errors import ErrorKind, RequestError
from simulation.doors.client_network import MemoryTransport
from simulation.doors.kafka_link import lose
from simulation.ledger import InvariantBroken

_HEAD_END = b"\r\n\r\n"


class RestAnswer(NamedTuple):
    """The status and the document of a response."""

    status: int
    document: Any


class RestLink(asyncio.Protocol):
    def __init__(self) -> None:
        self.is_open = True
        self._received = b""
        self._waiting: deque[asyncio.Future[RestAnswer]] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("MemoryTransport", transport)
        self._loop = asyncio.get_running_loop()

    def send(
        self, method: str, path: str, document: object = None, login: tuple[str, str] | None = None
    ) -> "asyncio.Future[RestAnswer]":
        """Send a request. The future raises Disconnected if no answer comes. login: user and password, by Basic."""
        reply: asyncio.Future[RestAnswer] = self._loop.create_future()
        if not self.is_open:
            lose(reply, "the connection has ended")
            return reply
        self._waiting.append(reply)
        self._write(encode_request(method, path, document, login))
        return reply

    def _write(self, request: bytes) -> None:
        self._transport.write(request)

    def end_input(self) -> None:
        """Send no more requests. The broker answers those that it has."""
        self._transport.write_eof()

    def close(self) -> None:
        self._transport.abort()
        self._fail("the client has ended the connection")

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (found := next_answer(self._received)) is not None:
            answer, self._received, is_last = found
            if is_last:
                self.is_open = False
            if not self._waiting:
                raise InvariantBroken("AnswersInOrder", "an HTTP response without a request has arrived")
            reply = self._waiting.popleft()
            if not reply.done():
                reply.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail("the connection was lost")

    def _fail(self, reason: str) -> None:
        self.is_open = False
        waiting, self._waiting = self._waiting, deque()
        for reply in waiting:
            lose(reply, reason)


def next_answer(received: bytes) -> tuple[RestAnswer, bytes, bool] | None:
    """Return the first response, what follows it, and whether the broker then ends the connection; None if it is not
    complete.
    """
    head_end = received.find(_HEAD_END)
    if head_end < 0:
        return None
    status_line, *lines = received[:head_end].decode().split("\r\n")
    fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    begin = head_end + len(_HEAD_END)
    end = begin + int(fields.get("content-length", "0"))
    if len(received) < end:
        return None
    body = received[begin:end]
    answer = RestAnswer(int(status_line.split(" ")[1]), msgspec.json.decode(body) if body else None)
    return answer, received[end:], fields.get("connection") == "close"


def problem(answer: RestAnswer) -> RequestError | None:
    """Return the problem that a response tells, if any."""
    return None if answer.status < 400 else problem_of(answer.document)


def problem_of(document: Any) -> RequestError:
    """Return the problem of a document. Those of HTTP itself count as invalid requests."""
    name = document["kind"].upper()
    is_known = name in ErrorKind.__members__
    return RequestError(ErrorKind[name] if is_known else ErrorKind.INVALID_REQUEST, document["detail"])


def encode_request(method: str, path: str, document: object, login: tuple[str, str] | None) -> bytes:
    body = b"" if document is None else msgspec.json.encode(document)
    head = f"{method} {path} HTTP/1.1\r\nHost: broker.example\r\n"
    if login is not None:
        head += f"Authorization: Basic {b64encode(':'.join(login).encode()).decode()}\r\n"
    if method != "GET":
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body
