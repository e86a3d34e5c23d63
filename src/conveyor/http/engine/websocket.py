"""One WebSocket without I/O: bytes, time and the pace of client and application in; messages and bytes out.

    phase      the connection                                     ends by
    OPEN       passes messages on, and answers pings              a Close of either side, an error, silence
    CLOSING    has sent Close first, and drops messages           the client's Close, `LINGER_S`
    LINGERING  has closed because of an error, and drops bytes    the client, `LINGER_S`
    CLOSED     sends what is written, then is closed              the client, `WRITE_S`

wsproto parses and encodes frames. It refuses frames without a mask, reserved bits, opcodes and codes, long or divided
control frames, and text that is not UTF-8. A frame that makes its message too large is refused by its header.

Nothing is read while the application or the client pauses the connection, and while a message waits for memory. A
message has `max_receive_ms` to arrive. A client that is silent for `idle_s` is sent a ping, and is disconnected if it
stays silent as long again. The request is in progress until the WebSocket is over and no message is being worked on.
"""

import logging
from collections.abc import Collection
from enum import Enum
from typing import Any

from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Message, Ping, TextMessage
from wsproto.frame_protocol import CloseReason

from conveyor.http.engine.exchange import Exchange, Service
from conveyor.http.engine.websocket_handler import WebSocketHandler
from conveyor.http.engine.websocket_messages import IncomingMessage
from conveyor.http.engine.websocket_output import Output
from conveyor.http.engine.wire import LINGER_S, WRITE_S, Wire
from conveyor.kernel.attempts import attempt
from conveyor.kernel.response_budget import BudgetFull

log = logging.getLogger(__name__)

_EVENTS_AT_ONCE = 64
"""Frames of one client that are handled in one tick of the event loop."""


WebSocketPhase = Enum("WebSocketPhase", ["OPEN", "CLOSING", "LINGERING", "CLOSED"])


