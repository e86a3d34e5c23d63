"""Calls by name: the types of their requests and replies, and the functions that answer them on this broker."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from conveyor.broker.remote.wire_errors import ValueDecoder, encode_value
from conveyor.kernel.errors import ErrorKind, ProtocolViolation, RequestError

log = logging.getLogger(__name__)

Request = TypeVar("Request")
Reply = TypeVar("Reply")
Asker = TypeVar("Asker")

MAX_PAYLOAD_BYTES = 32 << 20
"""The largest request and the largest reply, unless a call says otherwise."""


class Call(Generic[Request, Reply]):
    """One kind of call. name: as it is sent; it and both types keep their meaning in later versions.

    is_repeatable: whether the call may be sent again if it is unknown whether the first one was executed, and others
    may have built on that; a function if it depends on the request. max_bytes: of the request, and of the reply.
    """

    def __init__(
        self,
        name: str,
        request: Any,
        reply: Any,
        *,
        is_repeatable: bool | Callable[[Request], bool],
        max_bytes: int = MAX_PAYLOAD_BYTES,
    ) -> None:
        self.name = name
        self._max_bytes = max_bytes
        self._is_repeatable = is_repeatable
        self._requests = ValueDecoder(request)
        self._replies = ValueDecoder(reply)

    def is_repeatable(self, request: Request) -> bool:
        """Return whether a request may be sent again after its answer was lost."""
        return self._is_repeatable(request) if callable(self._is_repeatable) else self._is_repeatable

    def encode_request(self, request: Request) -> bytes:
        """Raise RequestError: MESSAGE_TOO_LARGE; UNKNOWN_SERVER_ERROR for a value that has no encoding."""
        return _encoded(self.name, "request", request, self._max_bytes)

    def encode_reply(self, reply: Reply) -> bytes:
        """Raise RequestError as `encode_request` does."""
        return _encoded(self.name, "reply", reply, self._max_bytes)

    def decode_request(self, payload: bytes) -> Request:
        """Raise ProtocolViolation."""
        request: Request = _decoded(self.name, self._requests, payload)
        return request

    def decode_reply(self, payload: bytes) -> Reply:
        """Raise ProtocolViolation."""
        reply: Reply = _decoded(self.name, self._replies, payload)
        return reply


Answering = Callable[[Asker, Request], Awaitable[Reply]]
"""Answers a call on this broker for the one who asks, without a further call to another one. Raises RequestError."""


class CallHandlers(Generic[Asker]):
    """The calls that this broker answers. Asker: a `Caller`; None where no client stands behind a call."""

    def __init__(self) -> None:
        self._handlers: dict[
            str, tuple[Call[Any, Any], Answering[Asker, Any, Any], Callable[[Asker, Any, Any], None] | None]
        ] = {}

    def register(
        self,
        call: Call[Request, Reply],
        handler: Answering[Asker, Request, Reply],
        unsent: Callable[[Asker, Request, Reply], None] | None = None,
    ) -> None:
        """Answer a call with this function. unsent: takes back a reply that cannot be sent to another broker."""
        assert call.name not in self._handlers, f"call '{call.name}' has two handlers"
        self._handlers[call.name] = call, handler, unsent

    async def answer(self, asker: Asker, call: Call[Request, Reply], request: Request) -> Reply:
        """Answer a call of this broker to itself. Raises RequestError."""
        reply: Reply = await self._handlers[call.name][1](asker, request)
        return reply

    async def answer_encoded(self, asker: Asker, name: str, payload: bytes) -> bytes:
        """Answer a call of another broker. Raises RequestError, ProtocolViolation."""
        if name not in self._handlers:
            raise RequestError(
                ErrorKind.UNSUPPORTED_VERSION, f"this broker does not know the call '{name}': update it first"
            )
        call, handler, unsent = self._handlers[name]
        request = call.decode_request(payload)
        reply = await handler(asker, request)
        try:
            return call.encode_reply(reply)
        except RequestError:
            if unsent is not None:
                unsent(asker, request, reply)
            raise


def _encoded(name: str, what: str, value: object, max_bytes: int) -> bytes:
    try:
        payload: bytes = encode_value(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as bug:  # RuntimeError: also of `NotImplementedError`.
        log.exception("call not encoded name=%s", name)
        message = f"the {what} of call '{name}' between brokers cannot be encoded: a bug: see the broker's log"
        raise RequestError(ErrorKind.UNKNOWN_SERVER_ERROR, message) from bug
    if len(payload) > max_bytes:
        raise RequestError(
            ErrorKind.MESSAGE_TOO_LARGE,
            f"the {what} of call '{name}' between brokers has {len(payload)} bytes, at most {max_bytes} fit:"
            " ask for less at once, or ask the broker that leads the partition",
        )
    return payload


def _decoded(name: str, decoder: Any, payload: bytes) -> Any:
    try:
        return decoder.decode(payload)
    except (TypeError, ValueError, RuntimeError) as error:  # msgspec's own errors are ValueErrors.
        raise ProtocolViolation(f"call '{name}': {error}") from error
