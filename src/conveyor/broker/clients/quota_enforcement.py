"""Enforcing client quotas: rates, and for how long a client that was too fast is not listened to. Source: KIP-219.

A request is answered at once; the answer says how long the client is throttled, and the door takes no more requests
from its connection for that time.

    producer_byte_rate         bytes of Produce requests, counted when they arrive
    consumer_byte_rate         bytes of the records of Fetch answers; an answer that is too much goes out empty instead,
                               and is not counted
    request_percentage         time on the event loop, of all requests; at most a second of throttling at a time
    controller_mutation_rate   partitions made and deleted: a bucket of tokens, as `token_bucket` has it
    connection_creation_rate   connections from an address; one too many is closed, and is not counted

A rate is what was counted in the present window and the full windows before it, over their time. Whoever had nothing
counted in all of them is not held back by one large fetch: else a batch larger than all windows allow would never be
read.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from conveyor.broker.clients.token_bucket import TokenBucket
from conveyor.cluster.quotas import (
    ANONYMOUS,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    QUOTAS_PATH,
    REQUEST_PERCENTAGE,
    ClientQuotas,
    Limit,
    QuotaChange,
    QuotaEntity,
    RateKey,
    changed_values,
    decode_entity,
    decode_values,
    encode_values,
    entity_path,
    from_entities,
)
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure, metadata_failure
from conveyor.kernel.ports import ABSENT, Clock, MetadataStore, Versioned
from conveyor.settings.tree import ClientSettings

log = logging.getLogger(__name__)

MAX_RATES = 50_000
"""Rates remembered; the longest unused goes first. Client ids are the clients' own: there may be any number."""

Kept = TypeVar("Kept")

_MAX_INT32 = (1 << 31) - 1


class Rate:
    """What was counted in the last windows. Time is passed in, in ms."""

    __slots__ = ("_samples", "_window_count", "_window_ms")

    def __init__(self, window_count: int, window_ms: int) -> None:
        self._window_count = window_count
        self._window_ms = window_ms
        self._samples: deque[list[float]] = deque()  # Each: from when, until when, how much.

    def record(self, amount: float, now_ms: int) -> None:
        samples = self._samples
        if not samples or now_ms - samples[-1][0] >= self._window_ms:
            samples.append([now_ms, now_ms, 0.0])
        samples[-1][1] = now_ms
        samples[-1][2] += amount

    def total(self, now_ms: int) -> float:
        """What was counted; older windows are forgotten."""
        samples = self._samples
        while samples and now_ms - samples[0][1] >= self._window_count * self._window_ms:
            samples.popleft()
        return sum(each[2] for each in samples)

    def excess_ms(self, per_second: float, now_ms: int, more: float = 0) -> int:
        """How long from now the rate comes down to a limit, if nothing but `more` is counted; 0 if it is within."""
        total = self.total(now_ms) + more
        elapsed_ms = now_ms - self._samples[0][0] if self._samples else 0
        missing = self._window_count - 1 - elapsed_ms // self._window_ms
        elapsed_ms += max(0, missing) * self._window_ms
        return max(0, round(min(_MAX_INT32, total / per_second * 1000 - elapsed_ms)))


