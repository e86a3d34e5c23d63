"""A REST door of a broker with users and ACLs, in memory, and what each user gets from it."""

import json
from base64 import b64encode
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, NamedTuple

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.produce.outgoing_message import OutgoingMessage
from conveyor.cluster.acls import AclFilter
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.http.endpoints.endpoint_application import EndpointApplication
from conveyor.http.engine.exchange import Service
from conveyor.http.engine.http_response import DateHeader
from conveyor.http_api.application import ALL_ENDPOINTS, RestDoor
from conveyor.http_api.requests.tokens import Tokens
from conveyor.kernel.access.acl import Acl, AclOperation, PatternType, Permission, ResourceType
from conveyor.kernel.request_budget import RequestBudget
from conveyor.queues.subscription.policy import StartPosition
from conveyor.records.message_attributes import DELAY_MS
from conveyor.schedules.definition import Schedule
from conveyor.server.network_probe import NetworkProbe
from conveyor.testing import ManualClock
from conveyor.testing.broker_security import password_change
from tests.callers import CALLER
from tests.unit.broker.parts import Storage, running_parts
from tests.unit.http.memory_wire import Client, until

SETTINGS: Mapping[str, object] = {
    "access.enabled": True,
    "access.super_users": "User:root",
    "network.http_users": True,
    "topics.flush_policy": "os",
}
USERS = ("alice", "root")
PASSWORD = "secret"
RESOURCES = {"topic": ResourceType.TOPIC, "group": ResourceType.GROUP, "cluster": ResourceType.CLUSTER}


class Answer(NamedTuple):
    """The status of a response, and its document."""

    status: int
    document: Any

    @property
    def kind(self) -> str:
        """The status and the kind of a problem."""
        return f"{self.status} {self.document['kind']}"


class GuardedDoor:
    """See the module's docstring. Each request has a connection of its own."""

    def __init__(self, broker: BrokerNode, clock: ManualClock) -> None:
        self.broker, self.clock = broker, clock
        rest = RestDoor(broker, NetworkProbe(), Tokens(()))
        self.rights = rest.rights
        self._service = Service(
            EndpointApplication(ALL_ENDPOINTS, rest), RequestBudget(1 << 20), DateHeader(broker.clock), 10, count(1)
        )

    def send(self, user: str | None, method: str, target: str, body: object = None) -> Client:
        """Send a request, as nobody for None. body: bytes, or a document."""
        content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        client = Client(service=self._service)
        client.send(head(user, method, target, len(content)) + content)
        return client

    async def ask(self, user: str | None, method: str, target: str, body: object = None) -> Answer:
        return await received(self.send(user, method, target, body), method)

    async def allow(self, user: str, *rights: str) -> None:
        """Let a user do something: `read topic orders`, `write topic a*` for a prefix."""
        await self.broker.clients.access.add(CALLER, [acl(user, right) for right in rights])

    async def forget(self, user: str, right: str) -> None:
        """Take back what `allow` has allowed."""
        gone = acl(user, right)
        chosen = AclFilter(gone.resource_type, gone.name, principal=gone.principal, operation=gone.operation)
        [removed] = await self.broker.clients.access.remove(CALLER, [chosen])
        assert list(removed) == [gone]

    async def deny(self, user: str, *rights: str) -> None:
        await self.broker.clients.access.add(CALLER, [acl(user, right, Permission.DENY) for right in rights])

    async def allow_only(self, user: str, rights: Iterable[str]) -> None:
        """Let a user do this and nothing else."""
        await self.broker.clients.access.remove(CALLER, [AclFilter(principal=f"User:{user}")])
        await self.allow(user, *rights)


def head(user: str | None, method: str, target: str, size: int) -> bytes:
    pair = b64encode(f"{user}:{PASSWORD}".encode()).decode()
    login = "" if user is None else f"Authorization: Basic {pair}\r\n"
    return f"{method} {target} HTTP/1.1\r\nHost: h\r\n{login}Content-Length: {size}\r\n\r\n".encode()


async def received(client: Client, method: str = "") -> Answer:
    """Return the response, once it is there. That to HEAD has no body."""
    await until(lambda: bool(client.wire.written))
    if method == "HEAD":
        return Answer(int(client.take().split(b" ", 2)[1]), None)
    ((status, content),) = client.responses()
    is_json = content[:1] in (b"{", b"[")
    return Answer(status, json.loads(content) if is_json else content)


def acl(user: str, right: str, permission: Permission = Permission.ALLOW) -> Acl:
    operation, resource, name = right.split(" ")
    [found] = [each for each in AclOperation if each.value.lower() == operation.lower()]
    is_prefix = name.endswith("*") and name != "*"
    pattern = PatternType.PREFIXED if is_prefix else PatternType.LITERAL
    name = name.removesuffix("*") if is_prefix else name
    return Acl(RESOURCES[resource.lower()], name, pattern, f"User:{user}", "*", found, permission)


@asynccontextmanager
async def guarded_door(settings: Mapping[str, object] | None = None) -> AsyncIterator[GuardedDoor]:
    """Run a broker with two topics, of which `orders` has a subscription, a schedule, a message and a delayed one."""
    storage = Storage()
    async with running_parts({**SETTINGS, **(settings or {})}, storage) as broker:
        changes = [password_change(user, PASSWORD, b"some salt") for user in USERS]
        await broker.clients.credentials.alter(CALLER, changes)
        for topic in ("orders", "mails"):
            await broker.topics.create(CALLER, TopicRequest(name=topic, partitions=1))
        await broker.queues.lifecycle.create(CALLER, "orders", "billing", StartPosition(kind="earliest"), {})
        schedule = Schedule(name="nightly", topic="orders", cron="0 3 * * *", time_zone="UTC", payload=b"p", key=None)
        await broker.schedules.add(CALLER, schedule)
        delayed = OutgoingMessage(b"later", None, ((DELAY_MS, b"1000000"),), None)
        await broker.produce.messages.publish(CALLER, "orders", [OutgoingMessage(b"now", None, (), None), delayed])
        yield GuardedDoor(broker, storage.clock)
