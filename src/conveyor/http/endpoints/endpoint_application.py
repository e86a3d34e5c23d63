"""Serves requests with the functions of endpoints: look-up, refusals, body, query, call, response.

A coroutine runs in a task, which goes on if its client disconnects. A function that replies by a callback needs none.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from math import ceil
from time import perf_counter
from types import CoroutineType
from typing import Any, Protocol

import msgspec

from conveyor.http.endpoints.content_encoding import (
    ENCODINGS,
    SMALL_PACKED_BYTES,
    decompress,
    encoding_of,
)
from conveyor.http.endpoints.document_pieces import encode_in_pieces
from conveyor.http.endpoints.endpoint import LONG_BODY_BYTES, Endpoint, Raw
from conveyor.http.endpoints.metered_work import MeteredWork
from conveyor.http.endpoints.preflight import LOGIN, preflight_response, request_headers
from conveyor.http.endpoints.request_reader import body_parser, query_reader
from conveyor.http.endpoints.router import Router, parse_query, split_target
from conveyor.http.engine.cross_origin import Origins
from conveyor.http.engine.exchange import Exchange
from conveyor.http.engine.http_response import Response
from conveyor.http.engine.problems import CONTENT_TYPE as PROBLEM_TYPE
from conveyor.http.engine.problems import make_problem, no_path, problem_of, problem_response
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.access.declared_access import Access, AnyOf, Needs
from conveyor.kernel.attempts import attempt
from conveyor.kernel.errors import ErrorKind, QuotaExceeded, RequestError
from conveyor.kernel.response_budget import BudgetFull

_REFUSAL_HEADERS = {
    ErrorKind.CONCURRENT_TRANSACTIONS: {"Retry-After": "1"},
    ErrorKind.METADATA_UNAVAILABLE: {"Retry-After": "1"},
    ErrorKind.NOT_ENOUGH_REPLICAS: {"Retry-After": "1"},
    ErrorKind.NOT_ENOUGH_REPLICAS_AFTER_APPEND: {"Retry-After": "1"},
    ErrorKind.THROTTLING_QUOTA_EXCEEDED: {"Retry-After": "1"},
    ErrorKind.TRANSACTION_OUTCOME_UNKNOWN: {"Retry-After": "1"},
    ErrorKind.UNSUPPORTED_COMPRESSION: {"Accept-Encoding": ", ".join(ENCODINGS)},
}
_IGNORED_BODY_BYTES = 64 << 10
"""Limit of a body that an endpoint ignores. It needs no share of the memory for requests."""
_encode = msgspec.json.Encoder().encode


class HttpDoor(Protocol):
    """The decisions of a door about its endpoints."""

    text_hint: str
    """Says how else to send text that is not UTF-8."""

    @property
    def max_receive_ms(self) -> int:
        """The longest time in which the body of a request may arrive."""

    @property
    def origins(self) -> Origins | None:
        """Those of other sites whose pages may use the API; None if there are none."""

    @property
    def quotas(self) -> "InForce":
        """Whether requests have to be metered."""

    @property
    def rights(self) -> "Rights | None":
        """The check of clients' rights; None if everybody may do everything."""

    def refusal(
        self, exchange: Exchange, endpoint: Endpoint | None
    ) -> Response | Coroutine[Any, Any, Response | None] | None:
        """Return the response to a request that is refused, whatever it asks for; a coroutine if that takes time.

        endpoint: None if no one has it. Then it takes no time.
        """

    def meter(self, exchange: Exchange, endpoint: Endpoint, query: Mapping[str, list[str]]) -> Any:
        """Return what counts a request for the quotas of its client, with a method `worked` for seconds on the event
        loop; None if nothing does.

        Called while quotas are in force. Raises RequestError if the client is over one.
        """

    def body_limit(self, endpoint: Endpoint, names: Mapping[str, str]) -> int:
        """Return the largest body in bytes."""

    def call(self, exchange: Exchange, names: Mapping[str, str], query: Any, body: Any) -> Any:
        """Return the argument of an endpoint's function."""

    async def in_thread(self, work: Callable[[], bytes], exchange: Exchange) -> bytes:
        """Do long work for a request in a thread."""

    def bug(self, error: Exception) -> None:
        """Note a bug in an endpoint."""


class InForce(Protocol):
    """The quotas of a door."""

    in_force: bool
    """Whether there are any."""