class Quotas:
    """The quotas of the metadata store, and the rates of this broker's clients. `load` before anything else."""

    def __init__(self, store: MetadataStore, clock: Clock, settings: ClientSettings) -> None:
        self.quotas = ClientQuotas()
        self.in_force = False
        """Whether there are any quotas: while there are none, nothing is measured."""
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
        """How often each kind of quota has held somebody back."""
        self._store = store
        self._clock = clock
        self._settings = settings
        self._rates: OrderedDict[RateKey, Rate] = OrderedDict()
        self._buckets: OrderedDict[RateKey, TokenBucket] = OrderedDict()
        self._one_change = asyncio.Lock()

    async def load(self) -> None:
        """Take the quotas of the metadata store. Raises StorageFailure."""
        nodes = await self._store.tree(QUOTAS_PATH)
        self._hold(from_entities({decode_entity(path): decode_values(node.value) for path, node in nodes.items()}))

    async def alter(self, entity: QuotaEntity, changes: Sequence[QuotaChange], *, check_only: bool = False) -> None:
        """Change some quotas of an entity, at once and durably. Raises RequestError."""
        async with self._one_change:
            try:
                node = await self._store.get(entity_path(entity))
                present = {} if node is None else decode_values(node.value)
                values = changed_values(entity, present, changes)
                if check_only or values == present:
                    return
                written = await self._write(entity, values, node)
            except StorageFailure as failure:
                raise metadata_failure(failure) from failure
            if not written:
                raise RequestError(ErrorKind.CLUSTER_CHANGED, "these quotas were changed at the same time: try again")
            self._hold(self.quotas.with_entity(entity, values))
            log.info("quotas changed entity=%s values=%s", entity_path(entity), values)

    def use(self, settings: ClientSettings) -> None:
        """Measure over other windows from now on; what was counted in the old ones is forgotten."""
        if settings != self._settings:
            self._settings = settings
            self._rates.clear()

    def meter(self, client_id: str, request_bytes: int, mute: Callable[[int], None]) -> "RequestMeter":
        """What measures one request of a client. `mute` takes no more requests from its connection for some ms."""
        return RequestMeter(self, self._clock, client_id, request_bytes, mute)

    def admits_connection(self, address: str) -> bool:
        """Whether an address may open one more connection now; if so it is counted."""
        if not self.in_force:
            return True
        limit = self.quotas.connection_limit(address)
        return limit is None or self.record_within(limit, 1, self._clock.steady_ms()) == 0

    def limit(self, key: str, client_id: str) -> Limit | None:
        """What holds for a client."""
        return self.quotas.limit(key, ANONYMOUS, client_id)

    def record(self, limit: Limit, amount: float, now_ms: int) -> int:
        """Count, and return for how many ms the client is throttled."""
        rate = self._rate(limit.rate_key)
        rate.record(amount, now_ms)
        return self._counted(limit, rate.excess_ms(limit.per_second, now_ms))

    def record_within(self, limit: Limit, amount: float, now_ms: int) -> int:
        """Count if it is not too much; if it is, return for how many ms the client is throttled."""
        rate = self._rate(limit.rate_key)
        excess_ms = rate.excess_ms(limit.per_second, now_ms, amount) if rate.total(now_ms) else 0
        if not excess_ms:
            rate.record(amount, now_ms)
        return self._counted(limit, excess_ms)

    def record_only(self, limit: Limit, amount: float, now_ms: int) -> None:
        """Count what is held against the client later, by `excess_ms`."""
        self._rate(limit.rate_key).record(amount, now_ms)

    def excess_ms(self, limit: Limit, now_ms: int) -> int:
        """For how many ms the client is throttled, by what was counted so far."""
        return self._counted(limit, self._rate(limit.rate_key).excess_ms(limit.per_second, now_ms))

    def take_tokens(self, limit: Limit, amount: int, now_ms: int, *, strict: bool) -> int:
        """Take tokens of a bucket, and return for how many ms the client is throttled.

        A bucket that is in debt gives a strict request none. Raises RequestError (THROTTLING_QUOTA_EXCEEDED).
        """
        bucket = _remembered(self._buckets, limit.rate_key, TokenBucket)
        bucket.fill(limit.per_second, self._settings.quota_window_count * self._settings.quota_window_seconds, now_ms)
        debt_ms = bucket.debt_ms(limit.per_second)
        if not (strict and debt_ms):
            bucket.take(amount)
            return self._counted(limit, bucket.debt_ms(limit.per_second))
        self._counted(limit, debt_ms)
        raise RequestError(
            ErrorKind.THROTTLING_QUOTA_EXCEEDED,
            f"more partitions made and deleted than {limit.rate_key[0]} allows: try again in {debt_ms} ms",
        )

    def token_debt_ms(self, limit: Limit) -> int:
        """For how long a bucket, as it was last, is in debt."""
        return _remembered(self._buckets, limit.rate_key, TokenBucket).debt_ms(limit.per_second)

    def window_amount(self, limit: Limit) -> int:
        """The most that can be counted at once without going beyond the limit."""
        settings = self._settings
        return int(limit.per_second * settings.quota_window_seconds * (settings.quota_window_count - 1))

    @property
    def window_ms(self) -> int:
        return self._settings.quota_window_seconds * 1000

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
        for table in (self._rates, self._buckets):
            for key in [each for each in table if each[0] not in quotas.by_key]:
                del table[key]

    async def _write(self, entity: QuotaEntity, values: dict[str, float], node: Versioned | None) -> bool:
        path, version = entity_path(entity), ABSENT if node is None else node.version
        if not values:
            return await self._store.delete(path, version)
        return await self._store.put(path, encode_values(values), version) is not None


