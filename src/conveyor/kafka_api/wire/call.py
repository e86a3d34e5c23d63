"""One request on its way through the broker, until it is answered."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from conveyor.kafka_api.wire.codec import Body, UnencodableResponse, encode_response
from conveyor.kafka_api.wire.framing import LENGTH
from conveyor.kernel.ports import FileSlice

if TYPE_CHECKING:
    from conveyor.broker.broker_node import Broker
    from conveyor.broker.clients.quota_enforcement import RequestMeter

log = logging.getLogger(__name__)

Part = bytes | FileSlice


class Call:
    """A decoded request, and the place of its answer in the order of the connection.

    Exactly one of `answer`, `answer_parts`, `answer_nothing` and `close_connection` is called, once, now or later.
    """

    __slots__ = (
        "_answered", "api_key", "api_version", "broker", "cancel", "client_host", "client_id", "close_reason",
        "correlation_id", "is_large", "meter", "parts", "request", "weight_bytes",
    )  # fmt: skip

    def __init__(
        self, broker: "Broker", api_key: int, api_version: int, header: Any, request: Any, client_host: str,
        answered: "Callable[[Call], None]",
    ) -> None:  # fmt: skip
        self.broker = broker
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id: int = header.correlation_id
        self.client_id: str = header.client_id or ""
        self.client_host = client_host
        self.request = request
        self.parts: list[Part] | None = None
        self.cancel: Callable[[], None] | None = None
        """Set by an API whose answer waits for something; called if the connection ends first."""
        self.meter: RequestMeter | None = None
        """Set while there are quotas."""
        self.close_reason: str | None = None
        """Set if the connection has to be closed in place of an answer."""
        self.weight_bytes = 0
        """What a small request takes in memory while it is worked on."""
        self.is_large = False
        """A large one has a share of the budget for requests."""
        self._answered = answered

    @property
    def throttle_ms(self) -> int:
        """What the answer says: for how long no more requests are taken from this client."""
        return 0 if self.meter is None else self.meter.throttle_ms

    def mutate(self, partitions: int, *, strict_from: int) -> None:
        """So many partitions are about to be made or deleted. From a version on, quotas refuse that (KIP-599).

        Raises RequestError (THROTTLING_QUOTA_EXCEEDED).
        """
        if self.meter is not None:
            self.meter.mutated(partitions, strict=self.api_version >= strict_from)

    def answer(self, body: Body) -> None:
        """Answer with a body by kio's field names."""
        if self.meter is not None:
            self.meter.answered()
            body = {**body, "throttle_time": self.meter.throttle_ms}
        try:
            encoded = encode_response(self.api_key, self.api_version, self.correlation_id, body)
        except UnencodableResponse:
            log.exception("request cannot be answered client=%s host=%s", self.client_id, self.client_host)
            return self.close_connection("its request could not be answered: a bug, see the log")
        self.answer_parts([LENGTH.pack(len(encoded)) + encoded])

    def answer_parts(self, parts: list[Part]) -> None:
        """Answer with ready bytes, length and header included."""
        assert self.parts is None, "a request is answered once"
        self.parts = parts
        self.cancel = None  # It may know this call: a cycle, which only the collector would free.
        self._answered(self)

    def answer_nothing(self) -> None:
        """The protocol wants no answer (acks=0)."""
        self.answer_parts([])

    def close_connection(self, reason: str) -> None:
        """There is no answer that would tell this; what was done is done. Answers before it still go out."""
        self.close_reason = reason
        self.answer_nothing()