class Rights(Protocol):
    """Decides whether clients have the rights that their requests need."""

    def check(
        self, caller: Caller, request: str, needs: Needs, names: Mapping[str, str], *, is_noted: bool = True
    ) -> None:
        """Raise RequestError if a client lacks a right on what the path parameters name.

        request: the method and the path of the endpoint. is_noted: whether the audit hears of what is allowed. A
        request may be checked several times.
        """

    def check_body(self, caller: Caller, request: str, needs: Needs, body: Any) -> Coroutine[Any, Any, None] | None:
        """Raise RequestError if a client lacks a right on what the body names. Returns a coroutine that goes on if it
        names much.
        """


class EndpointApplication:
    """See the module's docstring. The `Application` of a `Service`."""

    def __init__(self, endpoints: Iterable[Endpoint], door: HttpDoor) -> None:
        self.door = door
        self._tasks: dict[asyncio.Task[Any], Callable[[asyncio.Task[Any]], None]] = {}
        self._router: Router[_Compiled] = Router(
            (method, endpoint.path, compiled)
            for endpoint in endpoints
            for compiled in [_Compiled(endpoint)]
            for method in _methods(endpoint)
        )

    @property
    def max_receive_ms(self) -> int:
        return self.door.max_receive_ms

    def open(self, exchange: Exchange) -> None:
        """See `Application.open`."""
        call = (MeteredCall if self.door.quotas.in_force else RoutedCall)(self, exchange)
        attempt(call.fail, call.open)

    def serve(self, exchange: Exchange) -> None:
        """See `Application.serve`."""
        call = exchange.route
        assert isinstance(call, RoutedCall), "it is set when the request is opened"
        attempt(call.fail, call.serve)

    def route(self, exchange: Exchange, path: str) -> "tuple[_Compiled, Mapping[str, str]] | Response":
        """Return the endpoint and the path parameters, or the refusal of a request that no endpoint takes."""
        request = exchange.request
        found = self._router.find(path, request.method)
        if not isinstance(found, list):
            return found
        refused = self.door.refusal(exchange, None)
        if isinstance(refused, Response):
            return refused
        if not found:
            return problem_response(no_path(path))
        origins = self.door.origins
        if origins is not None and origins.is_preflight(request):
            wanted = self._router.find(path, request.header(b"access-control-request-method") or "")
            return preflight_response(found, LOGIN if isinstance(wanted, list) else wanted[0].request_headers)
        methods = ", ".join(found)
        detail = f"{path} does not support {request.method}: use {methods}"
        return problem_response(make_problem("method_not_allowed", 405, detail), {"Allow": methods})

    def start(self, work: Coroutine[Any, Any, Any], done: Callable[["asyncio.Task[Any]"], None]) -> None:
        """Run work in a task. done: called with the task when it has ended."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = done
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.pop(task)(task)

    async def close(self) -> None:
        """Cancel the requests in progress, whose connections are closed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class RoutedCall:
    """The call of one endpoint for one exchange."""

    __slots__ = (
        "_application", "_compiled", "_encoding", "_exchange", "_is_answered", "_names", "_problem_form", "_query",
        "_start",
    )  # fmt: skip

    def __init__(self, application: EndpointApplication, exchange: Exchange) -> None:
        self._application = application
        self._start = application.start
        self._exchange = exchange
        self._is_answered = False
        self._problem_form: Callable[[Exchange, Response], Response] | None = None

    @property
    def name(self) -> str:
        """The method and the path of the endpoint, such as `DELETE /topics/{topic}`."""
        return self._compiled.name

    def open(self) -> None:
        """Refuse the request, or prepare for its body."""
        exchange, application = self._exchange, self._application
        request, door = exchange.request, application.door
        path, query = split_target(request.target)
        try:
            found = application.route(exchange, path)
            self._query = parse_query(query) if query else {}
        except RequestError as error:
            raise RequestError(error.kind, f"{error.message}{door.text_hint}") from error
        if isinstance(found, Response):
            return self._reply(found)
        self._compiled, self._names = found
        self._problem_form = self._compiled.endpoint.problem_form
        refused = door.refusal(exchange, self._compiled.endpoint)
        if refused is None:
            self._admit()
        elif isinstance(refused, Response):
            self._reply(refused)
        else:
            exchange.is_admitted = False
            application.start(refused, self._decided)

    def _decided(self, task: "asyncio.Task[Response | None]") -> None:
        """Refuse or admit a request whose client may have left meanwhile."""
        if self._exchange.is_over:
            return
        error = _error(task)
        if error is not None:
            return self.fail(error)
        refused = task.result()
        if refused is not None:
            return self._reply(refused)
        attempt(self.fail, self._admit)
        self._exchange.admit()

    def _admit(self) -> None:
        """Prepare for the body of a request."""
        exchange, door, endpoint = self._exchange, self._application.door, self._compiled.endpoint
        exchange.route = self
        self._encoding = None
        if self._compiled.parse is None:
            exchange.limits.most_bytes = _IGNORED_BODY_BYTES
            return
        self._check(is_noted=False)
        exchange.limits.most_bytes = limit = door.body_limit(endpoint, self._names)
        self._encoding = encoding_of(exchange.request)
        body_bytes = exchange.request.content_length or limit
        exchange.limits.share_bytes = endpoint.weight * body_bytes
        if self._encoding is not None:
            exchange.limits.free_bytes = SMALL_PACKED_BYTES
            exchange.limits.share_bytes = endpoint.weight * limit + body_bytes

    def serve(self) -> None:
        """Call the endpoint with the complete body."""
        compiled, body = self._compiled, self._exchange.request.body
        if compiled.parse is None:
            return self._call(None)
        if compiled.endpoint.read is not None and self._encoding is None and self._exchange.memory.share is None:
            self._exchange.memory.weigh((compiled.endpoint.weight - 1) * len(body))
        if self._encoding is not None or (len(body) > LONG_BODY_BYTES and compiled.endpoint.read is not None):
            return self._start(self._read(body), self._read_ended)
        self._call(compiled.parse(body))

    def finish(self, answer: Any, make: Callable[[Any], Any] | None = None) -> None:
        """See `Responder`."""
        attempt(self.fail, self._respond, answer, make)

    def fail(self, error: Exception) -> None:
        """Respond with a problem. Any other exception than a RequestError or a BudgetFull is a bug."""
        if isinstance(error, RequestError):
            response = problem_response(problem_of(error), _refusal_headers(error))
        elif isinstance(error, BudgetFull):
            response = busy()
        else:
            self._application.door.bug(error)
            detail = "a bug: see the traceback in the broker's log"
            response = problem_response(make_problem("internal_error", 500, detail))
        if not self._is_answered:
            self._exchange.withdraw()
            self._reply(response)

    async def _read(self, body: bytes) -> Any:
        """Decompress and parse a body. A large one is decompressed in a thread."""
        compiled = self._compiled
        assert compiled.parse is not None, "the endpoint takes a body"
        if self._encoding is not None:
            work = partial(decompress, body, self._encoding, self._exchange.limits.most_bytes)
            is_small = len(body) <= SMALL_PACKED_BYTES
            body = work() if is_small else await asyncio.get_running_loop().run_in_executor(None, work)
            if is_small:  # Otherwise it has a share for what it contains.
                self._exchange.memory.weigh(compiled.endpoint.weight * len(body))
        read = compiled.endpoint.read
        if read is None or len(body) <= LONG_BODY_BYTES:
            return compiled.parse(body)
        return await read(body)

    def _read_ended(self, task: "asyncio.Task[Any]") -> None:
        if (error := _error(task)) is not None:
            return self.finish(error)
        attempt(self.fail, self._call, task.result())

    def _call(self, body: Any, *, is_checked: bool = False) -> None:
        """Call the endpoint if the client has the rights. Those that may have gone while the body came are checked
        again.
        """
        application, compiled = self._application, self._compiled
        rights = application.door.rights
        if rights is not None and not is_checked:
            caller = self._exchange.caller
            self._check(is_noted=True)
            needs = compiled.needs_of_body
            checking = rights.check_body(caller, compiled.name, needs, body) if needs else None
            if checking is not None:
                return self._start(checking, partial(self._checked, body))
        query = compiled.read_query(self._query)
        call = application.door.call(self._exchange, self._names, query, body)
        work = compiled.function(call, self.finish) if compiled.replies else compiled.function(call)
        if work is not None:
            self._start(work, self._ended)

    def _check(self, *, is_noted: bool) -> None:
        """Raise RequestError if the client lacks a right on what the path names. is_noted: see `Rights.check`."""
        rights, compiled = self._application.door.rights, self._compiled
        if rights is not None:
            caller = self._exchange.caller
            rights.check(caller, compiled.name, compiled.needs_of_path, self._names, is_noted=is_noted)

    def _checked(self, body: Any, task: "asyncio.Task[None]") -> None:
        if (error := _error(task)) is not None:
            return self.fail(error)
        attempt(self.fail, partial(self._call, is_checked=True), body)

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        error = _error(task)
        self.finish(task.result() if error is None else error)

    def _respond(self, answer: Any, make: Callable[[Any], Any] | None) -> None:
        if isinstance(answer, Exception):
            return self.fail(answer)
        if make is not None:
            answer = make(answer)
        if isinstance(answer, CoroutineType):
            return self._start(answer, self._ended)
        compiled = self._compiled
        if compiled.endpoint.method == "GET":  # It may have waited.
            self._check(is_noted=False)
        if answer is None:
            self._reply(Response(204))
        elif isinstance(answer, Raw):
            self._reply(Response(answer.status, answer.body, answer.content_type, answer.headers))
        elif self._exchange.memory.held_bytes:
            encode = partial(encode_in_pieces, answer)
            self._application.start(self._application.door.in_thread(encode, self._exchange), self._encoded)
        else:
            self._reply(Response(compiled.endpoint.status, _encode(answer)))

    def _encoded(self, task: "asyncio.Task[bytes]") -> None:
        error = _error(task)
        if error is not None:
            return self.fail(error)
        self._reply(Response(self._compiled.endpoint.status, task.result()))

    def _reply(self, response: Response) -> None:
        self._is_answered = True
        if self._problem_form is not None and response.content_type == PROBLEM_TYPE:
            response = self._problem_form(self._exchange, response)
        self._exchange.reply(response)


