"""The HTTP application: the table of endpoints, and how a request is served.

No middleware: every endpoint is bound to one function that admits, reads, calls and answers. What changes something is
carried out to its end, though its client has gone; what only waits is given up.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec
from aiohttp import HttpVersion11, web

from conveyor.broker.broker import Broker
from conveyor.http_api import (
    browsers,
    control,
    dead_letters,
    description,
    health,
    leases,
    messages,
    publishing,
    schedules,
    settling,
    subscriptions,
    topics,
)
from conveyor.http_api.answers import Answers
from conveyor.http_api.endpoint import Call, Door, Endpoint, Raw
from conveyor.http_api.polls import Polls
from conveyor.http_api.problems import make_problem, problem_of, problem_response
from conveyor.http_api.reading import body_parser, query_reader, read_body
from conveyor.http_api.tokens import Tokens
from conveyor.http_api.unpacking import ENCODINGS
from conveyor.kernel.errors import ErrorKind, RequestError

ENDPOINTS: tuple[Endpoint, ...] = (
    *topics.ENDPOINTS,
    *publishing.ENDPOINTS,
    *messages.ENDPOINTS,
    *subscriptions.ENDPOINTS,
    *leases.ENDPOINTS,
    *settling.ENDPOINTS,
    *control.ENDPOINTS,
    *dead_letters.ENDPOINTS,
    *schedules.ENDPOINTS,
    *health.ENDPOINTS,
    *description.ENDPOINTS,
)

Handler = Callable[[web.Request], Awaitable[web.Response]]
_JSON = {"Content-Type": "application/json"}
_TOLD_WITH = {ErrorKind.UNSUPPORTED_COMPRESSION: {"Accept-Encoding": ", ".join(ENCODINGS)}}
_encode = msgspec.json.Encoder().encode


def make_application(broker: Broker, network_probe: Any, tokens: Tokens | None = None) -> web.Application:
    """An application over one broker."""
    application = web.Application()
    polls, answers = Polls(), Answers()
    application.on_shutdown.append(polls.stop)
    door = Door(broker, network_probe, polls, ENDPOINTS)
    for endpoint in ENDPOINTS:
        handler = _bind(endpoint, door, tokens or Tokens(), answers)
        application.router.add_route(endpoint.method, endpoint.path, handler, expect_handler=_expected)
        if endpoint.method == "GET" and endpoint.takes_head:
            application.router.add_route("HEAD", endpoint.path, handler, expect_handler=_expected)
    application.router.add_route("*", "/{path:.*}", _no_endpoint, expect_handler=_expected)
    return application


def _bind(endpoint: Endpoint, door: Door, tokens: Tokens, answers: Answers) -> Handler:
    """The function that serves an endpoint's requests."""
    signature = endpoint.signature
    read_query = query_reader(signature.query)
    parse = None if signature.body is None else body_parser(signature.body)
    function, limit = endpoint.function, endpoint.body_limit

    async def call(request: web.Request) -> Any:
        body = None
        if parse is not None:
            body = parse(await read_body(request, limit(door.broker, request.match_info)))
        arguments: Call[Any, Any] = Call(door, request.match_info, request.headers, read_query(request.query), body)
        work = function(arguments)
        return await (carry_out(work) if endpoint.is_carried_out else work)

    async def serve(request: web.Request) -> web.Response:
        if not endpoint.is_open and not tokens.admit(request.headers):
            return _unauthorized()
        if not tokens and (refusal := browsers.refusal(request.headers, is_open=endpoint.is_open)) is not None:
            return problem_response(make_problem("foreign_origin", 403, refusal))
        if answers.is_full and not endpoint.is_open:
            return _busy()
        try:
            answer = await call(request)
        except RequestError as error:
            return problem_response(problem_of(error), _TOLD_WITH.get(error.kind))
        except Exception as error:  # noqa: BLE001 - a bug: the client is told, and the broker stops rather than guess
            return _bug(error)
        return await answers.send(request, _response(endpoint.status, answer))

    return serve


async def carry_out(work: Coroutine[Any, Any, Any]) -> Any:
    """Work on to the end, even if the caller is cancelled; a bug is told then as well."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_tell_bug)
        raise


def _tell_bug(task: "asyncio.Task[Any]") -> None:
    error = None if task.cancelled() else task.exception()
    if isinstance(error, Exception) and not isinstance(error, RequestError):
        _bug(error)


def _response(status: int, answer: Any) -> web.Response:
    if answer is None:
        return web.Response(status=204)
    if isinstance(answer, Raw):
        return web.Response(status=answer.status, body=answer.body, headers={"Content-Type": answer.content_type})
    return web.Response(status=status, body=_encode(answer), headers=_JSON)


def _unauthorized() -> web.Response:
    detail = "this broker takes requests with one of its tokens only: send the header 'Authorization: Bearer <token>'"
    return problem_response(make_problem("unauthorized", 401, detail), {"WWW-Authenticate": 'Bearer realm="conveyor"'})


def _busy() -> web.Response:
    detail = "clients do not read their answers, and these take all the memory there is for them: ask again"
    return problem_response(make_problem("busy", 503, detail, retriable=True))


def _bug(error: Exception) -> web.Response:
    asyncio.get_running_loop().call_exception_handler({"message": "a request failed", "exception": error})
    return problem_response(make_problem("internal_error", 500, "a bug: the broker's log has its trace"))


async def _expected(request: web.Request) -> web.Response | None:
    """What is answered before a body is sent: 100, after which it is read, or 417 (RFC 9110, 10.1.1)."""
    expected = request.headers["Expect"]
    if expected.lower() != "100-continue":
        detail = f"'Expect: {expected}' cannot be met: send 100-continue, or no such header"
        return problem_response(make_problem("expectation_failed", 417, detail))
    if request.version == HttpVersion11:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # The answer has not begun.
    return None


async def _no_endpoint(request: web.Request) -> web.Response:
    """404, or 405 where the path takes other methods."""
    allowed: set[str] = set()
    for resource in request.app.router.resources():
        methods = (await resource.resolve(request))[1]
        allowed |= methods - {"*"}
    if not allowed:
        detail = f"there is nothing at {request.path}: GET /docs shows what there is"
        return problem_response(make_problem("not_found", 404, detail))
    methods_taken = ", ".join(sorted(allowed))
    detail = f"{request.path} does not take {request.method}: it takes {methods_taken}"
    return problem_response(make_problem("method_not_allowed", 405, detail), {"Allow": methods_taken})
