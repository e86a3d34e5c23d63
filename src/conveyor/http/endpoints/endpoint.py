"""An endpoint is a method, a path and a function whose signature declares the request and the response.

    async def create_topic(call: HttpCall[NoQuery, NewTopic]) -> TopicDocument:

reads a JSON body into `NewTopic` and responds with a `TopicDocument`. The signature is the only declaration: the
request reader and openapi.json are derived from it. A body type of `bytes` is the unparsed body. A body type of None is
`NoBody` for POST; other methods then ignore the body. A query type of `AnyQuery` is every parameter as it was sent. A
result of None is status 204; `Raw` sets its own content type.
`HttpCall` is the door's own type for a request.

A function that is no coroutine replies by a callback, so that no task is created for a request:

    def acknowledge(call: HttpCall[NoQuery, Targets], reply: Responder[SettledList]) -> None:

It calls `reply` once, at once or later, or raises. For a request that takes long it may return a coroutine instead,
whose result is the response.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import Any, NamedTuple, Protocol, TypeVar, get_args, get_type_hints

import msgspec

from conveyor.http.engine.exchange import Exchange
from conveyor.http.engine.http_response import Response
from conveyor.kernel.access.declared_access import Needs

Document = TypeVar("Document", contravariant=True)

JSON_BODY_BYTES = 1 << 20
_MESSAGES_WEIGHT = 3
LONG_BODY_BYTES = 64 << 10
"""A longer body may take more than one tick of the event loop."""


class Responder(Protocol[Document]):
    """Sends the response to one request."""

    def __call__(
        self, answer: Any, make: Callable[[Any], Document | Coroutine[Any, Any, Document]] | None = None
    ) -> None:
        """Respond with a document or a RequestError. The caller gets no exception, whatever is wrong with them.

        answer: may be a coroutine that makes the document. make: makes the document of any other answer than an error,
        or returns a coroutine that does.
        """


class NoQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The endpoint takes no query parameters."""


class AnyQuery(msgspec.Struct, frozen=True):
    """The query parameters, whatever their names. values: those of each name, in their order."""

    values: Mapping[str, list[str]] = {}


class NoBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The endpoint takes no fields."""


class Raw(NamedTuple):
    """A response that is not JSON, or that sets its own status or headers."""

    body: bytes
    content_type: str
    status: int = 200
    headers: Mapping[str, str] | None = None


class Signature(NamedTuple):
    """The types of an endpoint's query, body and response."""

    query: type[msgspec.Struct]
    body: Any
    answer: Any


def json_limit(_context: Any, _names: Mapping[str, str]) -> int:
    """Return the limit for the body of a request without messages, in bytes."""
    return JSON_BODY_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """See the module's docstring.

    needs: the rights for a request. They name resources by path parameters, by fields of the body (`body.name`), and by
    what the door knows of a resource (`subscription.topic`).
    status: on success. other_statuses: those with the same document.
    problems: error statuses in addition to those of every endpoint.
    content_type: of the response. takes_head: whether HEAD is served too. is_public: whether no token is required.
    body_limit: largest body in bytes, for the context of the door and the path parameters.
    read: parses a body of more than `LONG_BODY_BYTES` in short steps, so that other clients are served.
    headers: name and description of each request header.
    quotas: what its requests count for besides their time; over a quota they are refused. is_limited: whether they
    count for quotas at all.
    verifies_signatures: whether its function itself refuses a request whose signature is wrong: one that names a key
    comes to it without a login.
    problem_form: makes the response to a refused or failed request from a problem document, for clients of a protocol
    that has its own form of errors.
    """

    method: str
    path: str
    needs: Needs
    function: Callable[..., Any]
    status: int = 200
    other_statuses: tuple[int, ...] = ()
    problems: tuple[int, ...] = ()
    content_type: str = "application/json"
    takes_head: bool = True
    is_public: bool = False
    body_limit: Callable[[Any, Mapping[str, str]], int] = json_limit
    read: Callable[[bytes], Awaitable[Any]] | None = None
    headers: tuple[tuple[str, str], ...] = ()
    quotas: tuple[str, ...] = ()
    is_limited: bool = True
    verifies_signatures: bool = False
    problem_form: Callable[[Exchange, Response], Response] | None = None

    @property
    def weight(self) -> int:
        """Memory for each byte of a body. Messages are kept as texts, whose characters may take four bytes each, and as
        they are stored.
        """
        return 1 if self.read is None else _MESSAGES_WEIGHT

    @property
    def signature(self) -> Signature:
        hints = get_type_hints(self.function, include_extras=True)
        query, body = get_args(hints["call"])
        if body is type(None):
            body = NoBody if self.method == "POST" else None
        answer = get_args(hints["reply"])[0] if self.replies else hints["return"]
        return Signature(query, body, answer)

    @property
    def replies(self) -> bool:
        """True if the function replies by a callback."""
        return not iscoroutinefunction(self.function)
