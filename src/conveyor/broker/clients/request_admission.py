"""One request of a door that refuses requests over a quota, as HTTP has it, instead of delaying them.

A request that comes while its client is over a quota that it counts for is refused before anything is done. A request
that goes over a quota is served, and later ones are refused for the throttle time, as long as Kafka's would wait.

    producer_byte_rate         the most bytes that published messages take in a batch, before they are appended
    consumer_byte_rate         the same of the messages in an answer, when it is made
    request_percentage         time of all requests on the event loop, and of threads that decode and encode them;
                               refuses for at most a window at a time
    controller_mutation_rate   partitions created and deleted
"""

from collections.abc import Sequence
from math import ceil

from conveyor.broker.clients.quota_enforcement import Quotas
from conveyor.cluster.quotas import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    Limit,
)
from conveyor.kernel.errors import QuotaExceeded
from conveyor.kernel.ports import Clock


class AdmittedRequest:
    """See the module's docstring."""

    __slots__ = ("_client_id", "_clock", "_quotas", "_user")

    def __init__(self, quotas: Quotas, clock: Clock, user: str, client_id: str) -> None:
        self._quotas = quotas
        self._clock = clock
        self._user = user
        self._client_id = client_id

    def check(self, keys: Sequence[str]) -> None:
        """Raise QuotaExceeded if the client is over its quota of time, or one of these."""
        for key in (REQUEST_PERCENTAGE, *keys):
            limit = self._limit(key)
            wait_ms = 0 if limit is None else self._quotas.wait_ms(limit, self._clock.steady_ms())
            if wait_ms:
                raise QuotaExceeded(f"the quota {key} is exceeded: retry in {ceil(wait_ms / 1000)} s", wait_ms)

    def produced(self, size_bytes: int) -> None:
        """The client publishes messages of this size."""
        self._charge(PRODUCER_BYTE_RATE, size_bytes)

    def consumed(self, size_bytes: int) -> None:
        """The client gets messages of this size."""
        self._charge(CONSUMER_BYTE_RATE, size_bytes)

    def worked(self, seconds: float) -> None:
        """The request took this time of the interpreter."""
        self._charge(REQUEST_PERCENTAGE, seconds * 100)

    def mutated(self, partitions: int) -> None:
        """The request is about to create or delete that many partitions. Raises QuotaExceeded."""
        limit = self._limit(CONTROLLER_MUTATION_RATE)
        if limit is not None:
            self._quotas.take_tokens(limit, partitions, self._clock.steady_ms(), strict=True)

    def _charge(self, key: str, amount: float) -> None:
        limit = self._limit(key)
        if limit is not None:
            self._quotas.charge(limit, amount, self._clock.steady_ms())

    def _limit(self, key: str) -> Limit | None:
        return self._quotas.quotas.limit(key, self._user, self._client_id)
