"""Enforces client quotas: measures rates, and throttles clients that exceed them. Source: KIP-219.

Kafka: a request is answered at once; the answer states how long the client is throttled, and the door reads no more
requests from its connection for that time. HTTP: see `request_admission`. Both doors count in the same rates.

    producer_byte_rate         bytes of Produce requests, counted when they arrive
    consumer_byte_rate         bytes of the records of Fetch answers; an answer above the quota goes out empty and is
                               not counted
    request_percentage         time of all requests on the event loop, and of threads that decode and encode them;
                               throttles for at most a second at a time
    controller_mutation_rate   partitions created and deleted: a token bucket, see `token_bucket`
    connection_creation_rate   connections from an address; a connection above the quota is closed and not counted

A rate is the amount counted in the current window and the full windows before it, divided by their duration. A client
with nothing counted in these windows may exceed the quota with one fetch: otherwise a batch larger than all windows
allow could never be read.
"""

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from conveyor.broker.clients.token_bucket import TokenBucket
from conveyor.broker.services import Services
from conveyor.cluster.changes import QuotasPut
from conveyor.cluster.image import ClusterImage
from conveyor.cluster.quotas import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    ClientQuotas,
    Limit,
    QuotaChange,
    QuotaEntity,
    RateKey,
    changed_values,
    from_entities,
)
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import QuotaExceeded
from conveyor.kernel.ports import Clock
from conveyor.settings.tree import ClientSettings, Settings

log = logging.getLogger(__name__)

MAX_RATES = 10_000
"""The most rates in memory, of up to 2 KiB each; the least recently used is evicted. Clients choose their ids, so any
number may occur."""

Kept = TypeVar("Kept")

_MAX_INT32 = (1 << 31) - 1


class Rate:
    """The amounts counted in the last windows. Time is passed in, in ms.

    exceeded_until_ms: the time at which the last throttle time ends.
    """

    __slots__ = ("_samples", "_window_count", "_window_ms", "exceeded_until_ms")

    def __init__(self, window_count: int, window_ms: int) -> None:
        self.exceeded_until_ms = 0
        self._window_count = window_count
        self._window_ms = window_ms
        self._samples: deque[list[float]] = deque()  # Per sample: start and end in ms, amount.

    def record(self, amount: float, now_ms: int) -> None:
        samples = self._samples
        if not samples or now_ms - samples[-1][0] >= self._window_ms:
            samples.append([now_ms, now_ms, 0.0])
        samples[-1][1] = now_ms
        samples[-1][2] += amount

    def total(self, now_ms: int) -> float:
        """Return the amount in the current windows."""
        samples = self._samples
        while samples and now_ms - samples[0][1] >= self._window_count * self._window_ms:
            samples.popleft()
        return sum(sample[2] for sample in samples)

    def excess_ms(self, per_second: float, now_ms: int, more: float = 0) -> int:
        """Return the time until the rate is back within a limit, if only `more` is counted; 0 if it is within the
        limit.
        """
        total = self.total(now_ms) + more
        elapsed_ms = now_ms - self._samples[0][0] if self._samples else 0
        missing = self._window_count - 1 - elapsed_ms // self._window_ms
        elapsed_ms += max(0, missing) * self._window_ms
        return max(0, round(min(_MAX_INT32, total / per_second * 1000 - elapsed_ms)))


