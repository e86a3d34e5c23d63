"""The HTTP application: the table of endpoints, and the steps that serve a request.

There is no middleware: one function for each endpoint authenticates the client, reads the request, calls the endpoint
and sends the response. If the client disconnects, a request that changes something still runs to completion; one that
only reads or waits is cancelled.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import msgspec
from aiohttp import HttpVersion11, web

from conveyor.broker.broker_node import BrokerNode
from conveyor.http_api.engine import browsers, description
from conveyor.http_api.engine.endpoint import Door, Endpoint, HttpCall, Raw
from conveyor.http_api.engine.long_polls import LongPolls
from conveyor.http_api.engine.problems import make_problem, no_path, problem_of, problem_response
from conveyor.http_api.engine.requests_in_progress import RequestsInProgress
from conveyor.http_api.engine.response_budget import BudgetFull, ResponseBudget, ResponseShare
from conveyor.http_api.ops import health
from conveyor.http_api.requests.content_encoding import ENCODINGS
from conveyor.http_api.requests.request_reader import body_parser, check_target, query_reader, read_body
from conveyor.http_api.requests.tokens import Tokens
from conveyor.http_api.rest import (
    dead_letter_endpoints,
    lease_endpoints,
    message_endpoints,
    publish_endpoints,
    schedule_endpoints,
    seek_endpoints,
    settlement_endpoints,
    subscription_endpoints,
    topic_endpoints,
    transaction_endpoints,
)
from conveyor.kernel.errors import ErrorKind, InconsistentState, RequestError

log = logging.getLogger(__name__)

ENDPOINTS: tuple[Endpoint, ...] = (
    *topic_endpoints.ENDPOINTS,
    *publish_endpoints.ENDPOINTS,
    *transaction_endpoints.ENDPOINTS,
    *message_endpoints.ENDPOINTS,
    *subscription_endpoints.ENDPOINTS,
    *lease_endpoints.ENDPOINTS,
    *settlement_endpoints.ENDPOINTS,
    *seek_endpoints.ENDPOINTS,
    *dead_letter_endpoints.ENDPOINTS,
    *schedule_endpoints.ENDPOINTS,
    *health.ENDPOINTS,
    *description.ENDPOINTS,
)
_OWN_ENDPOINTS = (*health.ENDPOINTS, *description.ENDPOINTS)
"""Those that a broker serves by itself, whatever happens to its cluster."""

Handler = Callable[[web.Request], Awaitable[web.Response]]
_JSON = {"Content-Type": "application/json"}
_REFUSAL_HEADERS = {
    ErrorKind.CONCURRENT_TRANSACTIONS: {"Retry-After": "1"},
    ErrorKind.METADATA_UNAVAILABLE: {"Retry-After": "1"},
    ErrorKind.NOT_ENOUGH_REPLICAS: {"Retry-After": "1"},
    ErrorKind.NOT_ENOUGH_REPLICAS_AFTER_APPEND: {"Retry-After": "1"},
    ErrorKind.THROTTLING_QUOTA_EXCEEDED: {"Retry-After": "1"},
    ErrorKind.TRANSACTION_OUTCOME_UNKNOWN: {"Retry-After": "1"},
    ErrorKind.UNSUPPORTED_COMPRESSION: {"Accept-Encoding": ", ".join(ENCODINGS)},
}
_encode = msgspec.json.Encoder().encode


def make_application(broker: BrokerNode, network_probe: Any, tokens: Tokens | None = None) -> web.Application:
    """Make an application for one broker."""
    return _make(ENDPOINTS, _no_endpoint, broker, network_probe, tokens or Tokens())


def make_operations_application(
    broker: BrokerNode, network_probe: Any, max_connections: int, tokens: Tokens
) -> web.Application:
    """Make the application for connections beyond the limit. It serves only the operators' endpoints."""

    async def refuse(request: web.Request) -> web.Response:
        if broker.is_stopping:
            problem = make_problem(
                "stopping", 503, "the broker is stopping: use another broker, or retry later", retriable=True
            )
        else:
            network_probe.connections_refused += 1
            reason = f"more than {max_connections} connections (network.max_http_connections)"
            log.warning("connection closed peer=%s reason=%s", request.remote, reason)
            detail = f"{reason}: close some, or retry later"
            problem = make_problem("too_many_connections", 503, detail, retriable=True)
        response = problem_response(problem, {"Retry-After": "1"})
        response.force_close()
        return response

    return _make(health.ENDPOINTS, refuse, broker, network_probe, tokens)


def _make(
    endpoints: Iterable[Endpoint], otherwise: Handler, broker: BrokerNode, network_probe: Any, tokens: Tokens
) -> web.Application:
    application = web.Application()
    long_polls, response_budget, in_progress = LongPolls(), ResponseBudget(), RequestsInProgress()
    application.on_shutdown.extend((long_polls.stop, in_progress.finish))
    door = Door(broker, network_probe, long_polls, ENDPOINTS)
    for endpoint in endpoints:
        handler = _bind(endpoint, door, tokens, response_budget, in_progress)
        application.router.add_route(endpoint.method, endpoint.path, handler, expect_handler=_answer_expect)
        if endpoint.method == "GET" and endpoint.takes_head:
            application.router.add_route("HEAD", endpoint.path, handler, expect_handler=_answer_expect)
    application.router.add_route("*", "/{path:.*}", otherwise, expect_handler=_answer_expect)
    return application