class MeteredCall(RoutedCall):
    """A call whose time on the event loop counts for quotas of its client."""

    __slots__ = ("_is_timed",)

    def __init__(self, application: EndpointApplication, exchange: Exchange) -> None:
        super().__init__(application, exchange)
        self._start = self._start_metered
        self._is_timed = False

    def _admit(self) -> None:
        exchange = self._exchange
        exchange.meter = self._application.door.meter(exchange, self._compiled.endpoint, self._query)
        super()._admit()

    def serve(self) -> None:
        self._timed(super().serve)

    def finish(self, answer: Any, make: Callable[[Any], Any] | None = None) -> None:
        self._timed(super().finish, answer, make)

    def _timed(self, work: Callable[..., None], *arguments: Any) -> None:
        """Do a part of the work, which may finish the call within."""
        meter = self._exchange.meter
        if meter is None or self._is_timed:
            return work(*arguments)
        self._is_timed, began = True, perf_counter()
        try:
            work(*arguments)
        finally:
            self._is_timed = False
            meter.worked(perf_counter() - began)

    def _start_metered(self, work: Coroutine[Any, Any, Any], done: Callable[["asyncio.Task[Any]"], None]) -> None:
        meter = self._exchange.meter
        self._application.start(work if meter is None else MeteredWork(work, meter.worked), done)


