"""Requests with many items: counted, decoded and handled in slices, so that other clients do not wait for them.

count -> decode -> handle: a piece after the other, see `Division`; or the whole, if the API's requests are not divided

A frame of more than _FRAME_BYTES is counted and decoded in a thread. A piece does not wait for the answers of those
before it, unless _PIECES_AT_ONCE of them are missing: what they wait for, such as a coordinator that is loaded, may
come for all of them in the same turn of the event loop. The response is sent once all answers are there.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from conveyor.broker.slices import SLICE_ITEMS
from conveyor.kafka_api.wire.call import CallOrigin, Handler, KafkaCall, framed
from conveyor.kafka_api.wire.codec import Body, build_response, count_items, decode_body
from conveyor.kafka_api.wire.division import Division
from conveyor.kafka_api.wire.skim import Room, TooManyItems
from conveyor.kafka_api.wire.versions import CONSUMER_GROUP_HEARTBEAT_KEY
from conveyor.kernel.ports import Bytes

Result = TypeVar("Result")

_FRAME_BYTES = 16 << 10
"""The largest frame that the event loop itself counts and decodes. Each takes up to 2 ms; for larger ones up to 15 ms,
during most of which a thread lets the loop go on.
"""
_PIECES_AT_ONCE = 8
_REMEDIES = {
    CONSUMER_GROUP_HEARTBEAT_KEY: "each name of a topic counts as 4: subscribe by a regular expression, or raise it"
}
"""What clients can do whose requests have too many items, and which cannot send several smaller ones."""


class LongRequest:
    """The work on one request. `start` is the handler of a call that has no decoded request yet.

    position: of the body in the frame. counted: called with the number of items, before any of them is decoded.
    """

    def __init__(
        self,
        frame: Bytes,
        position: int,
        handle: Handler,
        division: Division | None,
        counted: Callable[[KafkaCall, int], None],
    ) -> None:
        self._call: KafkaCall
        self._frame = frame
        self._position = position
        self._handle = handle
        self._division = division
        self._counted = counted
        self._unknown: Room = []
        self._entities: list[Any] = []
        """Of the responses to the pieces, in their order; None while one has no answer."""
        self._left: Iterator[Any] | None = None
        """The requests of the pieces that have not begun; None while the next one waits for its turn."""
        self._unanswered: dict[KafkaCall, None] = {}
        """The pieces without an answer, and the call itself until all have begun. After the end, those that go on."""
        self._is_stopped = False

    def start(self, call: KafkaCall) -> None:
        self._call = call
        self._unanswered[call] = None
        call.cancel = self._stop
        if len(self._frame) > _FRAME_BYTES:
            call.start(self._begin_in_thread())
        else:
            self._later(lambda: self._begin(self._count(self._frame)))

    async def _begin_in_thread(self) -> None:
        """The work of a request whose connection has ended is done only if it has begun."""
        in_thread = partial(self._call.broker.slices.in_thread, meter=self._call.meter)
        items = await in_thread(lambda: self._unless_stopped(self._count)) or 0
        if not self._is_stopped:
            self._counted(self._call, items)
        await in_thread(lambda: self._unless_stopped(self._decode))
        self._later(self._handle_decoded)

    def _unless_stopped(self, work: Callable[[Bytes], Result]) -> Result | None:
        """Work on the frame in a thread, which may begin late. The loop may stop the request meanwhile."""
        frame = self._frame
        return None if self._is_stopped else work(frame)

    def _later(self, step: Callable[[], None]) -> None:
        call = self._call
        call.broker.slices.later(partial(call.do, lambda: None if self._is_stopped else step()))

    def _begin(self, items: int) -> None:
        self._later(self._decode_and_handle)
        self._counted(self._call, items)

    def _decode_and_handle(self) -> None:
        self._decode(self._frame)
        self._handle_decoded()

    def _count(self, frame: Bytes) -> int:
        call, header = self._call, self._call.header
        most = call.broker.settings.network.max_request_items
        try:
            return count_items(header.api_key, header.api_version, frame, most, self._unknown)
        except TooManyItems as error:
            raise TooManyItems(
                f"api key {header.api_key}: a request with more than {most} items or KiB of text"
                f" (network.max_request_items): {_REMEDIES.get(header.api_key, 'send several smaller ones')}"
            ) from error

    def _decode(self, frame: Bytes) -> None:
        call, header = self._call, self._call.header
        call.request = decode_body(header.api_key, header.api_version, frame, self._position, self._unknown)

    def _handle_decoded(self) -> None:
        if self._division is None:
            self._later(self._handle_whole)
        else:
            self._later(partial(self._next, self._division.pieces(self._call.request)))

    def _handle_whole(self) -> None:
        self._call.cancel = None
        self._handle(self._call)

    def _next(self, requests: Iterator[Any]) -> None:
        request = next(requests, None)
        if request is None:
            self._release()
            return self._answered(self._call)
        piece = PieceCall(self._call, request, self._answered, len(self._entities))
        self._entities.append(None)
        self._unanswered[piece] = None
        self._left = requests
        self._handle(piece)
        self._go_on()

    def _go_on(self) -> None:
        """Begin the next piece in a later turn, unless too many answers are missing."""
        requests = self._left
        if requests is None:
            return
        if len(self._unanswered) > _PIECES_AT_ONCE:  # The call itself is one of them.
            return self._release()
        self._left = None
        self._later(partial(self._next, requests))

    def _release(self) -> None:
        """Release the share of the request budget, if all pieces in progress only wait."""
        if all(piece.cancel is not None for piece in self._unanswered):
            self._call.wait(self._stop)

    def _answered(self, piece: KafkaCall) -> None:
        self._unanswered.pop(piece, None)
        call = self._call
        if isinstance(piece, PieceCall):
            self._entities[piece.number] = piece.entity
        response = piece.response
        if response is not None and response.close_reason is not None and call.response is None:
            self._stop()
            call.close_connection(response.close_reason)
        elif not self._unanswered:
            call.do(call.answer_nothing if self._is_stopped else self._join)
        else:
            self._go_on()

    def _join(self) -> None:
        assert self._division is not None, "only divided requests have pieces"
        call, response = self._call, self._division.joined(self._entities)
        if call.meter is not None:
            call.meter.answered()
            if hasattr(response, "throttle_time"):
                response = replace(response, throttle_time=timedelta(milliseconds=call.meter.throttle_ms))
        call.answer_encoded(lambda _: framed(call, response))

    def _stop(self) -> None:
        """Begin no more, because the connection has ended. Wait for the pieces that go on."""
        self._is_stopped, self._left = True, None
        self._frame = b""  # Its memory is given back, though a thread may begin with it only now.
        pieces = [piece for piece in self._unanswered if piece is not self._call]
        self._unanswered = {piece: None for piece in pieces if piece.end()}
        if self._unanswered:
            self._call.cancel = None


class PieceCall(KafkaCall):
    """A piece of a divided request, with its number. entity: of the response to it."""

    __slots__ = ("_whole", "entity", "number")

    def __init__(self, whole: KafkaCall, request: Any, answered: Callable[[KafkaCall], None], number: int) -> None:
        origin = CallOrigin(whole.broker, whole.caller, answered)
        super().__init__(origin, whole.header, request)
        self.meter = whole.meter
        self._whole = whole
        self.number = number
        self.entity: Any = None

    def weigh(self, more_bytes: int) -> None:
        self._whole.weigh(more_bytes)

    def answer(self, body: Body, items: int = 0) -> None:
        if self.amend is not None:
            body = self.amend.amended(body)
        build = partial(build_response, self.header.api_key, self.header.api_version, body)
        if items > SLICE_ITEMS:
            self.start(self._build_in_thread(build))
        else:
            self.entity = build()
            self.answer_nothing()

    async def _build_in_thread(self, build: Callable[[], Any]) -> None:
        self.entity = await self.broker.slices.in_thread(build, self.meter)
        self.answer_nothing()