def _remembered(table: "OrderedDict[RateKey, Kept]", key: RateKey, make: Callable[[], Kept]) -> Kept:
    """What is known of a key; it is the last to be forgotten now."""
    found = table.get(key)
    if found is None:
        if len(table) >= MAX_RATES:
            table.popitem(last=False)
        found = table[key] = make()
    else:
        table.move_to_end(key)
    return found


class RequestMeter:
    """One request under quotas. `throttle_ms`: what its answer says."""

    __slots__ = ("_client_id", "_clock", "_mute", "_quotas", "_request_bytes", "throttle_ms")

    def __init__(
        self, quotas: Quotas, clock: Clock, client_id: str, request_bytes: int, mute: Callable[[int], None]
    ) -> None:
        self._quotas = quotas
        self._clock = clock
        self._client_id = client_id
        self._request_bytes = request_bytes
        self._mute = mute
        self.throttle_ms = 0

    def produced(self) -> None:
        """The request brings records. What follows it on its connection waits from now on, if it has to."""
        limit = self._quotas.limit(PRODUCER_BYTE_RATE, self._client_id)
        if limit is not None:
            self._throttle(self._quotas.record(limit, self._request_bytes, self._clock.steady_ms()))

    def max_fetch_bytes(self, wanted: int) -> int:
        """How much of what is wanted may be read: more than the windows allow would only be thrown away."""
        limit = self._quotas.limit(CONSUMER_BYTE_RATE, self._client_id)
        return wanted if limit is None else min(wanted, self._quotas.window_amount(limit))

    def may_fetch(self, size: int) -> bool:
        """Whether an answer with that many bytes of records may go out. If not, it goes out empty."""
        self.answered()
        limit = self._quotas.limit(CONSUMER_BYTE_RATE, self._client_id)
        if limit is not None and self.throttle_ms == 0:
            self._throttle(self._quotas.record_within(limit, size, self._clock.steady_ms()))
        return self.throttle_ms == 0

    def mutated(self, partitions: int, *, strict: bool) -> None:
        """The request is about to make or delete so many partitions.

        Strict requests, those of versions that know the error, are refused; what others ask for is done, and they wait.
        Raises RequestError (THROTTLING_QUOTA_EXCEEDED).
        """
        limit = self._quotas.limit(CONTROLLER_MUTATION_RATE, self._client_id)
        if limit is not None:
            try:
                throttle_ms = self._quotas.take_tokens(limit, partitions, self._clock.steady_ms(), strict=strict)
            except RequestError:
                self._throttle(self._quotas.token_debt_ms(limit))
                raise
            self._throttle(throttle_ms)

    def answered(self) -> None:
        """An answer is about to be made: it says what the time of the client's requests has come to."""
        limit = self._quotas.limit(REQUEST_PERCENTAGE, self._client_id)
        if limit is not None:
            throttle_ms = self._quotas.excess_ms(limit, self._clock.steady_ms())
            self._throttle(min(throttle_ms, self._quotas.window_ms))

    def worked(self, seconds: float) -> None:
        """The request took this much of the event loop's time. Its own answer is made by now: the next one says."""
        limit = self._quotas.limit(REQUEST_PERCENTAGE, self._client_id)
        if limit is not None:
            self._quotas.record_only(limit, seconds * 100, self._clock.steady_ms())

    def _throttle(self, throttle_ms: int) -> None:
        if throttle_ms:
            self.throttle_ms = max(self.throttle_ms, throttle_ms)
            self._mute(throttle_ms)
