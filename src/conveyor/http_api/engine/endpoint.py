"""An endpoint is a method, a path and a function whose signature declares the request and the response.

    async def create_topic(call: Call[NoQuery, NewTopic]) -> TopicDocument:

reads a JSON body of `NewTopic` and answers with a `TopicDocument`. The broker serves, and openapi.json shows, what is
made from these signatures: there is no second declaration. `bytes` for a body is the body as it came; None of a POST is
`NoBody`, else no body is looked at. An answer of None is 204, `Raw` is a body with a content type of its own.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar, get_args, get_type_hints

import msgspec

from conveyor.broker.broker_node import BrokerNode
from conveyor.http_api.engine.long_polls import LongPolls

Query = TypeVar("Query")
Body = TypeVar("Body")

JSON_BODY_BYTES = 1 << 20


class NoQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The endpoint takes no query parameters."""


class NoBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The endpoint takes no fields."""


@dataclass(frozen=True, slots=True)
class Door:
    """What endpoints work with. `network_probe`: counters of connections; `endpoints`: every endpoint of the API."""

    broker: BrokerNode
    network_probe: Any
    long_polls: LongPolls
    endpoints: "tuple[Endpoint, ...]"


@dataclass(frozen=True, slots=True)
class HttpCall(Generic[Query, Body]):
    """One request. `names`: the values of the names in braces in the path."""

    door: Door
    names: Mapping[str, str]
    headers: Mapping[str, str]
    query: Query
    body: Body

    @property
    def broker(self) -> BrokerNode:
        return self.door.broker


class Raw(NamedTuple):
    """A response that is not JSON, or has a status of its own."""

    body: bytes
    content_type: str
    status: int = 200


class Signature(NamedTuple):
    """The types of an endpoint's query, body and response."""

    query: type[msgspec.Struct]
    body: Any
    answer: Any


def json_limit(_broker: BrokerNode, _names: Mapping[str, str]) -> int:
    """The largest body of a request that carries no messages, in bytes."""
    return JSON_BODY_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """See the module's docstring.

    status: of success; also: others that answer with the same document.
    problems: statuses of failure, beyond those that every endpoint has.
    content_type: of the answer. takes_head: whether HEAD is answered, too. is_open: whether it needs no token.
    body_limit: bytes of a body at most. read: makes a long body into what the function takes, in steps that are short.
    headers: request headers that say something, with what they say.
    """

    method: str
    path: str
    function: Callable[[HttpCall[Any, Any]], Coroutine[Any, Any, Any]]
    status: int = 200
    also: tuple[int, ...] = ()
    problems: tuple[int, ...] = ()
    content_type: str = "application/json"
    takes_head: bool = True
    is_open: bool = False
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
    def is_carried_out(self) -> bool:
        """Whether a request runs to its end even if its client disconnects: one that changes something does."""
        return self.method != "GET"
