"""One REST request, as its endpoint gets it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from conveyor.broker.broker_node import BrokerNode
from conveyor.http.endpoints.endpoint import Endpoint
from conveyor.http.engine.exchange import Exchange
from conveyor.http.engine.response_budget import SMALL_BYTES
from conveyor.http_api.requests.long_polls import LongPolls

Query = TypeVar("Query")
Body = TypeVar("Body")
Document = TypeVar("Document")

_COPIES = 2
"""The messages, and the document that shows them."""


@dataclass(frozen=True, slots=True)
class Door:
    """The broker and the parts of the door that endpoints use. network_probe: counters of connections."""

    broker: BrokerNode
    network_probe: Any
    long_polls: LongPolls
    endpoints: tuple[Endpoint, ...]


class HttpCall(Generic[Query, Body]):
    """One request. caller: the client. names: the path parameters.

    Every request has one, and frozen dataclasses are made slowly.
    """

    __slots__ = ("body", "caller", "door", "exchange", "names", "query")

    def __init__(self, door: Door, exchange: Exchange, names: Mapping[str, str], query: Query, body: Body) -> None:
        self.door = door
        self.exchange = exchange
        self.caller = exchange.caller
        self.names = names
        self.query = query
        self.body = body

    @property
    def broker(self) -> BrokerNode:
        return self.door.broker

    async def show(self, weight_bytes: int, make: Callable[[], Document]) -> Document:
        """Make a document that shows messages of this weight; in a thread if it is large. Raises BudgetFull."""
        if weight_bytes <= SMALL_BYTES:
            return make()
        self.exchange.hold(_COPIES * weight_bytes)
        return await self.broker.slices.in_thread(make)
