"""One HTTP/1.1 connection without I/O: bytes, time and the client's pace in; requests and bytes out.

    phase       the connection                          reads the client's bytes    ends by
    IDLE        has no request in progress              yes                         a request, `idle_s`
    RECEIVING   receives the body of a request          yes                         the body's end, `max_receive_ms`
    WAITING     waits for the memory for a large body,  no                          the request budget,
                or until the request is admitted                                    `Exchange.admit`
    SERVING     waits for the response                  up to `_MAX_PENDING_BYTES`  `Exchange.reply`
    LINGERING   has refused a request half-way          yes, and drops them         the client, `LINGER_S`
    CLOSED      sends what is written, then is closed   no                          the client, `WRITE_S`

A request that `Exchange.upgrade` answers ends the machine: it hands the transport over to a `WebSocket`, and is CLOSED.

Requests are served one after the other, in their order. No request begins while the client does not read responses
(`pause_writing`). A request is refused before its body has arrived if the application refuses it by its head, or if its
body is too large. The client may be sending that body: the connection then drops its bytes for a while, because to
close it at once would reset it, and the client could lose the response.

A body counts in the request budget until its reply, also if the client has disconnected: a large one by its share, any
other by its size. While bodies without shares exceed the limit, further ones are refused.
"""

import logging
from collections.abc import Collection
from enum import Enum, auto

from conveyor.http.engine.exchange import Exchange, Service
from conveyor.http.engine.http_request import Request
from conveyor.http.engine.http_response import CONTINUE, Response, encode_head
from conveyor.http.engine.problems import make_problem, problem_of, problem_response
from conveyor.http.engine.request_parser import RequestParser
from conveyor.http.engine.websocket_handler import WebSocketHandler
from conveyor.http.engine.wire import LINGER_S, WRITE_S, Wire
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.attempts import attempt
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.response_budget import SMALL_BYTES

log = logging.getLogger(__name__)

_MAX_PENDING_BYTES = 64 << 10
"""Bytes beyond the current request that are read from a client."""
_FEED_BYTES = 4 << 10
"""Bytes parsed at once, which may contain a hundred requests, unless they belong to one body of a known length."""
_REQUESTS_AT_ONCE = 16
"""Pipelined requests of one client that begin in one tick of the event loop. _FEED_BYTES of a body count as another."""


class Phase(Enum):
    IDLE = auto()
    RECEIVING = auto()
    WAITING = auto()
    SERVING = auto()
    LINGERING = auto()
    CLOSED = auto()


