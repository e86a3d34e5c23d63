"""Each broker, and each gateway, decides on its own clients' REST requests by the same ACLs, whoever leads what."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing
from typing import Any

import pytest

from conveyor.broker.clients.access_control import AccessControl
from conveyor.cluster.acls import AclFilter
from conveyor.kernel.access.acl import Acl
from conveyor.testing import Cluster
from conveyor.testing.embedded_cluster import ClusterBroker
from tests.callers import CALLER
from tests.clients.rest_client import Answer, Rest
from tests.clients.test_gateway import Gateway
from tests.unit.http_api.guarded_door import acl

ANYBODY = "ANONYMOUS"
LEASE = ("read group billing", "read topic orders")
FORBIDDEN = (403, "topic_authorization_failed")
WAIT = "/subscriptions/billing/messages?wait=20s"


class Guarded:
    """Two brokers and a gateway, where everybody may only do what ACLs allow."""

    def __init__(self, cluster: Cluster, gateway: Gateway) -> None:
        self.brokers = [*cluster.brokers.values(), gateway]

    def change(self, change: Callable[[AccessControl], Coroutine[Any, Any, object]]) -> None:
        """Change the ACLs at the first broker. Returns once all have seen it."""
        process = self.brokers[0]._process
        assert process is not None
        access = process._running_server().broker.clients.access
        asyncio.run_coroutine_threadsafe(change(access), process._loop).result(30)
        acls = set(self.brokers[0].image().acls)
        for broker in self.brokers:
            broker.wait_until(lambda image: set(image.acls) == acls, "the ACLs differ")

    def allow(self, *rights: str) -> None:
        self.change(lambda access: access.add(CALLER, self._acls(rights)))

    def forbid(self, *rights: str) -> None:
        filters = [AclFilter(each.resource_type, each.name, operation=each.operation) for each in self._acls(rights)]
        self.change(lambda access: access.remove(CALLER, filters))

    def _acls(self, rights: tuple[str, ...]) -> list[Acl]:
        return [acl(ANYBODY, right) for right in rights]


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    settings = {"access.enabled": True, "broker.default_replication_factor": 2}
    with Cluster(brokers=2, settings=settings) as cluster:
        gateway = Gateway(cluster)
        gateway._settings |= settings
        gateway.start()
        yield Guarded(cluster, gateway)
        gateway.stop()


def ask(broker: ClusterBroker, method: str, path: str, body: object = None) -> Answer:
    with closing(Rest(broker)) as rest:
        return rest.ask(method, path, body)


def subscribe(guarded: Guarded) -> None:
    guarded.allow("create cluster kafka-cluster", "write topic orders", *LEASE)
    first = guarded.brokers[0]
    assert ask(first, "POST", "/topics", {"name": "orders", "partitions": 4}).status == 201
    assert ask(first, "POST", "/topics/orders/subscriptions", {"name": "billing"}).status == 201


def test_every_broker_decides_by_the_same_acls(guarded: Guarded) -> None:
    subscribe(guarded)
    for broker in guarded.brokers:
        assert ask(broker, "POST", "/topics/orders/messages", b"x").status == 201
        assert ask(broker, "POST", "/topics/other/messages", b"x").problem[:2] == FORBIDDEN
        assert ask(broker, "GET", "/topics/orders").problem[:2] == FORBIDDEN
    guarded.forbid("write topic orders")
    for broker in guarded.brokers:
        assert ask(broker, "POST", "/topics/orders/messages", b"x").problem[:2] == FORBIDDEN
        assert ask(broker, "GET", "/subscriptions/billing/messages").status == 200


@pytest.mark.parametrize("place", [0, 1, 2], ids=["broker 1", "broker 2", "gateway"])
def test_lease_that_waits_for_other_brokers_ends_with_the_right(guarded: Guarded, place: int) -> None:
    subscribe(guarded)
    broker = guarded.brokers[place]
    with closing(Rest(broker)) as waiting:
        waiting.send("GET", WAIT)
        assert ask(broker, "GET", "/subscriptions/billing/messages").json == {"messages": []}
        guarded.forbid("read topic orders")
        messages = [{"payload": "secret", "partition": number} for number in range(4)]
        assert ask(broker, "POST", "/topics/orders/messages:batch", {"messages": messages}).status == 200
        assert waiting.receive().problem[:2] == FORBIDDEN
    guarded.allow("read topic orders")
    found: list[dict[str, Any]] = []
    while len(found) < 4:
        answer = ask(broker, "GET", f"{WAIT}&max_messages=10")
        assert answer.status == 200
        found += answer.json["messages"]
    assert {message["delivery_count"] for message in found} == {1}
