"""A Kafka request from its decoding to its response."""

import logging
from asyncio import Task
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.clients.quota_enforcement import RequestMeter
from conveyor.broker.slices import SLICE_ITEMS
from conveyor.kafka_api.wire.codec import Body, UnencodableResponse, build_response, encode_built
from conveyor.kafka_api.wire.framing import LENGTH
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.attempts import attempt
from conveyor.kernel.errors import InconsistentState, ProtocolViolation
from conveyor.kernel.ports import FileSlice

log = logging.getLogger(__name__)

Part = bytes | FileSlice
Encode = Callable[[int], list[Part]]
"""Returns an encoded response, length and header included. It gets the time for which the broker processes no more
requests of the client, in ms: a field of most responses.
"""
_BUG = "the request has failed: a bug, see the log"


class KafkaCall:
    """A decoded request and its response.

    The handler calls one of `answer`, `answer_encoded`, `answer_nothing` and `close_connection`, exactly once.
    """

    __slots__ = (
        "_answered", "_weighed", "amend", "broker", "caller", "cancel", "header", "meter", "request", "response",
        "size",
    )  # fmt: skip

    def __init__(self, origin: "CallOrigin", header: "RequestHeader", request: Any) -> None:
        self.broker = origin.broker
        self.header = header
        self.caller = origin.caller
        self.request = request
        self.response: KafkaResponse | None = None
        self.size = RequestSize()
        self.cancel: Callable[[], object] | None = None
        """Called if the connection ends before the answer. It sets itself to None if a part of the work goes on, which
        must then answer at its end.
        """
        self.meter: RequestMeter | None = None
        """Set while quotas are in force."""
        self.amend: Amendment | None = None
        """Set if the client may not see, or may not do, all that it has asked for."""
        self._answered, self._weighed = origin.answered, origin.weighed

    def start(self, work: Coroutine[Any, Any, None]) -> Task[None]:
        """Run a coroutine that answers this request. A bug in it ends the connection only; see `fail`.

        Returns its task. Without `wait`, the work goes on if the connection ends.
        """
        return self.broker.tasks.start(work, self.fail)

    def guarded(self, finish: Callable[..., None], *arguments: Any) -> Callable[[Any], None]:
        """Return a callback that calls `finish` with this call, the arguments and its own argument.

        A bug in it ends the connection only, and not the work of the caller; see `fail`.
        """

        def guarded(result: Any) -> None:
            attempt(self.fail, finish, self, *arguments, result)

        return guarded

    def fail(self, bug: Exception) -> None:
        """Close the connection: no response fits all APIs. Log a bug, or raise it if it may have changed state."""
        if isinstance(bug, InconsistentState):
            raise bug
        if isinstance(bug, ProtocolViolation):
            return None if self.response is not None else self.close_connection(str(bug))
        header = self.header
        log.error(
            "request failed api_key=%d version=%d client=%s caller=%s",
            header.api_key, header.api_version, header.client_id, self.caller, exc_info=bug,
        )  # fmt: skip
        if self.response is None:
            self.close_connection(_BUG)

    def weigh(self, more_bytes: int) -> None:
        """Add memory, for a handler whose work has more items than its request, or take off what it has freed."""
        if self._weighed is not None:
            self._weighed(self, more_bytes)

    def do(self, work: Callable[[], None]) -> None:
        """Do a part of the work, unless the request is answered. A bug in it ends the connection only; see `fail`."""
        if self.response is not None:
            return
        began = perf_counter()
        attempt(self.fail, work)
        if self.meter is not None:
            self.meter.worked(perf_counter() - began)

    def wait(self, cancel: Callable[[], object] | None) -> None:
        """Note that the handler returns, and the response has to wait unless it is there already.

        cancel: called if the connection ends first. A large request releases its share of the request budget, because
        its client, or other clients, may decide how long it waits.
        """
        if self.response is None:
            self.cancel = cancel
            if self.size.release is not None:
                self.size.release(self)

    def end(self) -> bool:
        """Cancel the work, because its connection has ended. Returns whether work goes on, which answers at its end."""
        if self.response is None and self.cancel is not None:
            self.cancel()
        return self.response is None and self.cancel is None

    def answer(self, body: Body, items: int = 0) -> None:
        """Answer with a body, a dict of kio's field names. items: see `answer_encoded`."""
        if self.amend is None:
            self._answer(body, items)
        elif items > SLICE_ITEMS:
            self.start(self._answer_amended_in_turns(self.amend, body, items))
        else:
            self._answer(self.amend.amended(body), items)

    async def _answer_amended_in_turns(self, amend: "Amendment", body: Body, items: int) -> None:
        amended = await amend.amended_in_turns(body)
        if self.response is None:
            self._answer(amended, items)

    def _answer(self, body: Body, items: int) -> None:
        if self.meter is not None:
            self.meter.answered()
            body = {**body, "throttle_time": self.meter.throttle_ms}
        header = self.header
        try:
            self.answer_encoded(lambda _: framed(self, build_response(header.api_key, header.api_version, body)), items)
        except UnencodableResponse:
            log.exception("response cannot be encoded client=%s caller=%s", self.header.client_id, self.caller)
            self.close_connection("the response could not be encoded: a bug, see the log")

    def answer_encoded(self, encode: Encode, items: int = 0) -> None:
        """Answer with what `encode` returns. It runs in a thread if the request is long, or the response has so many
        items.
        """
        throttle_ms = 0 if self.meter is None else self.meter.throttle_ms
        if self.size.is_long or items > SLICE_ITEMS:
            self.start(self._answer_from_thread(partial(encode, throttle_ms)))
        else:
            self._finish(encode(throttle_ms))

    async def _answer_from_thread(self, encode: Callable[[], list[Part]]) -> None:
        parts = await self.broker.slices.in_thread(encode, self.meter)
        if self.response is None:
            self._finish(parts)

    def _finish(self, parts: list[Part], close_reason: str | None = None) -> None:
        assert self.response is None, "a request is answered once"
        self.response = KafkaResponse(parts, close_reason)
        self.cancel = None  # It may refer to this call, and only the garbage collector would free that cycle.
        self._answered(self)

    def answer_nothing(self) -> None:
        """Finish without a response, as the protocol requires for acks=0."""
        self._finish([])

    def close_connection(self, reason: str) -> None:
        """Close the connection because no response can express the failure. Earlier responses are still sent."""
        self._finish([], reason)


