"""An endpoint is a method, a path and a function whose signature declares the request and the response.

    async def create_topic(call: HttpCall[NoQuery, NewTopic]) -> TopicDocument:

reads a JSON body into `NewTopic` and responds with a `TopicDocument`. The signature is the only declaration: the
request reader and openapi.json are derived from it. A body type of `bytes` is the unparsed body. A body type of None is
`NoBody` for POST; other methods then ignore the body. A result of None is status 204; `Raw` sets its own content type.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar, get_args, get_type_hints

import msgspec

from conveyor.broker.broker_node import BrokerNode
from conveyor.http_api.engine.long_polls import LongPolls
from conveyor.http_api.engine.response_budget import SMALL_BYTES, ResponseShare

Query = TypeVar("Query")
Body = TypeVar("Body")
Document = TypeVar("Document")

JSON_BODY_BYTES = 1 << 20
_COPIES = 2
"""The messages, and the document that shows them."""


class NoQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The endpoint takes no query parameters."""


class NoBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The endpoint takes no fields."""


@dataclass(frozen=True, slots=True)
class Door:
    """The broker and the parts of the door that endpoints use. network_probe: counters of connections."""

    broker: BrokerNode
    network_probe: Any
    long_polls: LongPolls
    endpoints: "tuple[Endpoint, ...]"


@dataclass(frozen=True, slots=True)
class HttpCall(Generic[Query, Body]):
    """One request. names: the path parameters. share: the memory for the response."""

    door: Door
    names: Mapping[str, str]
    headers: Mapping[str, str]
    query: Query
    body: Body
    share: ResponseShare

    @property
    def broker(self) -> BrokerNode:
        return self.door.broker

    async def show(self, weight_bytes: int, make: Callable[[], Document]) -> Document:
        """Make a document that shows messages of this weight; in a thread if it is large. Raises BudgetFull."""
        if weight_bytes <= SMALL_BYTES:
            return make()
        self.share.hold(_COPIES * weight_bytes)
        return await self.broker.slices.in_thread(make)


class Raw(NamedTuple):
    """A response that is not JSON, or that sets its own status."""

    body: bytes
    content_type: str
    status: int = 200


class Signature(NamedTuple):
    """The types of an endpoint's query, body and response."""

    query: type[msgspec.Struct]
    body: Any
    answer: Any


def json_limit(_broker: BrokerNode, _names: Mapping[str, str]) -> int:
    """Return the limit for the body of a request without messages, in bytes."""
    return JSON_BODY_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """See the module's docstring.

    status: on success. other_statuses: those with the same document.
    problems: error statuses in addition to those of every endpoint.
    content_type: of the response. takes_head: whether HEAD is served too. is_public: whether no token is required.
    body_limit: largest body in bytes. read: parses a long body in short steps, so that other clients are served.
    headers: name and description of each request header.
    """

    method: str
    path: str
    function: Callable[[HttpCall[Any, Any]], Coroutine[Any, Any, Any]]
    status: int = 200
    other_statuses: tuple[int, ...] = ()
    problems: tuple[int, ...] = ()
    content_type: str = "application/json"
    takes_head: bool = True
    is_public: bool = False
    body_limit: Callable[[BrokerNode, Mapping[str, str]], int] = json_limit
    read: Callable[[bytes], Awaitable[Any]] | None = None
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def signature(self) -> Signature:
        hints = get_type_hints(self.function)
        query, body = get_args(hints["call"])
        if body is type(None):
            body = NoBody if self.method == "POST" else None
        return Signature(query, body, hints["return"])

    @property
    def runs_to_completion(self) -> bool:
        """Whether a request runs to completion even if its client disconnects, because it may change something."""
        return self.method != "GET"