class WebSocket:
    """See the module's docstring. The `ConnectionMachine` of its transport, the `OpenWebSocket` of its handler."""

    def __init__(
        self, exchange: Exchange, service: Service, wire: Wire, handler: WebSocketHandler, limit_bytes: int
    ) -> None:
        self.caller = exchange.caller
        self._exchange = exchange
        self._service = service
        self._wire = wire
        self._handler = handler
        self._incoming = IncomingMessage(exchange.memory, limit_bytes, wire, self._go_on)
        self._frames = Connection(ConnectionType.SERVER, [self._incoming.size])
        self._output = Output(wire, service.response_budget)
        self._phase = WebSocketPhase.OPEN
        self._close_code = int(CloseReason.ABNORMAL_CLOSURE)
        self._is_reading = True
        self._is_pumping = self._is_paused = self._is_pinged = self._has_ended = self._is_over = False
        self._deadline = wire.time() + service.idle_s

    def open(self, acceptance: bytes) -> None:
        """Begin with the response that accepts the request."""
        self._output.write(acceptance)
        attempt(self._failed, self._handler.opened, self)

    def send(self, message: str | bytes) -> None:
        if self._phase is WebSocketPhase.OPEN:
            self._output.check()
            event = TextMessage(message) if isinstance(message, str) else BytesMessage(message)
            self._output.write(self._frames.send(event))

    def close(self, code: int = 1000, reason: str = "") -> None:
        if self._phase is WebSocketPhase.OPEN:
            self._send_close(CloseConnection(code, reason))
            self._phase, self._deadline = WebSocketPhase.CLOSING, self._wire.time() + LINGER_S
            self._wire.later(self._go_on)

    def pause_reading(self) -> None:
        self._is_paused = not self._is_over

    def resume_reading(self) -> None:
        if self._is_paused:
            self._is_paused = False
            if not self._incoming.is_partial or self._is_over:
                self._incoming.free()
            if self._is_over:
                self._exchange.end()
            self._wire.later(self._go_on)

    def receive(self, data: bytes) -> None:
        if self._phase in (WebSocketPhase.OPEN, WebSocketPhase.CLOSING):
            if self._phase is WebSocketPhase.OPEN and not self._incoming.is_partial:
                self._restart_deadline()
            self._frames.receive_data(data)
            self._pump()

    def end_of_input(self) -> None:
        self._has_ended = True
        if self._phase is WebSocketPhase.LINGERING:
            self._end()
        self._pump()

    def connection_lost(self) -> None:
        self._phase = WebSocketPhase.CLOSED
        self.resume_writing()
        self._over()

    def pause_writing(self) -> None:
        if self._output.deadline is None:
            self._output.pause()
            if self._phase is WebSocketPhase.OPEN:
                attempt(self._failed, self._handler.pause_writing)

    def resume_writing(self) -> None:
        self._output.resume()
        if self._phase is WebSocketPhase.OPEN:
            attempt(self._failed, self._handler.resume_writing)
        self._go_on()

    def advance(self, now: float) -> None:
        is_late = now >= self._deadline
        if self._output.is_late(now) or (is_late and self._phase is WebSocketPhase.CLOSED):
            self.connection_lost()
            self._wire.abort()
        elif is_late and self._phase is not WebSocketPhase.OPEN:
            self._end()
        elif is_late and self._is_ready:
            self._end_silence()

    def log_out(self, users: Collection[str]) -> None:
        if self._exchange.has_logged_in(users):
            self._exchange.is_logged_out = True
            self._fail(CloseReason.POLICY_VIOLATION, "the credential of its user has changed")

    def finish(self) -> None:
        self.close(CloseReason.GOING_AWAY, "the server stops")

    @property
    def _is_ready(self) -> bool:
        if self._phase is WebSocketPhase.OPEN and (self._is_paused or self._incoming.is_waiting):
            return False
        return self._output.deadline is None and self._phase in (WebSocketPhase.OPEN, WebSocketPhase.CLOSING)

    def _end_silence(self) -> None:
        if self._incoming.is_partial or self._is_pinged:
            silence = "a message did not arrive in time" if self._incoming.is_partial else "no answer to a ping"
            self._fail(CloseReason.POLICY_VIOLATION, silence)
        else:
            self._restart_deadline()
            self._is_pinged = True
            self._output.write(self._frames.send(Ping()))

    def _restart_deadline(self) -> None:
        receive_s, idle_s = self._service.application.max_receive_ms / 1000, self._service.idle_s
        self._deadline = self._wire.time() + (receive_s if self._incoming.is_partial else idle_s)
        self._is_pinged = False

    def _go_on(self) -> None:
        """Handle frames again. The deadline begins anew, as nothing was read meanwhile."""
        if self._phase is WebSocketPhase.OPEN and self._is_ready:
            self._restart_deadline()
        self._pump()

    def _pump(self) -> None:
        """Handle the frames that have arrived, up to a limit."""
        if self._is_pumping:
            return
        self._is_pumping = has_more = True
        frames = self._frames.events()
        for _ in range(_EVENTS_AT_ONCE):
            if not self._is_ready or (event := next(frames, None)) is None:
                has_more = False
                break
            self._take(event)
        self._is_pumping = False
        if has_more:
            self._wire.later(self._pump)
        elif self._has_ended and self._is_ready:
            self._end()
        self._set_reading(self._phase is WebSocketPhase.LINGERING or (self._is_ready and not has_more))

    def _set_reading(self, is_reading: bool) -> None:
        if is_reading != self._is_reading and self._phase is not WebSocketPhase.CLOSED:
            self._is_reading = is_reading
            self._wire.set_reading(is_reading)

    def _take(self, event: Event) -> None:
        if isinstance(event, CloseConnection):
            self._take_close(event)
        elif self._phase is WebSocketPhase.OPEN and isinstance(event, Message):
            self._take_part(event)
        elif self._phase is WebSocketPhase.OPEN and isinstance(event, Ping):
            self._output.write(self._frames.send(event.response()))

    def _take_part(self, event: "Message[Any]") -> None:
        was_partial = self._incoming.is_partial
        try:
            message = self._incoming.add(event)
        except BudgetFull:
            return self._fail(CloseReason.TRY_AGAIN_LATER, "messages in progress use all the memory for requests")
        if self._incoming.is_partial is not was_partial:
            self._restart_deadline()
        if message is not None:
            attempt(self._failed, self._handler.received, message)
            if not self._is_paused:
                self._incoming.free()

    def _take_close(self, event: CloseConnection) -> None:
        if self._frames.state is ConnectionState.OPEN:  # The event is about what is no frame.
            is_no_text = event.code == CloseReason.INVALID_FRAME_PAYLOAD_DATA
            return self._fail(event.code, "the text is not UTF-8" if is_no_text else event.reason or "")
        if self._frames.state is ConnectionState.REMOTE_CLOSING:
            self._send_close(event.response())
        self._end()

    def _send_close(self, event: CloseConnection) -> None:
        self._close_code = event.code
        self._output.write(self._frames.send(event))
        if not self._is_paused:
            self._incoming.free()

    def _fail(self, code: int, reason: str) -> None:
        if self._phase is WebSocketPhase.OPEN:
            log.debug("websocket closed caller=%s code=%s reason=%s", self.caller, code, reason)
            self._phase, self._deadline = WebSocketPhase.LINGERING, self._wire.time() + LINGER_S
            self._send_close(CloseConnection(code, reason))
            self._wire.end()
            self._set_reading(True)
            self._over()

    def _failed(self, error: Exception) -> None:
        if isinstance(error, BudgetFull):
            return self._fail(CloseReason.TRY_AGAIN_LATER, "messages that are not sent use all the memory for them")
        log.error("message of a websocket not handled", exc_info=error)
        self._fail(CloseReason.INTERNAL_ERROR, "a bug: see the log")

    def _end(self) -> None:
        if self._phase is not WebSocketPhase.CLOSED:
            self._phase, self._deadline = WebSocketPhase.CLOSED, self._wire.time() + WRITE_S
            self._wire.close()
            self._over()

    def _over(self) -> None:
        if not self._is_over:
            self._is_over = True
            if not self._is_paused:
                self._incoming.free()
                self._exchange.end()
            attempt(self._failed, self._handler.closed, self._close_code)