class Quotas:
    """The quotas in the metadata, and the measured rates of this broker's clients."""

    def __init__(self, services: Services) -> None:
        self.quotas = ClientQuotas()
        self.in_force = False
        """True if any quota exists. Without quotas nothing is measured."""
        self.throttled = dict.fromkeys(
            (
                PRODUCER_BYTE_RATE,
                CONSUMER_BYTE_RATE,
                REQUEST_PERCENTAGE,
                CONTROLLER_MUTATION_RATE,
                CONNECTION_CREATION_RATE,
            ),
            0,
        )
        """The number of throttled requests and connections, by kind of quota."""
        self._services = services
        self._metadata = services.metadata
        self._clock = services.clock
        self._rates: OrderedDict[RateKey, Rate] = OrderedDict()
        self._buckets: OrderedDict[RateKey, TokenBucket] = OrderedDict()
        services.metadata.listen(self._observe)
        services.settings_changed.listen(self._settings_changed)

    @property
    def _settings(self) -> ClientSettings:
        return self._services.settings.clients

    async def alter(
        self, caller: Caller, entity: QuotaEntity, changes: Sequence[QuotaChange], *, check_only: bool = False
    ) -> None:
        """Change quotas of an entity, durably and with immediate effect. Raises RequestError."""

        def decide(image: ClusterImage) -> list[QuotasPut]:
            present = image.quotas.get(entity, {})
            values = changed_values(entity, present, changes)
            return [] if values == present else [QuotasPut(entity=entity, values=values)]

        if check_only:
            decide(self._metadata.image)
        else:
            await self._metadata.propose(decide)

    def _observe(self, old: ClusterImage, new: ClusterImage) -> None:
        if new.quotas is not old.quotas:
            log.info("quotas changed entities=%d", len(new.quotas))
            self._hold(from_entities(new.quotas))

    def _settings_changed(self, before: Settings) -> None:
        """Measure over other windows from now on, starting at zero."""
        if before.clients != self._settings:
            self._rates.clear()

    def meter(self, caller: Caller, client_id: str, request_bytes: int, mute: Callable[[int], None]) -> "RequestMeter":
        """Return the meter of one request of a client. mute: stops reading from its connection for some ms."""
        return RequestMeter(self, self._clock, caller.principal.name, client_id, request_bytes, mute)

    def admits_connection(self, address: str) -> bool:
        """Return whether an address may open one more connection now; if so, the connection is counted."""
        if not self.in_force:
            return True
        limit = self.quotas.connection_limit(address)
        return limit is None or self.record_within(limit, 1, self._clock.steady_ms()) == 0

    def record(self, limit: Limit, amount: float, now_ms: int) -> int:
        """Count an amount. Returns the throttle time in ms."""
        return self._counted(limit, self.charge(limit, amount, now_ms))

    def record_within(self, limit: Limit, amount: float, now_ms: int) -> int:
        """Count an amount unless it exceeds the limit. Returns the throttle time in ms if it does."""
        rate = self._rate(limit.rate_key)
        excess_ms = rate.excess_ms(limit.per_second, now_ms, amount) if rate.total(now_ms) else 0
        if not excess_ms:
            rate.record(amount, now_ms)
        return self._counted(limit, excess_ms)

    def charge(self, limit: Limit, amount: float, now_ms: int) -> int:
        """Count an amount, but no throttled request. Returns the throttle time in ms for later requests."""
        rate = self._rate(limit.rate_key)
        rate.record(amount, now_ms)
        excess_ms = self._bounded(limit, rate.excess_ms(limit.per_second, now_ms))
        rate.exceeded_until_ms = max(rate.exceeded_until_ms, now_ms + excess_ms)
        return excess_ms

    def excess_ms(self, limit: Limit, now_ms: int) -> int:
        """Return the throttle time in ms, by the amounts counted so far."""
        excess_ms = self._rate(limit.rate_key).excess_ms(limit.per_second, now_ms)
        return self._counted(limit, self._bounded(limit, excess_ms))

    def wait_ms(self, limit: Limit, now_ms: int) -> int:
        """Return the rest of the throttle time of all clients that share a rate, or the debt of their bucket, in ms."""
        if limit.rate_key[0] == CONTROLLER_MUTATION_RATE:
            return self._counted(limit, self._filled(limit, now_ms).debt_ms(limit.per_second))
        return self._counted(limit, max(0, self._rate(limit.rate_key).exceeded_until_ms - now_ms))

    def take_tokens(self, limit: Limit, amount: int, now_ms: int, *, strict: bool) -> int:
        """Take tokens from a bucket. Returns the throttle time in ms.

        A strict request gets no tokens from a bucket in debt. Raises QuotaExceeded.
        """
        bucket = self._filled(limit, now_ms)
        debt_ms = bucket.debt_ms(limit.per_second)
        if not (strict and debt_ms):
            bucket.take(amount)
            return self._counted(limit, bucket.debt_ms(limit.per_second))
        self._counted(limit, debt_ms)
        raise QuotaExceeded(
            f"more partitions were created and deleted than {limit.rate_key[0]} allows: try again in {debt_ms} ms",
            debt_ms,
        )

    def window_amount(self, limit: Limit) -> int:
        """Return the largest amount that can be counted at once within the limit."""
        settings = self._settings
        return int(limit.per_second * settings.quota_window_seconds * (settings.quota_window_count - 1))

    @property
    def window_ms(self) -> int:
        return self._settings.quota_window_seconds * 1000

    def _bounded(self, limit: Limit, excess_ms: int) -> int:
        """Return a throttle time: for the time of requests, one window at most."""
        if limit.rate_key[0] == REQUEST_PERCENTAGE:
            return min(excess_ms, self.window_ms)
        return excess_ms

    def _filled(self, limit: Limit, now_ms: int) -> TokenBucket:
        bucket = _remembered(self._buckets, limit.rate_key, TokenBucket)
        bucket.fill(limit.per_second, self._settings.quota_window_count * self._settings.quota_window_seconds, now_ms)
        return bucket

    def _rate(self, key: RateKey) -> Rate:
        settings = self._settings
        make = partial(Rate, settings.quota_window_count, settings.quota_window_seconds * 1000)
        return _remembered(self._rates, key, make)

    def _counted(self, limit: Limit, throttle_ms: int) -> int:
        if throttle_ms:
            self.throttled[limit.rate_key[0]] += 1
        return throttle_ms

    def _hold(self, quotas: ClientQuotas) -> None:
        self.quotas = quotas
        self.in_force = bool(quotas.entities)
        for rate in self._rates.values():
            rate.exceeded_until_ms = 0  # By a limit that may have been raised.
        for table in (self._rates, self._buckets):
            for key in [rate_key for rate_key in table if rate_key[0] not in quotas.by_key]:
                del table[key]


