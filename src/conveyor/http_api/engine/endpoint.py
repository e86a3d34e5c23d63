"""What an endpoint is: a method, a path, and a function. The function's signature says what is read and answered.

    async def create_topic(call: Call[NoQuery, NewTopic]) -> TopicDocument:

reads a JSON body of `NewTopic` and answers with a `TopicDocument`. The broker serves, and openapi.json shows, what is
made from these signatures: there is no second declaration. `bytes` for a body is the body as it came; None of a POST is
`NoBody`, else no body is looked at. An answer of None is 204, `Raw` is a body with a content type of its own.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar, get_args, get_type_hints

import msgspec

from conveyor.broker.broker_node import Broker
from conveyor.http_api.engine.long_polls import Polls

Query = TypeVar("Query")
Body = TypeVar("Body")

JSON_BODY_BYTES = 1 << 20


class NoQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """No query parameters are known."""


class NoBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """No fields are known."""


@dataclass(frozen=True, slots=True)
class Door:
    """What the endpoints serve from. `network_probe`: counters of the connections; `endpoints`: all there are."""

    broker: Broker
    network_probe: Any
    polls: Polls
    endpoints: "tuple[Endpoint, ...]"


@dataclass(frozen=True, slots=True)
class Call(Generic[Query, Body]):
    """One request. `names`: what stands in the path's braces."""

    door: Door
    names: Mapping[str, str]
    headers: Mapping[str, str]
    query: Query
    body: Body

    @property
    def broker(self) -> Broker:
        return self.door.broker


class Raw(NamedTuple):
    """An answer that is not JSON, or not always 200."""

    body: bytes
    content_type: str
    status: int = 200


class Signature(NamedTuple):
    """What a function reads and answers."""

    query: type[msgspec.Struct]
    body: Any
    answer: Any


def json_limit(_broker: Broker, _names: Mapping[str, str]) -> int:
    """Bytes of a request's body that carries no messages."""
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
    function: Callable[[Call[Any, Any]], Coroutine[Any, Any, Any]]
    status: int = 200
    also: tuple[int, ...] = ()
    problems: tuple[int, ...] = ()
    content_type: str = "application/json"
    takes_head: bool = True
    is_open: bool = False
    body_limit: Callable[[Broker, Mapping[str, str]], int] = json_limit
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
        """Whether a request is worked on to its end though its client has gone: what changes something is."""
        return self.method != "GET"