def _bind(
    endpoint: Endpoint, door: Door, tokens: Tokens, response_budget: ResponseBudget, in_progress: RequestsInProgress
) -> Handler:
    """Return the function that serves the requests of one endpoint."""
    signature = endpoint.signature
    read_query = query_reader(signature.query)
    parse = None if signature.body is None else body_parser(signature.body)
    function, limit = endpoint.function, endpoint.body_limit

    async def call(request: web.Request, share: ResponseShare) -> Any:
        _check_place(door.broker, endpoint)
        check_target(request.raw_path)
        if parse is None:
            return await work(request, None, share)
        limit_bytes = limit(door.broker, request.match_info)
        async with AsyncExitStack() as shares:
            content = await read_body(request, limit_bytes, door.broker, shares)
            body = parse(content) if endpoint.read is None else await endpoint.read(content)
            return await work(request, body, share)

    async def work(request: web.Request, body: Any, share: ResponseShare) -> Any:
        arguments: HttpCall[Any, Any] = HttpCall(
            door, request.match_info, request.headers, read_query(request.query), body, share
        )
        answer = function(arguments)
        return await (run_to_completion(answer) if endpoint.runs_to_completion else answer)

    async def serve(request: web.Request) -> web.Response:
        refused = _refused_unread(request, endpoint, tokens, response_budget)
        if refused is not None:
            return refused
        with ResponseShare(response_budget) as share:
            try:
                with in_progress.track():
                    answer = await call(request, share)
                response = await _response(endpoint.status, answer, share, door.broker)
            except RequestError as error:
                return _refusal(error)
            except BudgetFull:
                return _busy()
            except Exception as error:  # noqa: BLE001 - a bug of this request
                return _bug(error)
            return await share.send(request, response)

    return serve


def _refused_unread(
    request: web.Request, endpoint: Endpoint, tokens: Tokens, response_budget: ResponseBudget
) -> web.Response | None:
    """Return the response to a request that is refused, whatever it asks for; None if it is not."""
    if not endpoint.is_public and not tokens.admit(request.headers):
        return _unauthorized()
    if not tokens and (refusal := browsers.refusal(request.headers, is_public=endpoint.is_public)) is not None:
        return problem_response(make_problem("foreign_origin", 403, refusal))
    return _busy() if response_budget.is_full and endpoint not in health.ENDPOINTS else None


def _check_place(broker: BrokerNode, endpoint: Endpoint) -> None:
    """Refuse a request that needs the cluster while this broker is cut off from it. Raises RequestError."""
    reason = broker.isolation.reason
    if reason is not None and endpoint not in _OWN_ENDPOINTS:
        raise RequestError(ErrorKind.METADATA_UNAVAILABLE, f"{reason}: use another broker, or retry later")


async def run_to_completion(work: Coroutine[Any, Any, Any]) -> Any:
    """Run the work to completion, and report its bugs, even if the caller is cancelled."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_report_bug)
        raise


def _refusal(error: RequestError) -> web.Response:
    response = problem_response(problem_of(error), _REFUSAL_HEADERS.get(error.kind))
    if error.kind is ErrorKind.REQUEST_TOO_SLOW:
        response.force_close()
    return response


def _report_bug(task: "asyncio.Task[Any]") -> None:
    error = None if task.cancelled() else task.exception()
    if isinstance(error, Exception) and not isinstance(error, RequestError):
        _bug(error)


async def _response(status: int, answer: Any, share: ResponseShare, broker: BrokerNode) -> web.Response:
    if answer is None:
        return web.Response(status=204)
    if isinstance(answer, Raw):
        return web.Response(status=answer.status, body=answer.body, headers={"Content-Type": answer.content_type})
    body = await broker.slices.in_thread(partial(_encode, answer)) if share.held_bytes else _encode(answer)
    return web.Response(status=status, body=body, headers=_JSON)


def _unauthorized() -> web.Response:
    detail = "this broker requires a token: send the header 'Authorization: Bearer <token>'"
    return problem_response(make_problem("unauthorized", 401, detail), {"WWW-Authenticate": 'Bearer realm="conveyor"'})


def _busy() -> web.Response:
    detail = "unread responses use all the memory for responses: retry later"
    return problem_response(make_problem("busy", 503, detail, retriable=True))


def _bug(error: Exception) -> web.Response:
    """Log a bug. It stops the broker only if it may have changed state in part."""
    log.error("request failed", exc_info=error)
    if isinstance(error, InconsistentState):
        asyncio.get_running_loop().call_exception_handler({"message": "a request failed", "exception": error})
    return problem_response(make_problem("internal_error", 500, "a bug: see the traceback in the broker's log"))


async def _answer_expect(request: web.Request) -> web.Response | None:
    """Answer `Expect` before the body arrives: 100 to ask for it, or 417 (RFC 9110, 10.1.1)."""
    expected = request.headers["Expect"]
    if expected.lower() != "100-continue":
        detail = f"'Expect: {expected}' is not supported: send 100-continue, or leave the header out"
        return problem_response(make_problem("expectation_failed", 417, detail))
    if request.version == HttpVersion11:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # So that aiohttp does not take the response as begun.
    return None


async def _no_endpoint(request: web.Request) -> web.Response:
    """Answer 404, or 405 if the path supports other methods."""
    allowed: set[str] = set()
    for resource in request.app.router.resources():
        methods = (await resource.resolve(request))[1]
        allowed |= methods - {"*"}
    if not allowed:
        return problem_response(no_path(request.path))
    methods_taken = ", ".join(sorted(allowed))
    detail = f"{request.path} does not support {request.method}: use {methods_taken}"
    return problem_response(make_problem("method_not_allowed", 405, detail), {"Allow": methods_taken})
