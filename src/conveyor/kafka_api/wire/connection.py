"""One client connection without its socket: receives bytes, calls the handlers, sends responses in request order.

Requests take effect in order: the connection starts a request once all earlier ones are answered, unless its API may
overlap with theirs (`ServedApi.overlaps`). It starts no more requests while `max_in_flight` are pending or the client
is throttled, and at most _AT_ONCE in a turn of the event loop. The owner stops reading while `is_full` or `is_muted`.
Pending requests are answered even then. The owner calls `resume` after responses.

A request above SMALL_REQUEST_BYTES is large. The owner asks for a share of the request budget for each large request,
once `unshared_bytes` tells its size. The share is released once the request is answered, or its handler has returned
and its response has to wait. From then on its memory counts as that of a small one. A Produce is that far once its
records are appended: it drops them, and weighs the names that its response needs.

The end of a connection cancels the requests that wait. If several take much memory it does so in parts, one in a turn
of the event loop: a client may leave a thousand fetches of hundreds of partitions. Their memory counts until then.

A request that changes something goes on after the connection has ended, until it is answered, and its memory counts
until then: clients may connect again and again. These requests are bounded as follows. All that only wait are
cancelled. A Produce has dropped its records. A large request keeps its share, so that the next one has to wait for it.
A small one ends with the change of metadata, or of a group or transaction, that it has asked for, or with the time-out
of that.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import inf
from struct import Struct
from time import perf_counter
from typing import Any, NoReturn

from msgspec.structs import replace

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.slices import SLICE_ITEMS
from conveyor.kafka_api.wire.call import CallOrigin, Handler, KafkaCall, Login, Part, RequestHeader
from conveyor.kafka_api.wire.codec import decode_header, decode_request
from conveyor.kafka_api.wire.division import DIVISIONS
from conveyor.kafka_api.wire.framing import LENGTH, FrameDecoder
from conveyor.kafka_api.wire.long_request import LongRequest
from conveyor.kafka_api.wire.skim import TooManyItems
from conveyor.kafka_api.wire.versions import (
    API_VERSIONS_KEY,
    PRODUCE_KEY,
    SERVED_APIS,
    ServedApi,
    advertised,
    unsupported_version_reason,
)
from conveyor.kernel.access.caller import Caller, Principal
from conveyor.kernel.errors import ProtocolViolation
from conveyor.kernel.ports import FileSlice
from conveyor.kernel.request_budget import BEFORE_SHARE_BYTES, SMALL_REQUEST_BYTES, Share

log = logging.getLogger(__name__)

_KEY = Struct(">h")
_KEY_AND_VERSION = Struct(">hh")
_UNSUPPORTED_VERSION = 35
_REQUESTS_BEFORE_LOGIN = 16
_AT_ONCE = 16
"""Other clients wait for so many requests of one, or for fewer with large responses."""
_RESPONSE_BYTES = 4 << 10
"""So many bytes of a response count as another request."""
_TURN_MS = 10
"""No further request of a client begins in a turn whose requests have taken this long."""
_SMALL_FRAME_BYTES = SMALL_REQUEST_BYTES - LENGTH.size
"""The largest frame, without its length, of a small request."""
_ENDED_BYTES = 1 << 20
"""Memory of the fetches that the end of a connection cancels in one turn: about 1 ms."""
_WAITING_BYTES = 200
"""Memory that a frame takes while it waits for its turn, besides its bytes, of which it may have only eight."""
ITEM_BYTES = 2048
"""Memory for each item of a long request, its result, and the work on it."""
_DECODED_FACTOR = 16
"""Memory per byte of request once it is decoded. For Produce the factor is 1, because records stay encoded."""
_TEXT_FACTOR = 4
"""Memory per byte of request that is left once its handler has returned: each byte may be a character of a string whose
characters take four bytes. Long requests are weighed by their items, too.
"""


class KafkaConnection:
    """See the module's docstring.

    handlers: the handler of each API, by its key. caller: the client, as all requests of the connection show it.
    send: takes the parts of finished responses, in order.
    changed: called when `is_muted` or `buffered_bytes` changes between requests; must call `resume`.
    failed: called with the reason to close the connection, if the failure comes after `receive` or `resume` returned.
    """

    def __init__(
        self,
        broker: BrokerNode,
        handlers: Mapping[int, Handler],
        caller: Caller,
        send: Callable[[list[Part]], None],
        changed: Callable[[], None] | None = None,
        failed: Callable[[str], None] | None = None,
    ) -> None:
        network = broker.settings.network
        self._broker = broker
        self._handlers = self._permitted = handlers
        self._restricted_requests_left = 0
        self._has_expired = False
        self._quotas = broker.clients.quotas
        self._origin = CallOrigin(broker, caller, self._answered, self._weigh)
        self._login: Login | None = None
        self._send = send
        self._max_in_flight = network.max_in_flight
        self._max_weight_bytes = network.max_buffered_bytes
        self._decoder = FrameDecoder(network.max_request_bytes)
        self._frames: deque[memoryview] = deque()
        self._calls: deque[KafkaCall] = deque()
        """The started requests. After the end, those that go on."""
        self._ending: deque[KafkaCall] = deque()
        """After the end, those that are not cancelled yet."""
        self._output_wanted = self._has_ended = False
        self._queued_bytes = self._open_bytes = 0
        self._failed = failed
        self._changed = changed or self.resume
        self._waits_for_turn, self._left_in_turn = False, _AT_ONCE
        self._muted_until_ms = 0
        self._cancel_unmute: Callable[[], None] | None = None
        self.is_muted = False
        """True if requests wait because the client exceeded a quota."""
        self._unanswered = 0
        """The started requests that have no response yet."""
        self.received_requests = self.finished_requests = 0
        self._large_frames = 0
        """Of the received frames, those of large requests."""
        self.shares: deque[Share] = deque()
        """Of the large requests that have not started, in their order; the last may not be granted yet."""

    def require(self, login: Login, handlers: Mapping[int, Handler], max_request_bytes: int) -> None:
        """Serve only a few small requests of some APIs until the client is `authenticated`, by this login."""
        self._login = login
        self._restrict(handlers)
        self._decoder.max_frame_bytes = max_request_bytes

    def authenticated(self, principal: Principal) -> None:
        """Note who the client is. Earlier requests go on as whom they began."""
        self._permitted, self._has_expired = self._handlers, False
        self._decoder.max_frame_bytes = self._broker.settings.network.max_request_bytes
        self._origin = self._origin._replace(caller=replace(self._origin.caller, principal=principal))

    def expire(self, handlers: Mapping[int, Handler]) -> None:
        """Serve only a few requests of some APIs until the client is `authenticated` again. Earlier requests go on."""
        self._restrict(handlers)
        self._has_expired = True

    def refuse(self) -> None:
        """Serve no more requests."""
        self._permitted, self._has_expired = {}, False

    def _restrict(self, handlers: Mapping[int, Handler]) -> None:
        self._permitted, self._restricted_requests_left = handlers, _REQUESTS_BEFORE_LOGIN

    @property
    def buffered_bytes(self) -> int:
        """Memory of all requests except those that hold shares, and large ones that have not started."""
        has_share = len(self.shares) > self._large_frames and self.is_granted
        return (0 if has_share else self._decoder.buffered_bytes) + self._queued_bytes + self._open_bytes

    @property
    def is_granted(self) -> bool:
        """True if the incomplete request does not wait for a share."""
        return not self.shares or self.shares[-1].granted is None

    @property
    def unshared_bytes(self) -> int:
        """Memory that the incomplete large request will take; 0 if there is none, if little of it has arrived, or if it
        has a share.

        Raises ProtocolViolation if the request would take more than the whole budget.
        """
        decoder = self._decoder
        if decoder.wanted_bytes <= SMALL_REQUEST_BYTES or decoder.buffered_bytes < BEFORE_SHARE_BYTES:
            return 0
        if len(self.shares) > self._large_frames:
            return 0
        weight_bytes = _weight_bytes(_KEY.unpack_from(decoder.unfinished, LENGTH.size)[0], decoder.wanted_bytes)
        if weight_bytes > self._max_weight_bytes:
            raise ProtocolViolation(
                f"a request of {decoder.wanted_bytes} bytes takes {weight_bytes} bytes once decoded: the limit for all"
                f" requests is {self._max_weight_bytes} (network.max_buffered_bytes)"
            )
        return weight_bytes

    @property
    def is_receiving(self) -> bool:
        """True if a request has arrived in part, or a complete large request has not started."""
        return self._decoder.buffered_bytes > 0 or self._large_frames > 0

    @property
    def is_full(self) -> bool:
        """True if as many requests as permitted are pending or wait for their turn, or the latter take much memory."""
        is_at_limit = len(self._calls) + len(self._frames) >= self._max_in_flight
        return is_at_limit or self._queued_bytes > SMALL_REQUEST_BYTES

    @property
    def has_waiting(self) -> bool:
        """True if a received request has not started."""
        return bool(self._frames)

    @property
    def is_idle(self) -> bool:
        """True if no request is pending."""
        return not self._calls

    def receive(self, data: bytes) -> None:
        """Process bytes from the client. Raises ProtocolViolation; the caller must then close the connection."""
        frames = self._decoder.feed(data)
        self._frames.extend(frames)
        self.received_requests += len(frames)
        for frame in frames:
            if len(frame) > _SMALL_FRAME_BYTES:
                self._large_frames += 1
            else:
                self._queued_bytes += _WAITING_BYTES + len(frame)
        self.resume()

    def resume(self) -> None:
        """Start the requests whose turn has come, up to the limit of pending requests. Raises ProtocolViolation."""
        frames, steady_ms = self._frames, self._broker.clock.steady_ms
        began_ms = steady_ms() if len(frames) > 1 else 0
        while frames and not (self.is_muted or self._waits_for_turn) and len(self._calls) < self._max_in_flight:
            if self._unanswered and not self._may_overlap(frames[0]):
                return
            if self._left_in_turn <= 0:
                self._waits_for_turn = True
                asyncio.get_running_loop().call_soon(self._begin_turn)
                return
            frame = frames.popleft()
            if len(frame) <= _SMALL_FRAME_BYTES:
                self._queued_bytes -= _WAITING_BYTES + len(frame)
            self._start(frame)
            newest = self._calls[-1].response if self._calls else None
            self._left_in_turn -= 1 if newest is None else 1 + _bytes_in_memory(newest.parts) // _RESPONSE_BYTES
            if frames and steady_ms() - began_ms >= _TURN_MS:
                self._left_in_turn = 0

    def _begin_turn(self) -> None:
        self._waits_for_turn, self._left_in_turn = False, _AT_ONCE
        self._changed()

    def _may_overlap(self, frame: memoryview) -> bool:
        """Return whether a request may start while earlier ones are unanswered. The last started one decides: it may
        itself overlap with all before it.
        """
        api = SERVED_APIS.get(_KEY.unpack_from(frame)[0])
        last = self._calls[-1]
        return api is not None and last.header.api_key in api.overlaps and not last.size.is_long

    def end(self) -> None:
        """Cancel the pending requests of a client that has disconnected. Those that go on count until they end."""
        self._has_ended = True
        if self._login is not None:
            self._login.end()
        self._frames.clear()
        self._decoder = FrameDecoder(0)
        self._queued_bytes = self._large_frames = 0
        if self._cancel_unmute is not None:
            self._cancel_unmute()
        while self.shares:
            self._broker.clients.request_budget.give_back(self.shares.pop())
        self._ending, self._calls = self._calls, self._ending
        lasting_bytes = self._broker.clients.request_budget.lasting_bytes + self._open_bytes
        # Of all requests, only fetches and Produces wait beside others.
        is_long = self._unanswered > 1 and self._open_bytes > _ENDED_BYTES and lasting_bytes <= self._max_weight_bytes
        self._end_calls(0 if is_long else inf)

    def _end_calls(self, most_bytes: float) -> None:
        """Cancel requests that take this much memory, and the others in later turns."""
        ended_bytes = 0
        while self._ending and ended_bytes < most_bytes:
            call = self._ending.popleft()
            ended_bytes += call.size.weight_bytes
            if call.end():
                self._calls.append(call)
            elif call.size.release is not None:
                call.size.release(call)
        if self._ending and not self._broker.slices.later(self._end_part):
            self._end_calls(inf)
        self._open_bytes = sum(call.size.weight_bytes for call in (*self._calls, *self._ending))

    def _end_part(self) -> None:
        self._end_calls(_ENDED_BYTES)
        self._want_output()

    def _start(self, frame: memoryview) -> None:
        api_key, version = _KEY_AND_VERSION.unpack_from(frame)
        api = SERVED_APIS.get(api_key)
        if api is None:
            raise ProtocolViolation(f"api key {api_key} is not served")
        if self._permitted is not self._handlers:
            self._check_restricted(api_key)
        if version not in api.versions:
            return self._refuse_version(api, version, frame)
        began = perf_counter() if self._quotas.in_force else 0.0
        call: KafkaCall | None = None
        try:
            call, handle = self._decoded(api_key, version, frame)
            self._open(call, len(frame))
            if began:
                self._handle_metered(call, handle, len(frame), began)
            else:
                handle(call)
        except Exception as bug:  # noqa: BLE001 - A bug in one request must not reach the other ones.
            if call is None:
                self._undecodable(bug)
            call.fail(bug)

    def _check_restricted(self, api_key: int) -> None:
        """Count a request before the client is `authenticated`. Raises ProtocolViolation."""
        if api_key not in self._permitted and self._has_expired:
            self._broker.clients.credentials.expired_sessions += 1
            raise ProtocolViolation("the session has expired, and the client has not authenticated again")
        if api_key not in self._permitted:
            raise ProtocolViolation(f"api key {api_key} before the client has authenticated")
        if not self._restricted_requests_left:
            raise ProtocolViolation("too many requests before the client has authenticated")
        self._restricted_requests_left -= 1

    def _decoded(self, api_key: int, version: int, frame: memoryview) -> tuple[KafkaCall, Handler]:
        """Return a call and its handler, which decodes the request if it is long. Raises ProtocolViolation."""
        handle, division = self._permitted[api_key], DIVISIONS.get(api_key)
        if self._login is not None:
            handle = self._login.handlers.get(api_key, handle)
        request: Any = None
        try:
            most_items = SLICE_ITEMS if division is None else division.size
            found, request = decode_request(api_key, version, frame, most_items)
            if division is not None and division.names_once:
                request, *others = division.pieces(request)
                request = None if others else request
        except TooManyItems:
            request = None
        if request is None:
            found, position = decode_header(api_key, version, frame)
            handle = LongRequest(frame, position, handle, division, self._counted).start
        header = RequestHeader(api_key, version, found.correlation_id, found.client_id or "")
        call = KafkaCall(self._origin, header, request)
        call.size.is_long = request is None
        return call, handle

    def _undecodable(self, error: Exception) -> NoReturn:
        """Raise ProtocolViolation for a request whose decoder failed."""
        if isinstance(error, ProtocolViolation):
            raise error
        log.error("request not decoded caller=%s", self._origin.caller, exc_info=error)
        raise ProtocolViolation("a request could not be decoded: a bug, see the log") from error

    def _counted(self, call: KafkaCall, items: int) -> None:
        """Weigh a long request by its items, too."""
        self._weigh(call, items * ITEM_BYTES)
        self._changed()

    def _weigh(self, call: KafkaCall, more_bytes: int) -> None:
        call.size.weight_bytes += more_bytes
        self._open_bytes += more_bytes
        self._want_output()

    def _open(self, call: KafkaCall, size_bytes: int) -> None:
        self._calls.append(call)
        self._unanswered += 1
        if size_bytes > _SMALL_FRAME_BYTES:
            self._large_frames -= 1
            share = self.shares.popleft() if self.shares else None
            call.size.release = partial(
                self._release, share, _weight_bytes(call.header.api_key, size_bytes, _TEXT_FACTOR)
            )
        else:
            call.size.weight_bytes = weight_bytes = _weight_bytes(call.header.api_key, size_bytes)
            self._open_bytes += weight_bytes

    def _release(self, share: Share | None, left_bytes: int, call: KafkaCall) -> None:
        """Release the share of a large request. Its memory counts from now on."""
        call.size.release = None
        self._weigh(call, left_bytes)
        if share is not None:
            self._broker.clients.request_budget.give_back(share)

    def _handle_metered(self, call: KafkaCall, handle: Handler, request_bytes: int, began: float) -> None:
        call.meter = meter = self._quotas.meter(call.caller, call.header.client_id, request_bytes, self._mute)
        handle(call)
        meter.worked(perf_counter() - began)

    def _mute(self, throttle_ms: int) -> None:
        """Start no requests for this time. Received requests wait."""
        clock = self._broker.clock
        until_ms = clock.steady_ms() + throttle_ms
        if not self.is_muted or until_ms > self._muted_until_ms:
            self._muted_until_ms = until_ms
            if self._cancel_unmute is not None:
                self._cancel_unmute()
            self._cancel_unmute = clock.time_out(throttle_ms, self._unmute)
            self.is_muted = True
            self._changed()

    def _unmute(self) -> None:
        self._cancel_unmute = None
        self.is_muted = False
        self._changed()

    def _refuse_version(self, api: ServedApi, version: int, frame: memoryview) -> None:
        """Refuse a version that is not served. For ApiVersions, answer in v0 with the served versions of ApiVersions
        alone, as Kafka does (KIP-511): clients take a longer list for the whole answer, and learn no features.
        """
        if api.key != API_VERSIONS_KEY:
            raise ProtocolViolation(unsupported_version_reason(api, version))
        header = RequestHeader(api.key, 0, int.from_bytes(frame[4:8], "big", signed=True), "")
        call = KafkaCall(self._origin, header, None)
        self._open(call, len(frame))
        call.answer({"error_code": _UNSUPPORTED_VERSION, "api_keys": [advertised(api)]})

    def _answered(self, call: KafkaCall) -> None:
        self.finished_requests += 1
        self._unanswered -= 1
        if call.size.release is not None:
            call.size.release(call)
        if self._calls and self._calls[0] is call:
            self._want_output()
        elif self._calls and call.response is not None:  # It waits for that of an earlier request.
            self._weigh(call, _bytes_in_memory(call.response.parts))

    def _want_output(self) -> None:
        if not self._output_wanted:
            self._output_wanted = True
            self._broker.partitions.tick.add_output(self._send_ready)

    def _send_ready(self) -> None:
        self._output_wanted = False
        calls = self._calls
        ready: list[Part] = []
        while calls and (response := calls[0].response) is not None:
            call = calls.popleft()
            self._open_bytes -= call.size.weight_bytes
            if self._has_ended:
                continue
            ready += response.parts
            if response.close_reason is not None and self._failed is not None:
                self._send(ready)
                return self._failed(response.close_reason)
        self._send(ready)


def _bytes_in_memory(parts: Iterable[Part]) -> int:
    return sum(len(part) for part in parts if not isinstance(part, FileSlice))


def _weight_bytes(api_key: int, size_bytes: int, factor: int = _DECODED_FACTOR) -> int:
    return size_bytes if api_key == PRODUCE_KEY else size_bytes * factor
