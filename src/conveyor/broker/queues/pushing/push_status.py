"""The state of a subscription's push on one broker, as operators and other brokers see it."""

import msgspec

PUSHING, PAUSED, DENIED, UNREADABLE = "pushing", "paused", "denied", "secret_unreadable"
"""States of a push: it sends; its target or a client has paused it; its owner may not read the messages; this broker
cannot read its secret."""


class PushStatus(msgspec.Struct, frozen=True, kw_only=True):
    """state: see above. breaker: see `CircuitBreaker`. retry_in_ms: the time until the breaker lets a request through;
    None if it does. concurrency: the present limit of open requests. in_flight: open requests. delivered, failed,
    released: messages that the target has taken, has refused, and could not take, since the broker started.
    last_error: of the last request that failed, also if others have succeeded since; last_error_ms: its time.
    """

    node_id: int
    state: str
    breaker: str
    retry_in_ms: int | None
    concurrency: int
    in_flight: int
    delivered: int
    failed: int
    released: int
    last_error: str | None
    last_error_ms: int | None
