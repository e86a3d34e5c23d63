"""The client's side of a WebSocket in memory: its frames, byte by byte, and what it reads."""

from collections.abc import Iterator
from itertools import count, cycle
from struct import pack

from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, Pong, TextMessage

from conveyor.http.engine.exchange import Service
from conveyor.http.engine.http_response import DateHeader
from conveyor.kernel.request_budget import RequestBudget
from conveyor.testing.manual_clock import ManualClock
from tests.unit.http.memory_wire import IDLE_S, Client, EchoApplication, EchoHandler

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
ACCEPT = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
"""The answer to the key, from RFC 6455, 1.3."""
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10


def upgrade(path: str = "/websocket", *more: str, version: str = "HTTP/1.1", **replaced: str | None) -> bytes:
    """Return a request. replaced: values of its headers, with `_` for `-`; None for none."""
    headers: dict[str, str | None] = {
        "Host": "h", "Upgrade": "websocket", "Connection": "keep-alive, Upgrade", "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": KEY,
    }  # fmt: skip
    headers |= {name.replace("_", "-"): value for name, value in replaced.items()}
    lines = [f"{name}: {value}" for name, value in headers.items() if value is not None]
    return "\r\n".join((f"GET {path} {version}", *lines, *more, "", "")).encode()


def frame(opcode: int, payload: bytes = b"", *, fin: bool = True, mask: bytes | None = b"mask", rsv: int = 0) -> bytes:
    """Return the bytes of one frame."""
    size = len(payload)
    masked = 0 if mask is None else 0x80
    head = bytes((fin << 7 | rsv << 4 | opcode, masked | (size if size < 126 else 126 if size < 1 << 16 else 127)))
    length = b"" if size < 126 else pack(">H" if size < 1 << 16 else ">Q", size)
    if mask is None:
        return head + length + payload
    return head + length + mask + bytes(byte ^ key for byte, key in zip(payload, cycle(mask), strict=False))


def close(code: int | None = 1000, reason: str = "") -> bytes:
    return frame(CLOSE, b"" if code is None else pack(">H", code) + reason.encode())


class WebSocketClient(Client):
    """A client whose connection was upgraded. budget_bytes: for messages."""

    def __init__(self, path: str = "/websocket", budget_bytes: int = 10_000_000) -> None:
        application = EchoApplication()
        budget = RequestBudget(budget_bytes)
        service = Service(application, budget, DateHeader(ManualClock(0)), IDLE_S, count(1))
        super().__init__(service=service)
        self.application, self.budget = application, budget
        self.send(upgrade(path))
        assert b"\r\nSec-WebSocket-Accept: %b\r\n" % ACCEPT in self.take()
        self._parser = Connection(ConnectionType.CLIENT)

    @property
    def handler(self) -> EchoHandler:
        return self.application.websockets[0]

    def read(self) -> list[object]:
        """Return what the server has sent: messages, close codes, and pings and pongs with their payloads."""
        self._parser.receive_data(self.take())
        return list(_read(self._parser.events()))


def _read(events: Iterator[Event]) -> Iterator[object]:
    for event in events:
        match event:
            case TextMessage(data=data) | BytesMessage(data=data):
                assert event.message_finished
                yield data
            case CloseConnection(code=code):
                yield int(code)
            case Ping(payload=payload):
                yield "ping", bytes(payload)
            case Pong(payload=payload):
                yield "pong", bytes(payload)
