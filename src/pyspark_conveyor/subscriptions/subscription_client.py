"""Asks the REST API for leases, their extension and acknowledgements, for the reader."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from http.client import HTTPException
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen

from pyspark_conveyor.brokers.quota_waits import QuotaWaits
from pyspark_conveyor.pipeline_errors import PipelineError

_TIMEOUT_S = 60.0
_LEASED_AT_ONCE = 1000
_SETTLED_AT_ONCE = 1000


class MessageLease(NamedTuple):
    """A message and the id that acknowledges this lease of it."""

    partition: int
    offset: int
    ack_id: str


class SubscriptionClient:
    """One subscription at one address. token: sent with each request, unless it is None.

    A request over a quota is sent again when the broker says.
    """

    def __init__(self, address: str, subscription: str, token: str | None) -> None:
        self._address = address.rstrip("/")
        self._subscription = subscription
        self._token = token

    def topic(self) -> str:
        """Return the subscription's topic. Raises PipelineError if there is no such subscription."""
        return str(self._ask("")["topic"])

    def depth(self) -> int:
        """Return how many messages could be leased now."""
        return int(self._ask("")["depth"])

    def lease(self, most: int, visibility: str) -> list[MessageLease]:
        """Lease messages that are available now, up to a number. visibility: the length of a lease, such as 5m."""
        leased: list[MessageLease] = []
        while len(leased) < most:
            wanted = min(_LEASED_AT_ONCE, most - len(leased))
            query = urlencode({"max_messages": wanted, "visibility": visibility})
            messages = self._ask(f"/messages?{query}")["messages"]
            leased += [MessageLease(each["partition"], each["offset"], each["ack_id"]) for each in messages]
            if not messages:
                break
        return leased

    def acknowledge(self, ack_ids: Sequence[str]) -> int:
        """Settle messages. Returns how many were not, because their leases have ended; these are delivered again."""
        lost = 0
        for part in _parts(ack_ids):
            results = self._ask("/ack", {"ack_ids": part})["results"]
            lost += sum(result["status"] != "ok" for result in results)
        return lost

    def extend(self, ack_ids: Sequence[str], visibility: str) -> None:
        """Let leases last longer. Leases that have ended stay ended."""
        for part in _parts(ack_ids):
            self._ask("/extend", {"ack_ids": part, "visibility": visibility})

    def _ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        request = Request(  # noqa: S310 - the address was checked to be one of HTTP
            f"{self._address}/subscriptions/{quote(self._subscription, safe='')}{path}",
            data=None if body is None else json.dumps(body).encode(),
        )
        if self._token is not None:
            request.add_header("Authorization", f"Bearer {self._token}")
        waits = QuotaWaits()
        while True:
            try:
                with urlopen(request, timeout=_TIMEOUT_S) as response:  # noqa: S310 - the address was checked
                    return json.load(response)
            except HTTPError as error:
                with error:
                    detail = _detail(error.read())
                is_over = error.code == HTTPStatus.TOO_MANY_REQUESTS
                wait_s = waits.next_s(error.headers.get("Retry-After", "")) if is_over else None
                if wait_s is None:
                    raise PipelineError(f"subscription '{self._subscription}': {detail or error.reason}") from error
            except (OSError, HTTPException, ValueError) as error:
                raise PipelineError(f"no broker answers at {self._address}: {error}") from error
            time.sleep(wait_s)


def _parts(ack_ids: Sequence[str]) -> Iterator[list[str]]:
    for start in range(0, len(ack_ids), _SETTLED_AT_ONCE):
        yield list(ack_ids[start : start + _SETTLED_AT_ONCE])


def _detail(body: bytes) -> str:
    try:
        return str(json.loads(body)["detail"])
    except (ValueError, KeyError, TypeError):
        return ""
