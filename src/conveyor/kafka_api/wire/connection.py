"""One client connection without its socket: bytes in, calls to the APIs, answers out in the order of the requests.

The next request is worked on while an earlier answer waits; only the answers keep their order. A connection takes no
more requests while `max_in_flight` of them wait, nor while its client is throttled: `is_full` and `is_muted` tell its
owner to stop reading. What waits is answered all the same.

A request above SMALL_REQUEST_BYTES is large: its owner holds a share of the budget for it, from `receiving_bytes` until
it is no longer among `large_requests`.
"""

from collections import deque
from collections.abc import Callable
from struct import Struct
from time import perf_counter

from conveyor.broker.broker_node import Broker
from conveyor.broker.clients.request_budget import BEFORE_SHARE_BYTES, SMALL_REQUEST_BYTES
from conveyor.kafka_api.apis.cluster.k18_api_versions import answer_unsupported
from conveyor.kafka_api.registry import API_VERSIONS_KEY, APIS, FETCH_KEY, PRODUCE_KEY, Api
from conveyor.kafka_api.wire.call import Call, Part
from conveyor.kafka_api.wire.codec import decode_request
from conveyor.kafka_api.wire.framing import LENGTH, FrameDecoder
from conveyor.kernel.errors import ProtocolViolation

_KEY = Struct(">h")
_KEY_AND_VERSION = Struct(">hh")
_DECODED_FACTOR = 16
"""Memory that a decoded request takes, for each of its bytes; a Produce's are records, which stay as they are."""


