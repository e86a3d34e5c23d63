"""Limits the memory for requests that are arriving or not answered yet, over all connections of all doors.

A large request waits for its share of the limit before its remaining bytes are read. Shares are granted in the order of
the requests; the first in line is granted at the latest when no other share is held. So that no request waits forever,
the doors close a connection whose request does not arrive in time after that (`network.max_receive_ms`), and release
the share of a request whose response has to wait.

Small requests never wait: their bytes are only counted, which leaves less room for large ones. Closed connections free
`small_bytes`, and the Kafka door closes some above the limit. `lasting_bytes` are those of requests that are carried
out whatever becomes of their connections: of HTTP, which refuses further ones once the budget `is_full`, and of Kafka
after the end of the connection, whose bounds `kafka_api.wire.connection` tells. No connection is closed for them.
"""

from collections import deque
from collections.abc import Callable

SMALL_REQUEST_BYTES = 512 << 10
"""A request up to this size does not wait."""
BEFORE_SHARE_BYTES = 256 << 10
"""The bytes of a large request that are read before it asks for a share, so that announcing one has a cost. An event
loop reads at most this much at once, so no large request is complete before it has asked."""


class Share:
    """The share of one large request. granted: called once when the request may be read; None from then on.

    counted_bytes: those of its bytes that are counted already, until then.
    """

    __slots__ = ("counted_bytes", "granted", "size_bytes")

    def __init__(self, size_bytes: int, granted: Callable[[], None], counted_bytes: int) -> None:
        self.counted_bytes = counted_bytes
        self.size_bytes = size_bytes
        self.granted: Callable[[], None] | None = granted


class RequestBudget:
    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting: deque[Share] = deque()
        self.held_bytes = 0
        """The bytes granted to large requests."""
        self.small_bytes = 0
        self.lasting_bytes = 0

    @property
    def waiting_count(self) -> int:
        """The number of large requests that wait for a share."""
        return len(self._waiting)

    @property
    def is_over_limit(self) -> bool:
        """True if small requests alone exceed the limit, without those that no closed connection ends."""
        return self.small_bytes > self._limit_bytes

    @property
    def is_full(self) -> bool:
        """True if the requests that are carried out whatever becomes of their connections exceed the limit."""
        return self.lasting_bytes > self._limit_bytes

    @property
    def used_bytes(self) -> int:
        """The bytes of all requests."""
        return self.held_bytes + self.small_bytes + self.lasting_bytes

    def count(self, change_bytes: int) -> None:
        """Count bytes of small requests: positive when they arrive, negative when they are answered."""
        self.small_bytes += change_bytes
        if change_bytes < 0 and self._waiting:
            self._grant()

    def count_lasting(self, change_bytes: int) -> None:
        """Count bytes of requests that last until their response, although their clients may have gone."""
        self.lasting_bytes += change_bytes
        if change_bytes < 0 and self._waiting:
            self._grant()

    def ask(self, size_bytes: int, granted: Callable[[], None], counted_bytes: int = 0) -> Share:
        """Queue for a share. granted: called when the share is granted, now or later. counted_bytes: see `Share`."""
        share = Share(size_bytes, granted, counted_bytes)
        self._waiting.append(share)
        self._grant()
        return share

    def give_back(self, share: Share) -> None:
        """Release a share, or leave the queue."""
        if share.granted is None:
            self.held_bytes -= share.size_bytes
        else:
            self._waiting.remove(share)
        self._grant()

    def _grant(self) -> None:
        while self._waiting and self._fits(self._waiting[0]):
            share = self._waiting.popleft()
            self.held_bytes += share.size_bytes
            granted, share.granted = share.granted, None
            assert granted is not None, "a share in line is not granted yet"
            granted()

    def _fits(self, share: Share) -> bool:
        added_bytes = share.size_bytes - share.counted_bytes
        return not self.held_bytes or self.used_bytes + added_bytes <= self._limit_bytes