class _Compiled:
    """An endpoint with the parsers for its requests."""

    def __init__(self, endpoint: Endpoint) -> None:
        signature = endpoint.signature
        self.endpoint = endpoint
        self.function = endpoint.function
        self.replies = endpoint.replies
        self.name = f"{endpoint.method} {endpoint.path}"
        self.needs_of_path = tuple(need for need in endpoint.needs if not _is_of_body(need))
        self.needs_of_body = tuple(filter(_is_of_body, endpoint.needs))
        self.request_headers = request_headers(endpoint)
        self.read_query = query_reader(signature.query)
        self.parse = None if signature.body is None else body_parser(signature.body)


def _refusal_headers(error: RequestError) -> Mapping[str, str] | None:
    if isinstance(error, QuotaExceeded):
        return {"Retry-After": str(max(1, ceil(error.wait_ms / 1000)))}
    return _REFUSAL_HEADERS.get(error.kind)


def busy() -> Response:
    """Return the response to a request whose response would not fit into memory."""
    detail = "unread responses use all the memory for responses: retry later"
    return problem_response(make_problem("busy", 503, detail, retriable=True))


def _is_of_body(need: Access | AnyOf) -> bool:
    """Return whether a need names a field of the body."""
    accesses = need.alternatives if isinstance(need, AnyOf) else (need,)
    return any(path.startswith("body.") for access in accesses for path in access.named_by)


def _methods(endpoint: Endpoint) -> tuple[str, ...]:
    return ("GET", "HEAD") if endpoint.method == "GET" and endpoint.takes_head else (endpoint.method,)


def _error(task: "asyncio.Task[Any]") -> Exception | None:
    """Return why a task has no result. One is cancelled only when the connections are closed."""
    if task.cancelled():
        return RequestError(ErrorKind.REQUEST_TIMED_OUT, "the broker has stopped")
    error = task.exception()
    assert error is None or isinstance(error, Exception), "asyncio raises other exceptions itself"
    return error
