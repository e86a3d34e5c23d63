"""The REST application: the table of endpoints, and what the broker decides about each request."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.clients.connection_counts import ConnectionOwner
from conveyor.broker.clients.request_admission import AdmittedRequest
from conveyor.http.endpoints import browsers
from conveyor.http.endpoints.endpoint import Endpoint
from conveyor.http.endpoints.endpoint_application import EndpointApplication, busy
from conveyor.http.engine.cross_origin import Origins
from conveyor.http.engine.exchange import Exchange, Service
from conveyor.http.engine.http_response import DateHeader, Response
from conveyor.http.engine.problems import make_problem, problem_of, problem_response
from conveyor.http.engine.site import HttpProtocol, Site
from conveyor.http_api.http_call import Door, HttpCall
from conveyor.http_api.ops import description, health
from conveyor.http_api.request_rights import RequestRights
from conveyor.http_api.requests.logins import Logins, TooManyLogins
from conveyor.http_api.requests.long_polls import LongPolls
from conveyor.http_api.requests.tokens import Tokens
from conveyor.http_api.rest import (
    dead_letter_endpoints,
    lease_endpoints,
    message_endpoints,
    publish_endpoints,
    schedule_endpoints,
    scheduled_endpoints,
    seek_endpoints,
    settlement_endpoints,
    subscription_endpoints,
    topic_endpoints,
    transaction_endpoints,
)
from conveyor.http_api.sqs import sqs_endpoints
from conveyor.http_api.sqs.signed_requests import SignedRequests
from conveyor.kernel.access.caller import ANONYMOUS
from conveyor.kernel.access.refusal_log import RefusalLog
from conveyor.kernel.errors import ErrorKind, InconsistentState, RequestError

log = logging.getLogger(__name__)

ENDPOINTS: tuple[Endpoint, ...] = (
    *topic_endpoints.ENDPOINTS,
    *publish_endpoints.ENDPOINTS,
    *transaction_endpoints.ENDPOINTS,
    *message_endpoints.ENDPOINTS,
    *subscription_endpoints.ENDPOINTS,
    *lease_endpoints.ENDPOINTS,
    *scheduled_endpoints.ENDPOINTS,
    *settlement_endpoints.ENDPOINTS,
    *seek_endpoints.ENDPOINTS,
    *dead_letter_endpoints.ENDPOINTS,
    *schedule_endpoints.ENDPOINTS,
    *health.ENDPOINTS,
    *description.ENDPOINTS,
)
"""Those of the REST API, which openapi.json describes."""
ALL_ENDPOINTS: tuple[Endpoint, ...] = (*ENDPOINTS, *sqs_endpoints.ENDPOINTS)
_HEALTH_PATHS = frozenset(endpoint.path for endpoint in health.ENDPOINTS)
_OWN_PATHS = _HEALTH_PATHS | {endpoint.path for endpoint in description.ENDPOINTS}
"""Those that a broker serves by itself, whatever happens to its cluster."""


class RestDoor:
    """The decisions of a broker about REST requests. See `HttpDoor`."""

    text_hint = (
        ": the request headers Conveyor-Key, Conveyor-Tag, Conveyor-Dedup-Id and Conveyor-Header take any bytes for a"
        " message"
    )

    def __init__(self, broker: BrokerNode, network_probe: Any, tokens: Tokens) -> None:
        self.broker = broker
        self.network_probe = network_probe
        self.quotas = broker.clients.quotas
        self._tokens = tokens
        self._logins = Logins(broker.clients, broker.clock) if broker.settings.network.http_users else None
        listed = broker.settings.network.cors_origins
        self.origins = Origins(listed) if listed else None
        self.rights = None if broker.clients.access.rules is None else RequestRights(broker)
        self.long_polls = LongPolls()
        keys, is_open = tokens.access_keys, self._logins is None
        self._signed = SignedRequests(keys, broker.clients.credentials, broker.clock) if keys and not is_open else None
        self._door = Door(broker, network_probe, self.long_polls, ENDPOINTS, self.rights, self._signed)

    @property
    def is_guarded(self) -> bool:
        """Whether clients have to prove who they are, or that they may connect."""
        return bool(self._tokens) or self._logins is not None

    @property
    def max_receive_ms(self) -> int:
        return self.broker.settings.network.max_receive_ms

    def refusal(
        self, exchange: Exchange, endpoint: Endpoint | None
    ) -> Response | Coroutine[Any, Any, Response | None] | None:
        if endpoint is None:
            return None
        request, is_guarded = exchange.request, self.is_guarded
        if self._tokens and self._tokens.admit(request):
            exchange.known()
            return self._refusal_now(exchange, endpoint)
        if is_guarded and endpoint.is_public:
            return self._refusal_now(exchange, endpoint)
        reason = browsers.refusal(
            request,
            is_public=endpoint.is_public,
            is_guarded=is_guarded,
            is_listed=self.origins is not None and self.origins.lists(request),
        )
        if reason is not None:
            return problem_response(make_problem("foreign_origin", 403, reason))
        if is_guarded and exchange.caller.principal == ANONYMOUS:
            if self._logins is None:
                return self._unauthorized()
            if endpoint.verifies_signatures and self._signed is not None and self._signed.claims(exchange):
                return self._refusal_now(exchange, endpoint)
            user = self._logins.known(request)
            if user is None:
                return self._log_in(exchange, endpoint, self._logins)
            exchange.authenticated(user)
        return self._refusal_now(exchange, endpoint)

    async def _log_in(self, exchange: Exchange, endpoint: Endpoint, logins: Logins) -> Response | None:
        try:
            user = await logins.check(exchange.request, exchange.caller)
        except TooManyLogins:
            return busy()
        if user is None:
            return self._unauthorized()
        exchange.authenticated(user)
        return self._refusal_now(exchange, endpoint)

    def _refusal_now(self, exchange: Exchange, endpoint: Endpoint) -> Response | None:
        """Return the response to a request that cannot be served now, whoever asks."""
        if exchange.memory.is_full and endpoint.path not in _HEALTH_PATHS:
            return busy()
        reason = self.broker.liveness.isolation.reason
        if reason is not None and endpoint.path not in _OWN_PATHS:
            error = RequestError(ErrorKind.METADATA_UNAVAILABLE, f"{reason}: use another broker, or retry later")
            return problem_response(problem_of(error), {"Retry-After": "1"})
        return None

    def _unauthorized(self) -> Response:
        if self._logins is None:
            detail = "this broker requires a token: send the header 'Authorization: Bearer <token>'"
            challenge = 'Bearer realm="conveyor"'
        else:
            detail, challenge = self._logins.challenge
        return problem_response(make_problem("unauthorized", 401, detail), {"WWW-Authenticate": challenge})

    def meter(self, exchange: Exchange, endpoint: Endpoint, query: Mapping[str, list[str]]) -> AdmittedRequest | None:
        if not endpoint.is_limited:
            return None
        client_id = query.get("client_id", ("",))[0]
        request = AdmittedRequest(self.quotas, self.broker.clock, exchange.caller.principal.name, client_id)
        request.check(endpoint.quotas)
        return request

    def body_limit(self, endpoint: Endpoint, names: Mapping[str, str]) -> int:
        return endpoint.body_limit(self.broker, names)

    def call(self, exchange: Exchange, names: Mapping[str, str], query: Any, body: Any) -> HttpCall[Any, Any]:
        return HttpCall(self._door, exchange, names, query, body)

    async def in_thread(self, work: Callable[[], bytes], exchange: Exchange) -> bytes:
        return await self.broker.slices.in_thread(work, exchange.meter)

    def bug(self, error: Exception) -> None:
        """Log a bug. It stops the broker only if it may have changed state in part."""
        log.error("request failed", exc_info=error)
        if isinstance(error, InconsistentState):
            asyncio.get_running_loop().call_exception_handler({"message": "a request failed", "exception": error})


class OperationsDoor(RestDoor):
    """Serves connections beyond the limit, and those to a stopping broker: only the operators' endpoints."""

    def __init__(self, broker: BrokerNode, network_probe: Any, tokens: Tokens, max_connections: int) -> None:
        super().__init__(broker, network_probe, tokens)
        self._max_connections = max_connections

    def refusal(
        self, exchange: Exchange, endpoint: Endpoint | None
    ) -> Response | Coroutine[Any, Any, Response | None] | None:
        if endpoint is not None:
            return super().refusal(exchange, endpoint)
        if self.broker.liveness.is_stopping:
            problem = make_problem(
                "stopping", 503, "the broker is stopping: use another broker, or retry later", retriable=True
            )
        else:
            self.network_probe.connections_refused += 1
            reason = f"more than {self._max_connections} connections (network.max_http_connections)"
            log.warning("connection closed caller=%s reason=%s", exchange.caller, reason)
            problem = make_problem("too_many_connections", 503, f"{reason}: close some, or retry later", retriable=True)
        return problem_response(problem, {"Retry-After": "1"}, closes=True)


