"""One REST request, as its endpoint gets it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, TypeVar

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.produce.outgoing_message import OutgoingMessage, max_size_bytes
from conveyor.http.endpoints.endpoint import Endpoint
from conveyor.http.endpoints.endpoint_application import RoutedCall
from conveyor.http.engine.exchange import Exchange
from conveyor.http_api.request_rights import RequestRights
from conveyor.http_api.requests.long_polls import LongPolls
from conveyor.http_api.sqs.signed_requests import SignedRequests
from conveyor.kernel.access.acl import AclOperation, ResourceType
from conveyor.kernel.access.declared_access import Needs
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.response_budget import SMALL_BYTES
from conveyor.records.message import Message

Query = TypeVar("Query")
Body = TypeVar("Body")
Document = TypeVar("Document")
Named = TypeVar("Named")

_COPIES = 2
"""The messages, and the document that shows them."""


@dataclass(frozen=True, slots=True)
class Door:
    """The broker and the parts of the door that endpoints use.

    network_probe: counters of connections. rights: None if everybody may do everything. signed_requests: None if nobody
    logs in by signatures.
    """

    broker: BrokerNode
    network_probe: Any
    long_polls: LongPolls
    endpoints: tuple[Endpoint, ...]
    rights: RequestRights | None
    signed_requests: SignedRequests | None = None


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

    def may(self, operation: AclOperation, resource_type: ResourceType, name: str) -> bool:
        """Return whether the client may do something with a resource."""
        return self.broker.clients.access.allows(self.caller, operation, resource_type, name)

    async def permitted(
        self,
        operation: AclOperation,
        resource_type: ResourceType,
        items: Iterable[Named],
        name_of: Callable[[Any], str] = attrgetter("name"),
    ) -> list[Named]:
        """Return the items with whose resources the client may do something: an answer leaves out the others."""
        if self.door.rights is None:
            return list(items)
        in_turns = self.broker.slices.each(items)
        return [item async for item in in_turns if self.may(operation, resource_type, name_of(item))]

    def check_again(self, needs: Needs) -> None:
        """Raise RequestError if the client has lost a right meanwhile, or its login. The needs name resources by the
        path.
        """
        if self.exchange.is_logged_out:
            raise RequestError(ErrorKind.CLUSTER_AUTHORIZATION_FAILED, "the credential of the user has changed")
        route = self.exchange.route
        if self.door.rights is not None and isinstance(route, RoutedCall):
            self.door.rights.check(self.caller, route.name, needs, self.names, is_noted=False)

    def count_published(self, messages: Iterable[OutgoingMessage]) -> None:
        """Count messages for the client's quota of bytes that it publishes. Called if the exchange has a meter."""
        self.exchange.meter.produced(sum(map(max_size_bytes, messages)))

    async def count_many_published(self, messages: Iterable[OutgoingMessage]) -> None:
        """As `count_published`, some messages in each turn of the event loop."""
        size_bytes = 0
        async for message in self.broker.slices.each(messages):
            size_bytes += max_size_bytes(message)
        self.exchange.meter.produced(size_bytes)

    def count_shown(self, messages: Iterable[Message]) -> None:
        """Count messages for the client's quota of bytes that it gets. Called if the exchange has a meter."""
        self.exchange.meter.consumed(sum(map(max_size_bytes, messages)))

    def hold(self, weight_bytes: int) -> None:
        """Hold the memory for a document that shows messages of this weight. Raises BudgetFull."""
        self.exchange.memory.hold(_COPIES * weight_bytes)

    async def show(self, weight_bytes: int, make: Callable[[], Document]) -> Document:
        """Make a document that shows messages of this weight; in a thread if it is large. Raises BudgetFull."""
        if weight_bytes <= SMALL_BYTES:
            return make()
        self.hold(weight_bytes)
        return await self.broker.slices.in_thread(make, self.exchange.meter)
