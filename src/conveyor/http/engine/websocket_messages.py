"""The messages of one WebSocket as they arrive: put together from frames, limited in size, counted as memory.

A message counts in the request budget as the body of a request does: all of its bytes, or the share that a large one
asks for before the rest of it is read.
"""

from collections.abc import Callable
from typing import Any

from wsproto.events import Message, TextMessage
from wsproto.extensions import Extension
from wsproto.frame_protocol import CloseReason, FrameDecoder, FrameProtocol, Opcode, ParseFailed, RsvBits

from conveyor.http.engine.exchange_memory import ExchangeMemory
from conveyor.http.engine.wire import Wire
from conveyor.kernel.request_budget import BEFORE_SHARE_BYTES
from conveyor.kernel.response_budget import BudgetFull


class MessageSize(Extension):
    """Limits the size of messages. wsproto asks it about the header of a frame, maybe twice, and passes it payloads."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.received_bytes = 0
        self._is_control = False

    def enabled(self) -> bool:
        return True

    def offer(self) -> bool:
        return False

    def frame_inbound_header(
        self, proto: FrameDecoder | FrameProtocol, opcode: Opcode, rsv: RsvBits, payload_length: int
    ) -> RsvBits:
        self._is_control = opcode.iscontrol()
        if not self._is_control and self.received_bytes + payload_length > self.limit_bytes:
            raise ParseFailed(f"a message has at most {self.limit_bytes} bytes", CloseReason.MESSAGE_TOO_BIG)
        return RsvBits(False, False, False)

    def frame_inbound_payload_data(self, proto: FrameDecoder | FrameProtocol, data: bytes) -> bytes:
        if not self._is_control:
            self.received_bytes += len(data)
        return data


class IncomingMessage:
    """The message that is arriving, or that the application works on. go_on: called when its share is granted."""

    def __init__(self, memory: ExchangeMemory, limit_bytes: int, wire: Wire, go_on: Callable[[], None]) -> None:
        self.size = MessageSize(limit_bytes)
        self.is_waiting = self.is_partial = False
        self._memory = memory
        self._wire = wire
        self._go_on = go_on
        self._partial = bytearray()

    def add(self, event: "Message[Any]") -> str | bytes | None:
        """Add some bytes. Returns the message if it is complete. Raises BudgetFull."""
        memory = self._memory
        if memory.share is None and memory.count_received(self.size.received_bytes):
            raise BudgetFull
        is_text = isinstance(event, TextMessage)
        if not event.message_finished:
            self.is_partial = True
            self._partial += event.data.encode() if is_text else event.data
            if self.size.received_bytes > BEFORE_SHARE_BYTES and memory.share is None:
                self._ask()
            return None
        message: str | bytes = event.data
        if self._partial:
            self._partial += event.data.encode() if is_text else event.data
            message = self._partial.decode() if is_text else bytes(self._partial)
        self._forget()
        return message

    def free(self) -> None:
        """Free the memory of the message, whose rest may have to arrive."""
        self._forget()
        self._memory.release()

    def _forget(self) -> None:
        self._partial, self.size.received_bytes, self.is_partial = bytearray(), 0, False

    def _ask(self) -> None:
        self.is_waiting = True
        if self._memory.ask(self.size.limit_bytes, self._granted):
            self._go_on_reading()

    def _granted(self) -> None:
        if self._memory.share is not None:  # The budget is granting shares, which `use_share` would begin again.
            self._wire.later(self._use_share)

    def _use_share(self) -> None:
        if self.is_waiting:
            self._memory.use_share()
            self._go_on_reading()

    def _go_on_reading(self) -> None:
        self.is_waiting = False
        self._go_on()