class RestSite(Site):
    """The connections of a door."""

    def __init__(self, door: RestDoor, idle_s: float) -> None:
        endpoints = health.ENDPOINTS if isinstance(door, OperationsDoor) else ALL_ENDPOINTS
        broker = door.broker
        application = EndpointApplication(endpoints, door)
        clients, date = broker.clients, DateHeader(broker.clock)
        super().__init__(
            Service(application, clients.request_budget, date, idle_s, clients.connection_numbers, door.origins)
        )
        self._long_polls, self._is_guarded = door.long_polls, door.is_guarded
        self._counts = broker.clients.connection_counts
        self._quotas = broker.clients.quotas
        self._probe, self._crowds = door.network_probe, RefusalLog()
        broker.clients.credentials.changed.listen(self._log_out)

    def admits(self, limit: int) -> bool:
        """Return whether one more connection is below the limit. The oldest stranger makes room for it, if clients have
        to prove who they are: where they need not, any stranger may be somebody's client.
        """
        return self.make_room(limit) if self._is_guarded else self.connection_count < limit

    def entered(self, protocol: HttpProtocol) -> None:
        """Close the connection if its address has too many, or opens them too fast."""
        address = protocol.http.caller.address
        crowd = self._counts.enter(ConnectionOwner.ADDRESS, address)
        if crowd is None and not self._quotas.admits_connection(address):
            crowd = f"more connections a second from {address} than its quota (connection_creation_rate)"
        if crowd is not None:
            self._probe.connections_refused += 1
            level = self._crowds.level(asyncio.get_running_loop().time())
            log.log(level, "connection closed caller=%s reason=%s", protocol.http.caller, crowd)
            protocol.abort()

    def left(self, protocol: HttpProtocol) -> None:
        self._counts.leave(ConnectionOwner.ADDRESS, protocol.http.caller.address)

    def _log_out(self, users: frozenset[str]) -> None:
        """Disconnect users who are gone, or have another password, and wait for an answer."""
        for protocol in list(self._connections):
            protocol.http.log_out(users)

    async def finish_requests(self, seconds: float) -> None:
        """See `Site.finish_requests`. Requests that wait for messages are answered at once."""
        self._long_polls.stop()
        await super().finish_requests(seconds)