def _remembered(table: "OrderedDict[RateKey, Kept]", key: RateKey, make: Callable[[], Kept]) -> Kept:
    """Return the entry of a key, created if missing, and marked as most recently used."""
    entry = table.get(key)
    if entry is None:
        if len(table) >= MAX_RATES:
            table.popitem(last=False)
        entry = table[key] = make()
    else:
        table.move_to_end(key)
    return entry


class RequestMeter:
    """One request under quotas. throttle_ms: the throttle time stated in its answer."""

    __slots__ = ("_client_id", "_clock", "_mute", "_quotas", "_request_bytes", "_user", "throttle_ms")

    def __init__(
        self, quotas: Quotas, clock: Clock, user: str, client_id: str, request_bytes: int, mute: Callable[[int], None]
    ) -> None:
        self._quotas = quotas
        self._clock = clock
        self._user = user
        self._client_id = client_id
        self._request_bytes = request_bytes
        self._mute = mute
        self.throttle_ms = 0

    def produced(self) -> None:
        """The request produces records: throttle its connection from now on if the quota is exceeded."""
        limit = self._quotas.quotas.limit(PRODUCER_BYTE_RATE, self._user, self._client_id)
        if limit is not None:
            self._throttle(self._quotas.record(limit, self._request_bytes, self._clock.steady_ms()))

    def max_fetch_bytes(self, wanted: int) -> int:
        """Return the most bytes worth reading of those wanted: an answer above the quota would be discarded."""
        limit = self._quotas.quotas.limit(CONSUMER_BYTE_RATE, self._user, self._client_id)
        return wanted if limit is None else min(wanted, self._quotas.window_amount(limit))

    def may_fetch(self, size: int) -> bool:
        """Return whether an answer with that many bytes of records may be sent. If not, it is sent empty."""
        self.answered()
        limit = self._quotas.quotas.limit(CONSUMER_BYTE_RATE, self._user, self._client_id)
        if limit is not None and self.throttle_ms == 0:
            self._throttle(self._quotas.record_within(limit, size, self._clock.steady_ms()))
        return self.throttle_ms == 0

    def mutated(self, partitions: int, *, strict: bool) -> None:
        """The request is about to create or delete that many partitions.

        Strict requests, whose version knows the error, are refused; other requests are carried out and throttled.
        Raises QuotaExceeded.
        """
        limit = self._quotas.quotas.limit(CONTROLLER_MUTATION_RATE, self._user, self._client_id)
        if limit is not None:
            try:
                throttle_ms = self._quotas.take_tokens(limit, partitions, self._clock.steady_ms(), strict=strict)
            except QuotaExceeded as error:
                self._throttle(error.wait_ms)
                raise
            self._throttle(throttle_ms)

    def answered(self) -> None:
        """An answer is about to be encoded: throttle the client by the time that its requests took."""
        limit = self._quotas.quotas.limit(REQUEST_PERCENTAGE, self._user, self._client_id)
        if limit is not None:
            self._throttle(self._quotas.excess_ms(limit, self._clock.steady_ms()))

    def worked(self, seconds: float) -> None:
        """Count the request's time of the interpreter. Its own answer is encoded by now: the next one is throttled."""
        limit = self._quotas.quotas.limit(REQUEST_PERCENTAGE, self._user, self._client_id)
        if limit is not None:
            self._quotas.charge(limit, seconds * 100, self._clock.steady_ms())

    def _throttle(self, throttle_ms: int) -> None:
        if throttle_ms:
            self.throttle_ms = max(self.throttle_ms, throttle_ms)
            self._mute(throttle_ms)
