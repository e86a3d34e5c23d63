"""One connection of a client to a broker's Kafka door. kio encodes its requests and decodes the answers.

Invariant, by the name that failures report:

    AnswersInOrder      the answers on a connection are those of its requests, in their order, and nothing else
"""

import asyncio
import io
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from conveyor.kafka_api.wire.codec import Body, build
from conveyor.kafka_api.wire.framing import LENGTH, FrameDecoder
from simulation.doors.client_network import Disconnected, MemoryTransport
from simulation.ledger import InvariantBroken

_MAX_FRAME_BYTES = 1 << 24


class Watch:
    """Sees the request of one client at the broker: the moments at which it arrives and its answer leaves.

    The checks run in the broker's process, and take no time.
    """

    def arrived(self) -> None:
        """The broker is about to begin the request."""

    def answered(self, response: Any) -> None:
        """The answer has just left. Raises InvariantBroken."""


@dataclass(slots=True, eq=False)
class _Sent:
    """A request. end: the number of bytes sent on the connection up to its end."""

    correlation_id: int
    api_key: int
    version: int
    end: int
    reply: "asyncio.Future[Any]"
    watch: Watch | None


class KafkaLink(asyncio.Protocol):
    """See the module's docstring. broken: takes a broken invariant that the broker's side of the connection shows."""

    def __init__(self, client_id: str, broken: Callable[[BaseException], None]) -> None:
        self.is_open = True
        self._client_id = client_id
        self._broken = broken
        self._count = self._sent_bytes = self._arrived_bytes = 0
        self._waiting: deque[_Sent] = deque()
        self._at_broker: deque[_Sent] = deque()
        """The requests whose answers have not left."""
        self._arrived = 0
        """The number of entries of `_at_broker` that have arrived."""
        self._decoder, self._leaving = FrameDecoder(_MAX_FRAME_BYTES), FrameDecoder(_MAX_FRAME_BYTES)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("MemoryTransport", transport)
        self._loop = asyncio.get_running_loop()
        self._transport.other.tap = self

    def send(self, api_key: int, version: int, body: Body, watch: Watch | None = None) -> "asyncio.Future[Any]":
        """Send a request. The future raises Disconnected if no answer comes."""
        reply: asyncio.Future[Any] = self._loop.create_future()
        if not self.is_open:
            lose(reply, "the connection has ended")
            return reply
        self._count += 1
        frame = _encode(api_key, version, self._count, self._client_id, body)
        self._sent_bytes += len(frame)
        sent = _Sent(self._count, api_key, version, self._sent_bytes, reply, watch)
        self._waiting.append(sent)
        self._at_broker.append(sent)
        self._transport.write(frame)
        return reply

    async def kafka(self, api_key: int, version: int, body: Body, watch: Watch | None = None) -> Any:
        """Ask the broker over this connection, or never. Returns kio's response. Raises Disconnected."""
        return await self.send(api_key, version, body, watch)

    def close(self) -> None:
        self._transport.abort()
        self._fail("the client has ended the connection")

    def data_received(self, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            if not self._waiting:
                raise InvariantBroken("AnswersInOrder", "an answer without a request has arrived")
            sent = self._waiting.popleft()
            response = _decode(sent, frame)
            if not sent.reply.done():
                sent.reply.set_result(response)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail("the connection was lost")

    def arriving(self, count: int) -> None:
        self._arrived_bytes += count
        while self._arrived < len(self._at_broker) and self._at_broker[self._arrived].end <= self._arrived_bytes:
            watch = self._at_broker[self._arrived].watch
            if watch is not None and self._arrived == 0:  # Otherwise its answer may wait for that of another request.
                watch.arrived()
            self._arrived += 1

    def leaving(self, data: bytes) -> None:
        for frame in self._leaving.feed(data):
            if not self._at_broker:
                continue
            sent = self._at_broker.popleft()
            self._arrived -= 1
            if sent.watch is not None:
                try:
                    sent.watch.answered(_decode(sent, frame))
                except InvariantBroken as broken:
                    self._broken(broken)

    def _fail(self, reason: str) -> None:
        self.is_open = False
        waiting, self._waiting = self._waiting, deque()
        for sent in waiting:
            lose(sent.reply, reason)


def lose(reply: "asyncio.Future[Any]", reason: str) -> None:
    """Raise Disconnected for a reply, which may have no waiting caller any more."""
    if not reply.done():
        reply.set_exception(Disconnected(reason))
        reply.exception()  # asyncio does not report an exception that was retrieved.


@cache
def _writers(api_key: int, version: int) -> tuple[Any, Any, Any]:
    schema = load_request_schema(api_key, version)
    return schema, entity_writer(schema.__header_schema__), entity_writer(schema)


@cache
def _readers(api_key: int, version: int) -> tuple[Any, Any]:
    schema = load_response_schema(api_key, version)
    return entity_reader(schema.__header_schema__), entity_reader(schema)


def _encode(api_key: int, version: int, correlation_id: int, client_id: str, body: Body) -> bytes:
    schema, write_header, write_body = _writers(api_key, version)
    header = {
        "request_api_key": api_key,
        "request_api_version": version,
        "correlation_id": correlation_id,
        "client_id": client_id,
    }
    buffer = io.BytesIO()
    write_header(buffer, build(schema.__header_schema__, header))
    write_body(buffer, build(schema, body))
    content = buffer.getvalue()
    return LENGTH.pack(len(content)) + content


def _decode(sent: _Sent, frame: memoryview) -> Any:
    """Decode the answer of a request. Raises InvariantBroken if it is that of another one."""
    correlation_id = LENGTH.unpack_from(frame)[0]
    if correlation_id != sent.correlation_id:
        detail = f"the answer of request {correlation_id} arrives for request {sent.correlation_id}"
        raise InvariantBroken("AnswersInOrder", f"API {sent.api_key}: {detail}")
    read_header, read_body = _readers(sent.api_key, sent.version)
    _, size = read_header(frame, 0)
    return read_body(frame, size)[0]
