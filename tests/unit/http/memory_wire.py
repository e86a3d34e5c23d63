"""A client of one `HttpConnection` in memory, with a clock that stands still until the test advances it."""

import asyncio
from collections.abc import Callable
from itertools import count

import httptools

from conveyor.http.engine.exchange import Exchange, Service
from conveyor.http.engine.http_connection import HttpConnection
from conveyor.http.engine.http_response import DateHeader, Response
from conveyor.http.engine.websocket_handler import OpenWebSocket
from conveyor.http.engine.wire import ConnectionMachine
from conveyor.kernel.request_budget import RequestBudget
from conveyor.testing.manual_clock import ManualClock
from tests.callers import CALLER

LIMIT_BYTES = 1_000_000
RECEIVE_MS = 1_000
IDLE_S = 10.0
_MOST_TICKS = 1_000_000


class EchoApplication:
    """Answers with the method, the target and the body of each request; `/later...` only when the test says so.

    `/refused` is refused by its head. `/undecided...` is neither refused nor admitted until the test says so.
    `/websocket...` is a WebSocket that echoes; `/websocket/works...` works on each message until the test says so.
    """

    max_receive_ms = RECEIVE_MS

    def __init__(self) -> None:
        self.served: list[tuple[str, bytes, bytes]] = []
        self.waiting: list[Exchange] = []
        self.undecided: list[Exchange] = []
        self.websockets: list[EchoHandler] = []
        self.exchanges: list[Exchange] = []
        self.gone = 0

    def open(self, exchange: Exchange) -> None:
        exchange.limits.most_bytes = LIMIT_BYTES
        if exchange.request.target == b"/refused":
            exchange.reply(Response(401, b"no", "text/plain"))
        elif exchange.request.target.startswith(b"/undecided"):
            exchange.is_admitted = False
            self.undecided.append(exchange)

    def serve(self, exchange: Exchange) -> None:
        request = exchange.request
        self.served.append((request.method, request.target, request.body))
        if b"/websocket" in request.target:
            self.exchanges.append(exchange)
            return exchange.upgrade(EchoHandler(self, works=b"/works" in request.target), LIMIT_BYTES)
        if request.target.startswith(b"/poll"):
            exchange.until_gone(self._gone)
        if request.target.startswith((b"/later", b"/poll")):
            self.waiting.append(exchange)
        else:
            exchange.reply(echo(exchange))

    async def close(self) -> None:
        """Nothing is in progress."""

    def _gone(self) -> None:
        self.gone += 1

    def answer(self, response: Response | None = None) -> None:
        """Reply to the oldest request that waits."""
        exchange = self.waiting.pop(0)
        exchange.reply(echo(exchange) if response is None else response)


class EchoHandler:
    """Notes what happens to a WebSocket, and echoes its messages. A message `bug` is one."""

    def __init__(self, application: EchoApplication, *, works: bool) -> None:
        self._application = application
        self._works = works
        self.websocket: OpenWebSocket
        self.messages: list[str | bytes] = []
        self.paces: list[str] = []
        self.codes: list[int] = []

    def opened(self, websocket: OpenWebSocket) -> None:
        self.websocket = websocket
        self._application.websockets.append(self)

    def received(self, message: str | bytes) -> None:
        self.messages.append(message)
        assert message != "bug"
        if self._works:
            self.websocket.pause_reading()
        else:
            self.websocket.send(message)

    def pause_writing(self) -> None:
        self.paces.append("pause")

    def resume_writing(self) -> None:
        self.paces.append("resume")

    def closed(self, code: int) -> None:
        self.codes.append(code)


def echo(exchange: Exchange) -> Response:
    request = exchange.request
    return Response(200, b"%b %b %b" % (request.method.encode(), request.target, request.body), "text/plain")


class MemoryWire:
    """The transport: keeps what is written, and does later work when the test says so."""

    def __init__(self) -> None:
        self.written = b""
        self.is_reading = True
        self.state = "open"
        self.now = 0.0
        self.high_water_bytes: int | None = None
        self.works: list[Callable[[], None]] = []
        self.machine: ConnectionMachine

    def write(self, data: bytes) -> None:
        assert self.state == "open", "nothing is written after the end"
        self.written += data
        if self.high_water_bytes is not None and len(self.written) > self.high_water_bytes:
            self.machine.pause_writing()

    def hand_over(self, machine: ConnectionMachine) -> None:
        self.machine = machine

    def end(self) -> None:
        self.state = "ended"

    def close(self) -> None:
        self.state = "closed"

    def abort(self) -> None:
        self.state = "aborted"

    def set_reading(self, is_reading: bool) -> None:
        self.is_reading = is_reading

    def known(self) -> None:
        pass

    def time(self) -> float:
        return self.now

    def later(self, work: Callable[[], None]) -> None:
        self.works.append(work)


class Client:
    """One connection. budget_bytes: for large requests."""

    def __init__(self, budget_bytes: int = 10_000_000, service: Service | None = None) -> None:
        self.application = EchoApplication()
        self.budget = RequestBudget(budget_bytes)
        if service is None:
            service = Service(self.application, self.budget, DateHeader(ManualClock(0)), IDLE_S, count(1))
        self.service = service
        self.wire = MemoryWire()
        self.connection = self.wire.machine = HttpConnection(service, self.wire, CALLER)

    def send(self, data: bytes, pieces: int | None = None) -> None:
        """Send bytes, in pieces of this size."""
        for begin in range(0, len(data), pieces or max(1, len(data))):
            self.wire.machine.receive(data[begin : begin + (pieces or len(data))])

    def work(self) -> None:
        """Let the next ticks of the loop pass."""
        while self.wire.works:
            self.wire.works.pop(0)()

    def answer(self, response: Response | None = None) -> None:
        """Let the application reply to the oldest request that waits, and the next ticks of the loop pass."""
        self.application.answer(response)
        self.work()

    def advance(self, seconds: float) -> None:
        self.wire.now += seconds
        self.wire.machine.advance(self.wire.now)

    def reads(self) -> bool:
        """Return whether the connection reads what this client sends."""
        return self.wire.is_reading

    def take(self) -> bytes:
        written, self.wire.written = self.wire.written, b""
        return written

    def responses(self) -> list[tuple[int, bytes]]:
        """Return the status and the body of each response that was written, and forget them."""
        return parse_responses(self.take())


async def until(condition: Callable[[], bool]) -> None:
    """Let tasks run until a condition holds."""
    for _ in range(_MOST_TICKS):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("the condition never holds")


class _Parsed:
    def __init__(self) -> None:
        self.responses: list[tuple[int, bytes]] = []
        self.parser = httptools.HttpResponseParser(self)
        self._body = b""

    def on_message_begin(self) -> None:
        self._body = b""

    def on_body(self, part: bytes) -> None:
        self._body += part

    def on_message_complete(self) -> None:
        self.responses.append((self.parser.get_status_code(), self._body))


def parse_responses(data: bytes) -> list[tuple[int, bytes]]:
    parsed = _Parsed()
    parsed.parser.feed_data(data)
    return parsed.responses