def framed(call: KafkaCall, response: Any) -> list[Part]:
    """Encode the entity of a response to a call."""
    header = call.header
    encoded = encode_built(header.api_key, header.api_version, header.correlation_id, response)
    return [LENGTH.pack(len(encoded)) + encoded]


class RequestSize(Struct):
    """How large a request is.

    weight_bytes: the memory that counts for it, besides the share of a large one. release: set while a large request
    holds a share of the request budget; releases it. is_long: it has many items, and no later request of its connection
    starts before its answer.
    """

    weight_bytes: int = 0
    release: Callable[[KafkaCall], None] | None = None
    is_long: bool = False


class KafkaResponse(Struct, frozen=True):
    """The end of a request. parts: what is sent. close_reason: why the connection is closed then; None if it is not."""

    parts: list[Part]
    close_reason: str | None


class RequestHeader(Struct, frozen=True, gc=False):
    """The header of a request. client_id: what the client calls itself; may be empty."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str


class CallOrigin(NamedTuple):
    """The values that all calls of one connection share.

    answered: called with each call once it has its response. weighed: called with the memory that a call adds.
    """

    broker: BrokerNode
    caller: Caller
    answered: Callable[[KafkaCall], None]
    weighed: Callable[[KafkaCall, int], None] | None = None


class Amendment(Protocol):
    """Changes the answer to one request by what its client may see, and may do."""

    def amended(self, body: Body) -> Body:
        """Return the changed answer."""

    async def amended_in_turns(self, body: Body) -> Body:
        """Return the changed answer, which is long."""


class Login(Protocol):
    """The proof of one client of who it is."""

    @property
    def handlers(self) -> "Mapping[int, Handler]":
        """Those of SaslHandshake and SaslAuthenticate for this client, by the keys of the APIs."""

    def end(self) -> None:
        """Forget the client, which has disconnected."""


Handler = Callable[[KafkaCall], None]
"""Serves the requests of one API."""