class HttpConnection:
    """See the module's docstring. The owner of the transport calls the methods that are named as asyncio names them."""

    def __init__(self, service: Service, wire: Wire, caller: Caller) -> None:
        self.service = service
        self.caller = caller
        self.phase = Phase.IDLE
        self._wire = wire
        self.known = wire.known
        self._parser = RequestParser()
        self._pending = b""
        self.current: Exchange | None = None
        self._deadline: float | None = wire.time() + service.idle_s
        self._write_deadline: float | None = None
        self._unsent_bytes = 0
        self._is_pumping = self._is_finishing = self.has_ended = self._is_lost = False
        self._is_reading = True

    def receive(self, data: bytes) -> None:
        if self.phase in (Phase.LINGERING, Phase.CLOSED):
            return
        self._pending = self._pending + data if self._pending else data
        self._pump()

    def end_of_input(self) -> None:
        """The client sends no more, which is how it disconnects, or tells that the last of its requests has begun."""
        self.has_ended = True
        if self.phase is Phase.LINGERING:
            self._close()
        elif self.phase is Phase.SERVING and self.current is not None and self.current.when_gone is not None:
            self.connection_lost()
            self._wire.abort()
        elif not self._is_pumping:
            self._pump()

    def log_out(self, users: Collection[str]) -> None:
        """Disconnect the client if one of these users has logged in for the current request, who may do so no more."""
        exchange = self.current
        if exchange is not None and exchange.has_logged_in(users):
            exchange.is_logged_out = True
            self.connection_lost()
            self._wire.abort()

    def connection_lost(self) -> None:
        """The transport is closed."""
        if self._is_lost:
            return
        self._is_lost = True
        exchange = self.current
        if exchange is not None:
            self.current = None
            if self.phase is Phase.SERVING:
                attempt(_not_told, exchange.withdraw)
            else:
                self.release(exchange)
        self.phase = Phase.CLOSED
        self._deadline = None
        self._pending = b""
        self._parser.end()
        self.resume_writing()

    def pause_writing(self) -> None:
        if self._write_deadline is None:
            self._write_deadline = self._wire.time() + WRITE_S

    def resume_writing(self) -> None:
        self._write_deadline = None
        self.service.response_budget.used_bytes -= self._unsent_bytes
        self._unsent_bytes = 0
        if self.phase is not Phase.CLOSED:
            self._pump()

    def advance(self, now: float) -> None:
        """End what has taken too long."""
        if self._write_deadline is not None and now >= self._write_deadline:
            self._abort()
        elif self._deadline is not None and now >= self._deadline:
            if self.phase is Phase.RECEIVING:
                max_receive_ms = self.service.application.max_receive_ms
                detail = f"the request's body did not arrive within {max_receive_ms} ms (network.max_receive_ms)"
                self._refuse(_problem(ErrorKind.REQUEST_TOO_SLOW, detail))
            elif self.phase is Phase.CLOSED:
                self._abort()
            else:
                self._close()

    def finish(self) -> None:
        """Begin no more requests, and close the connection after the response to the current one, if any."""
        self._is_finishing = True
        if self.phase is Phase.IDLE:
            self._close()

    def reply(self, exchange: Exchange, response: Response) -> None:
        """Send the response of the current request. Called once for each exchange; see `Exchange.reply`."""
        self.release(exchange)
        if self.current is not exchange:
            return  # The client has disconnected.
        self.current = None
        request = exchange.request
        ends = self._is_finishing or response.closes or not request.keeps_alive or not request.is_complete
        self._send(request, response, ends=ends)
        if not ends:
            self.phase = Phase.IDLE
            self._deadline = self._wire.time() + self.service.idle_s
            if (self._has_input() or not self._is_reading) and not self._is_pumping:
                self._wire.later(self._pump)  # The broker may be replying in the middle of its own work.
        elif request.is_complete:
            self._close()
        else:
            self._linger()

    def upgrade(self, exchange: Exchange, handler: WebSocketHandler, max_message_bytes: int) -> None:
        """Hand the connection over to a WebSocket, which never gives it back; see `Exchange.upgrade`."""
        from conveyor.http.engine.websocket import WebSocket
        from conveyor.http.engine.websocket_handshake import encode_acceptance, refusal

        if self.current is not exchange:
            return self.release(exchange)  # The client has disconnected.
        has_more = self._has_input() or self._parser.is_in_head
        refused = refusal(exchange, self.service.origins, has_more=has_more)
        if refused is not None:
            return exchange.reply(refused)
        self.current, self.phase, self._deadline = None, Phase.CLOSED, None
        self._parser.end()
        if not self._is_reading:
            self._wire.set_reading(True)
        websocket = WebSocket(exchange, self.service, self._wire, handler, max_message_bytes)
        self._wire.hand_over(websocket)
        websocket.open(encode_acceptance(exchange.request, self.service.date.line()))
        if self._is_finishing:
            websocket.finish()

    def _pump(self) -> None:
        """Do all that can be done now."""
        if self._is_pumping:
            return
        self._is_pumping = True
        try:
            self._serve_requests()
        finally:
            self._is_pumping = False
        is_reading = self.phase is not Phase.WAITING and len(self._pending) <= _MAX_PENDING_BYTES
        if is_reading != self._is_reading and self.phase is not Phase.CLOSED:
            self._is_reading = is_reading
            self._wire.set_reading(is_reading)

    def _serve_requests(self) -> None:
        parser, begun = self._parser, 0
        while self._write_deadline is None:
            if self.phase is Phase.RECEIVING:
                exchange = self.current
                assert exchange is not None, "a request is being received"
                if exchange.request.is_complete:
                    parser.complete.popleft()
                    begun += exchange.request.received_bytes // _FEED_BYTES
                    self._begin(exchange)
                    continue
            elif self.phase is not Phase.IDLE:
                return
            elif (request := parser.complete[0] if parser.complete else parser.receiving) is not None:
                if begun >= _REQUESTS_AT_ONCE:
                    return self._wire.later(self._pump)
                if request.is_complete:
                    parser.complete.popleft()
                begun += 1 + request.received_bytes // _FEED_BYTES
                self._open(request)
                continue
            if not self._feed():
                return

    def _has_input(self) -> bool:
        """Return whether the client has sent more than the requests that have begun."""
        parser = self._parser
        return bool(self._pending or parser.complete or parser.receiving or parser.error is not None or self.has_ended)

    def _feed(self) -> bool:
        """Parse some of the pending bytes. Returns whether the connection goes on."""
        data, error = self._pending, self._parser.error
        if error is not None:
            log.debug("request refused caller=%s reason=%s", self.caller, error)
            self._refuse(_malformed(error, is_body=self.current is not None))
            return False
        if not data:
            if self.has_ended:
                self._close()
            return False
        size_bytes = _FEED_BYTES
        if self.current is not None:  # Its body has no requests in it.
            request = self.current.request
            size_bytes = max(size_bytes, (request.content_length or 0) - request.received_bytes)
        data, self._pending = data[:size_bytes], data[size_bytes:]
        self._parser.feed(data)
        if self.current is not None and self._parser.receiving is self.current.request:
            self._check_body()
        return True

    def _open(self, request: Request) -> None:
        """Begin a request. Its body may be arriving."""
        exchange = self.current = Exchange(self, request)
        self.service.in_progress += 1
        self.phase = Phase.SERVING if request.is_complete else Phase.RECEIVING
        expected = request.header(b"expect")
        if expected is not None and expected.lower() != "100-continue":
            detail = f"'Expect: {expected}' is not supported: send 100-continue, or leave the header out"
            return exchange.reply(problem_response(make_problem("expectation_failed", 417, detail)))
        self.service.application.open(exchange)
        if self.current is exchange:
            if exchange.is_admitted:
                self._admit(exchange)
            else:
                self.phase, self._deadline = Phase.WAITING, None

    def admitted(self, exchange: Exchange) -> None:
        """Go on with a request that the application has admitted after `open`."""
        if self.current is exchange and self.phase is Phase.WAITING:
            self.phase = Phase.SERVING if exchange.request.is_complete else Phase.RECEIVING
            self._admit(exchange)
            self._pump()

    def _admit(self, exchange: Exchange) -> None:
        request = exchange.request
        if request.is_complete:
            self._begin(exchange)
        elif (request.content_length or 0) > exchange.limits.most_bytes:
            exchange.reply(_too_large(exchange))
        else:
            if request.header(b"expect") is not None and request.is_http_11:
                self._wire.write(CONTINUE)
            self._deadline = self._wire.time() + self.service.application.max_receive_ms / 1000
            self._check_body()

    def _check_body(self) -> None:
        """Refuse a body that is too large, and wait for the share of one that is large."""
        exchange = self.current
        assert exchange is not None, "a request is being received"
        if exchange.request.received_bytes > exchange.limits.most_bytes:
            exchange.reply(_too_large(exchange))
        elif exchange.memory.share is None:
            self._count(exchange)

    def _begin(self, exchange: Exchange) -> None:
        """Serve a complete request."""
        self._deadline = None
        if exchange.request.received_bytes > exchange.limits.most_bytes:
            return exchange.reply(_too_large(exchange))
        if exchange.memory.share is None and exchange.request.received_bytes:
            self._count(exchange)
            if self.current is not exchange or self.phase is Phase.WAITING:
                return
        self.phase = Phase.SERVING
        self.service.application.serve(exchange)

    def _count(self, exchange: Exchange) -> None:
        """Count the received bytes of a body without a share: refuse it if they exceed the limit with those of all
        others, and let a large one ask for its share.
        """
        received_bytes = exchange.request.received_bytes
        if exchange.memory.count_received(received_bytes):
            exchange.reply(_busy())
        elif received_bytes > exchange.limits.free_bytes:
            self._ask(exchange)

    def _ask(self, exchange: Exchange) -> None:
        """Wait for the share of the exchange, without a deadline: others have to be served before."""
        before, self.phase, self._deadline = self.phase, Phase.WAITING, None
        request = exchange.request
        size_bytes = exchange.limits.share_bytes or request.content_length or exchange.limits.most_bytes
        if exchange.memory.ask(size_bytes, self._granted):
            self.phase = before
            self._restart_deadline()

    def _granted(self) -> None:
        """Go on with a request that waited for its share, in a later tick: the budget is granting shares."""
        if self.current is not None and self.current.memory.share is not None:
            self._wire.later(self._go_on)

    def _go_on(self) -> None:
        exchange = self.current
        if exchange is None or self.phase is not Phase.WAITING:
            return
        exchange.memory.use_share()
        self.phase = Phase.RECEIVING
        if exchange.request.is_complete:
            self._begin(exchange)
        else:
            self._restart_deadline()
        self._pump()

    def _restart_deadline(self) -> None:
        if self.phase is Phase.RECEIVING:
            self._deadline = self._wire.time() + self.service.application.max_receive_ms / 1000

    def _refuse(self, response: Response) -> None:
        """Answer a request that never becomes complete, and take no further one."""
        exchange = self.current
        if exchange is not None:
            return exchange.reply(response)
        self._send(None, response, ends=True)
        self._linger()

    def _send(self, request: Request | None, response: Response, *, ends: bool) -> None:
        connection = b""
        if ends:
            connection = b"\r\nConnection: close"
        elif request is not None and not request.is_http_11:
            connection = b"\r\nConnection: keep-alive"
        if self.service.origins is not None:
            connection += self.service.origins.response_headers(request)
        head, body = encode_head(response, self.service.date.line(), connection), response.body
        if request is not None and request.method == "HEAD":
            body = b""
        if len(body) <= SMALL_BYTES:
            return self._wire.write(head + body)
        self._wire.write(head)
        self._wire.write(body)
        if self._write_deadline is not None:
            self._unsent_bytes += len(body)
            self.service.response_budget.used_bytes += len(body)

    def release(self, exchange: Exchange) -> None:
        """End an exchange: it is no longer in progress, and holds no memory."""
        service = self.service
        service.in_progress -= 1
        if service.is_stopping and not service.in_progress:
            service.quiet.emit(None)
        exchange.route = None  # It refers to the exchange.
        exchange.memory.release()

    def _linger(self) -> None:
        self.phase = Phase.LINGERING
        self._pending = b""
        if not self._is_reading:
            self._is_reading = True
            self._wire.set_reading(True)
        if self.has_ended:
            return self._close()
        self._deadline = self._wire.time() + LINGER_S
        self._wire.end()

    def _close(self) -> None:
        if self.phase is not Phase.CLOSED:
            self.phase = Phase.CLOSED
            self._deadline = self._wire.time() + WRITE_S
            self._pending = b""
            self._wire.close()

    def _abort(self) -> None:
        self.connection_lost()
        self._wire.abort()


def _not_told(error: Exception) -> None:
    log.error("the end of a connection not handled", exc_info=error)


def _problem(kind: ErrorKind, detail: str) -> Response:
    return problem_response(problem_of(RequestError(kind, detail)))


def _too_large(exchange: Exchange) -> Response:
    detail = f"the request's body is larger than the limit of {exchange.limits.most_bytes} bytes"
    return _problem(ErrorKind.MESSAGE_TOO_LARGE, detail)


def _busy() -> Response:
    detail = "requests in progress use all the memory for requests (network.max_buffered_bytes): retry later"
    return problem_response(make_problem("busy", 503, detail, retriable=True), {"Retry-After": "1"})


def _malformed(error: str, *, is_body: bool) -> Response:
    if is_body:
        return _problem(ErrorKind.INVALID_REQUEST, f"the request's body cannot be read: {error}")
    return problem_response(make_problem("malformed_request", 400, f"not a valid HTTP request: {error}"))