class KafkaConnection:
    """See the module's docstring. `send` takes the parts that are ready to go out, in order.

    muted: told when `is_muted` has changed; once it is False again it has to call `go_on`.
    failed: told why the connection has to be closed, when that shows later than in `receive` and `go_on`.
    """

    def __init__(
        self,
        broker: Broker,
        client_host: str,
        send: Callable[[list[Part]], None],
        muted: Callable[[], None] | None = None,
        failed: Callable[[str], None] | None = None,
    ) -> None:
        network = broker.settings.network
        self._broker = broker
        self._quotas = broker.quotas
        self._client_host = client_host
        self._send = send
        self._max_in_flight = network.max_in_flight
        self._max_weight_bytes = network.max_buffered_bytes
        self._decoder = FrameDecoder(network.max_request_bytes)
        self._frames: deque[memoryview] = deque()
        self._calls: deque[Call] = deque()
        self._output_wanted = False
        self._queued_bytes = self._open_bytes = 0
        self._failed = failed
        self._mute_changed = muted or self.go_on
        self._muted_until_ms = 0
        self._cancel_unmute: Callable[[], None] | None = None
        self.is_muted = False
        """A quota was exceeded: the client is not listened to."""
        self.received_requests = self.finished_requests = 0
        self.large_requests = 0
        """Large requests that were received, and are not answered."""

    @property
    def buffered_bytes(self) -> int:
        """What requests take of the broker's memory, but for large ones that are whole."""
        return self.unfinished_bytes + self._queued_bytes + self._open_bytes

    @property
    def unfinished_bytes(self) -> int:
        """What has arrived of a request that is not whole."""
        return self._decoder.buffered_bytes

    @property
    def receiving_bytes(self) -> int:
        """What the large request that is being received will take; 0 if there is none, or little of it has arrived.

        Raises ProtocolViolation for one that would take more than there is for all.
        """
        decoder = self._decoder
        if decoder.wanted_bytes <= SMALL_REQUEST_BYTES or decoder.buffered_bytes < BEFORE_SHARE_BYTES:
            return 0
        weight_bytes = _weight_bytes(_KEY.unpack_from(decoder.unfinished, LENGTH.size)[0], decoder.wanted_bytes)
        if weight_bytes > self._max_weight_bytes:
            raise ProtocolViolation(
                f"a request of {decoder.wanted_bytes} bytes takes {weight_bytes} once it is decoded: the broker has"
                f" {self._max_weight_bytes} for all (network.max_buffered_bytes)"
            )
        return weight_bytes

    @property
    def is_receiving(self) -> bool:
        """Part of a request has arrived; or a large one, which is not begun yet."""
        return self._decoder.buffered_bytes > 0 or any(map(_is_large, self._frames))

    @property
    def is_full(self) -> bool:
        return len(self._calls) >= self._max_in_flight

    @property
    def is_idle(self) -> bool:
        """Nothing is being answered."""
        return not self._calls

    def receive(self, data: bytes) -> None:
        """Take bytes from the client. Raises ProtocolViolation; then the connection must be closed."""
        frames = self._decoder.feed(data)
        self._frames.extend(frames)
        self.received_requests += len(frames)
        for frame in frames:
            if _is_large(frame):
                self.large_requests += 1
            else:
                self._queued_bytes += len(frame)
        self.go_on()

    def go_on(self) -> None:
        """Work on what was received, as far as the limit of open requests allows. Raises ProtocolViolation."""
        while self._frames and not self.is_muted and not self.is_full:
            frame = self._frames.popleft()
            if not _is_large(frame):
                self._queued_bytes -= len(frame)
            self._start(frame)

    def end(self) -> None:
        """The client is gone: stop waiting on its behalf."""
        self._frames.clear()
        self._queued_bytes = self._open_bytes = self.large_requests = 0
        if self._cancel_unmute is not None:
            self._cancel_unmute()
        calls, self._calls = self._calls, deque()
        for call in calls:
            if call.cancel is not None and call.parts is None:
                call.cancel()

    def _start(self, frame: memoryview) -> None:
        api_key, version = _KEY_AND_VERSION.unpack_from(frame)
        api = APIS.get(api_key)
        if api is None:
            raise ProtocolViolation(f"api key {api_key} is not served")
        if not api.min_version <= version <= api.max_version:
            return self._refuse_version(api, version, frame)
        began = perf_counter() if self._quotas.in_force else 0.0
        header, request = decode_request(api_key, version, frame)
        call = Call(self._broker, api_key, version, header, request, self._client_host, self._answered)
        call.is_large = _is_large(frame)
        if not call.is_large:
            call.weight_bytes = _weight_bytes(api_key, len(frame))
            self._open_bytes += call.weight_bytes
        self._calls.append(call)
        if began:
            self._handle_metered(api, call, len(frame), began)
        else:
            api.handle(call)

    def _handle_metered(self, api: Api, call: Call, request_bytes: int, began: float) -> None:
        call.meter = meter = self._quotas.meter(call.client_id, request_bytes, self._mute)
        api.handle(call)
        meter.worked(perf_counter() - began)

    def _mute(self, throttle_ms: int) -> None:
        """Take no requests for a time. What was received already waits as well."""
        clock = self._broker.clock
        until_ms = clock.steady_ms() + throttle_ms
        if not self.is_muted or until_ms > self._muted_until_ms:
            self._muted_until_ms = until_ms
            if self._cancel_unmute is not None:
                self._cancel_unmute()
            self._cancel_unmute = clock.time_out(throttle_ms, self._unmute)
            self.is_muted = True
            self._mute_changed()

    def _unmute(self) -> None:
        self._cancel_unmute = None
        self.is_muted = False
        self._mute_changed()

    def _refuse_version(self, api: Api, version: int, frame: memoryview) -> None:
        """The protocol's own answer to an unknown version exists for ApiVersions only (KIP-511)."""
        if api.key != API_VERSIONS_KEY:
            raise ProtocolViolation(_why_not_served(api, version))
        correlation_id = int.from_bytes(frame[4:8], "big", signed=True)
        call = Call(self._broker, api.key, 0, _Header(correlation_id), None, self._client_host, self._answered)
        self._calls.append(call)
        answer_unsupported(call)

    def _answered(self, call: Call) -> None:
        self.finished_requests += 1
        if not self._output_wanted and self._calls and self._calls[0] is call:
            self._output_wanted = True
            self._broker.turn.add_output(self._send_ready)

    def _send_ready(self) -> None:
        self._output_wanted = False
        calls = self._calls
        ready: list[Part] = []
        while calls and calls[0].parts is not None:
            call = calls.popleft()
            self._open_bytes -= call.weight_bytes
            self.large_requests -= call.is_large
            ready += call.parts or ()
            if call.close_reason is not None and self._failed is not None:
                self._send(ready)
                return self._failed(call.close_reason)
        self._send(ready)


def _is_large(frame: memoryview) -> bool:
    return len(frame) + LENGTH.size > SMALL_REQUEST_BYTES


def _weight_bytes(api_key: int, size_bytes: int) -> int:
    return size_bytes if api_key == PRODUCE_KEY else size_bytes * _DECODED_FACTOR


def _why_not_served(api: Api, version: int) -> str:
    served = f"api key {api.key} version {version}: versions {api.min_version} to {api.max_version} are served"
    if version >= api.min_version:
        return served
    if api.key in (PRODUCE_KEY, FETCH_KEY):
        return f"{served}; message formats 0 and 1 are not taken: use a client of Kafka 0.11 or newer"
    return f"{served}; the client is too old: Kafka's producers and consumers work since 0.11, its tools since 2.0"


class _Header:
    """The part of a request header that is the same in all versions."""

    client_id = ""

    def __init__(self, correlation_id: int) -> None:
        self.correlation_id = correlation_id
