"""AMQP 0-9-1 for a load generator, as far as it takes to publish and consume: frames are bytes, made beforehand.

Numbers of methods and layouts of their arguments: the AMQP 0-9-1 reference, and RabbitMQ's extension for confirms.
"""

import asyncio
import struct
from collections.abc import Callable
from typing import Any

_METHOD, _HEADER, _BODY = 1, 2, 3
_FRAME = struct.Struct(">BHI")
_END = b"\xce"
_DELIVERY_TAG = struct.Struct(">QB")
_CHANNEL = 1

_START, _START_OK = (10, 10), (10, 11)
_TUNE, _TUNE_OK = (10, 30), (10, 31)
_OPEN, _OPEN_OK = (10, 40), (10, 41)
_CLOSE, _CLOSE_OK = (10, 50), (10, 51)
_CHANNEL_OPEN, _CHANNEL_OPEN_OK = (20, 10), (20, 11)
_DECLARE, _DECLARE_OK = (50, 10), (50, 11)
_QOS, _QOS_OK = (60, 10), (60, 11)
_CONSUME, _CONSUME_OK = (60, 20), (60, 21)
_CONFIRM, _CONFIRM_OK = (85, 10), (85, 11)
_PUBLISH, _DELIVER, _ACK = (60, 40), (60, 60), (60, 80)
_CLOSING = (_CLOSE, (20, 40), (60, 120))
"""The connection closed, the channel closed, a publish refused."""

_FRAME_BYTES = 131_072
_PERSISTENT = struct.pack(">HB", 1 << 12, 2)
"""The only property of a message: delivery mode 2."""

QUEUE = "bench"

Received = Callable[[bytes, int], None]
"""Called with each message's body and delivery tag."""


def _short(text: str) -> bytes:
    return bytes((len(text),)) + text.encode()


def _long(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content


def _frame(kind: int, payload: bytes, channel: int = _CHANNEL) -> bytes:
    return _FRAME.pack(kind, channel, len(payload)) + payload + _END


def _method(name: tuple[int, int], arguments: bytes, channel: int = _CHANNEL) -> bytes:
    return _frame(_METHOD, struct.pack(">HH", *name) + arguments, channel)


def publish_frames(body: bytes) -> bytes:
    """A persistent message for the queue, through the default exchange."""
    method = _method(_PUBLISH, struct.pack(">H", 0) + _short("") + _short(QUEUE) + b"\x00")
    header = _frame(_HEADER, struct.pack(">HHQ", 60, 0, len(body)) + _PERSISTENT)
    return method + header + _frame(_BODY, body)


class AmqpConnection(asyncio.Protocol):
    """One connection with one channel, in confirm mode. `confirmed`: messages that the broker has taken."""

    def __init__(self) -> None:
        self._received: Received | None = None
        self.confirmed = 0
        self._rest = b""
        self._answers: asyncio.Queue[tuple[int, int] | Exception] = asyncio.Queue()
        self._waiting: tuple[int, asyncio.Future[None]] | None = None
        self._tag = 0

    def connection_made(self, transport: Any) -> None:
        self._transport: asyncio.Transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(error or ConnectionError("RabbitMQ closed the connection"))

    async def open(self) -> None:
        """Shake hands; declare the queue, a durable quorum queue."""
        self._transport.write(b"AMQP\x00\x00\x09\x01")
        await self._expect(_START)
        login = _long(b"") + _short("PLAIN") + _long(b"\x00guest\x00guest") + _short("en_US")
        await self._ask(_method(_START_OK, login, 0), _TUNE)
        self._transport.write(_method(_TUNE_OK, struct.pack(">HIH", 8, _FRAME_BYTES, 0), 0))
        await self._ask(_method(_OPEN, _short("/") + b"\x00\x00", 0), _OPEN_OK)
        await self._ask(_method(_CHANNEL_OPEN, b"\x00"), _CHANNEL_OPEN_OK)
        quorum = _long(_short("x-queue-type") + b"S" + _long(b"quorum"))
        await self._ask(_method(_DECLARE, struct.pack(">H", 0) + _short(QUEUE) + b"\x02" + quorum), _DECLARE_OK)
        await self._ask(_method(_CONFIRM, b"\x00"), _CONFIRM_OK)

    async def consume(self, prefetch: int, received: Received) -> None:
        """Be given messages, at most so many that are not acknowledged."""
        self._received = received
        await self._ask(_method(_QOS, struct.pack(">IHB", 0, prefetch, 0)), _QOS_OK)
        await self._ask(
            _method(_CONSUME, struct.pack(">H", 0) + _short(QUEUE) + _short("") + b"\x00" + _long(b"")), _CONSUME_OK
        )

    async def publish(self, frames: bytes, count: int) -> None:
        """Send messages and wait until all that were sent are confirmed."""
        wanted = self.confirmed + count
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting = wanted, done
        self._transport.write(frames)
        await done

    def acknowledge(self, tag: int) -> None:
        """This message and all before it."""
        self._transport.write(_method(_ACK, _DELIVERY_TAG.pack(tag, 1)))

    async def close(self) -> None:
        """Say goodbye: all that was acknowledged has been read when this returns."""
        await self._ask(_method(_CLOSE, struct.pack(">H", 200) + _short("") + struct.pack(">HH", 0, 0), 0), _CLOSE_OK)
        self._transport.close()

    async def _ask(self, sent: bytes, answer: tuple[int, int]) -> None:
        self._transport.write(sent)
        await self._expect(answer)

    async def _expect(self, answer: tuple[int, int]) -> None:
        found = await asyncio.wait_for(self._answers.get(), 60)
        if found != answer:
            raise found if isinstance(found, Exception) else RuntimeError(f"{found} was answered, not {answer}")

    def data_received(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        place, end = 0, len(data)
        while end - place >= _FRAME.size:
            kind, _, length = _FRAME.unpack_from(data, place)
            start, following = place + _FRAME.size, place + _FRAME.size + length + 1
            if following > end:
                break
            if kind == _METHOD:
                self._take(data, start, length)
            elif kind == _BODY and self._received is not None:
                self._received(data[start : start + length], self._tag)
            place = following
        self._rest = data[place:]

    def _take(self, data: bytes, start: int, length: int) -> None:
        name = struct.unpack_from(">HH", data, start)
        if name == _DELIVER:
            place = start + 4
            self._tag = _DELIVERY_TAG.unpack_from(data, place + 1 + data[place])[0]
        elif name == _ACK:
            tag, multiple = _DELIVERY_TAG.unpack_from(data, start + 4)
            self._confirm(tag, bool(multiple))
        elif name in _CLOSING:
            self._fail(RuntimeError(f"RabbitMQ refuses: {data[start + 4 : start + length]!r}"))
        else:
            self._answers.put_nowait(name)

    def _confirm(self, tag: int, multiple: bool) -> None:
        """Tags count the messages of the channel from 1; a single one may come out of turn."""
        self.confirmed = max(self.confirmed, tag) if multiple else self.confirmed + 1
        if self._waiting is not None and self.confirmed >= self._waiting[0] and not self._waiting[1].done():
            self._waiting[1].set_result(None)

    def _fail(self, error: Exception) -> None:
        self._answers.put_nowait(error)
        if self._waiting is not None and not self._waiting[1].done():
            self._waiting[1].set_exception(error)


async def connect(address: str) -> AmqpConnection:
    """A connection to `host:port`, its queue declared."""
    host, _, port = address.rpartition(":")
    _, connection = await asyncio.get_running_loop().create_connection(AmqpConnection, host, int(port))
    await connection.open()
    return connection
