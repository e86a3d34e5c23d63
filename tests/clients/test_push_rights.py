"""The rights of a push: those of the user who has set it last, for as long as that user has them."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from conveyor.testing import Broker
from tests.clients.rest_client import Answer, Rest
from tests.clients.test_rest_users import basic, set_password
from tests.clients.webhook_server import WebhookServer, eventually

SETTINGS = {
    "push.allow_private": True,
    "network.http_users": True,
    "access.enabled": True,
    "access.super_users": "User:ANONYMOUS;User:admin",
}
RIGHTS = {
    "topic": (ResourceType.TOPIC, "orders"),
    "group": (ResourceType.GROUP, "s"),
    "dead": (ResourceType.TOPIC, "orders.dlq"),
}


class _Guarded:
    """A broker where alice may do what ACLs allow, and admin everything."""

    def __init__(self, broker: Broker, hook: WebhookServer) -> None:
        self._rest = Rest(broker)
        self._acls = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        self._broker = broker
        self.target = {"url": hook.url, "allow_private": True}
        for user in ("alice", "admin"):
            set_password(broker, user, "secret")
        assert self.ask("admin", "POST", "/topics", {"name": "orders"}).status == 201

    def ask(self, user: str, method: str, path: str, body: object = None) -> Answer:
        return self._rest.ask(method, path, body, headers=basic(user, "secret"))

    def allow(self, operation: AclOperation, *resources: str) -> None:
        for future in self._acls.create_acls([self._acl(AclBinding, operation, name) for name in resources]).values():
            future.result(10)

    def forbid(self, operation: AclOperation, resource: str) -> None:
        for future in self._acls.delete_acls([self._acl(AclBindingFilter, operation, resource)]).values():
            future.result(10)

    def subscribe(self, user: str) -> Answer:
        return self.ask(user, "POST", "/topics/orders/subscriptions", {"name": "s", "push": self.target})

    def publish(self) -> None:
        assert self.ask("admin", "POST", "/topics/orders/messages", b"x").status == 201

    def state(self) -> str:
        shown: str = self.ask("admin", "GET", "/subscriptions/s").json["push_status"][0]["state"]
        return shown

    def end_alice(self) -> None:
        set_password(self._broker, "alice", None)

    def close(self) -> None:
        self._rest.close()

    def _acl(self, kind: Any, operation: AclOperation, resource: str) -> Any:
        resource_type, name = RIGHTS[resource]
        literal, permission = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
        return kind(resource_type, name, literal, "User:alice", "*", operation, permission)


@pytest.fixture
def hook() -> Iterator[WebhookServer]:
    with WebhookServer() as server:
        yield server


@pytest.fixture
def guarded(hook: WebhookServer) -> Iterator[_Guarded]:
    with Broker(memory=True, settings=SETTINGS) as broker:
        guarded = _Guarded(broker, hook)
        yield guarded
        guarded.close()


@pytest.mark.parametrize("lost", ["topic", "group"])
def test_push_stops_when_its_owner_loses_a_right(guarded: _Guarded, hook: WebhookServer, lost: str) -> None:
    guarded.allow(AclOperation.READ, "topic", "group")
    made = guarded.subscribe("alice")
    assert (made.status, made.json["push"]["owner"]) == (201, "User:alice")
    guarded.publish()
    hook.wait_taken(1)
    guarded.forbid(AclOperation.READ, lost)
    eventually(lambda: guarded.state() == "denied")
    guarded.publish()
    guarded.allow(AclOperation.READ, lost)
    hook.wait_taken(2)
    assert [request.headers["ce-id"] for request in hook.received] == ["0-0", "0-1"]


def test_push_stops_when_its_owner_is_no_user_any_more(guarded: _Guarded, hook: WebhookServer) -> None:
    guarded.allow(AclOperation.READ, "topic", "group")
    guarded.subscribe("alice")
    guarded.end_alice()
    eventually(lambda: guarded.state() == "denied")
    guarded.publish()
    taken_over = guarded.ask("admin", "PATCH", "/subscriptions/s", {"push": {"max_concurrency": 1}})
    assert taken_over.json["push"]["owner"] == "User:admin"
    hook.wait_taken(1)


@pytest.mark.parametrize("missing", ["topic", "group"])
def test_target_is_given_by_who_may_read(guarded: _Guarded, missing: str) -> None:
    guarded.allow(AclOperation.READ, *{"topic", "group"} - {missing})
    assert guarded.subscribe("alice").status == 403
    assert guarded.ask("admin", "GET", "/subscriptions/s").status == 404
    guarded.ask("admin", "POST", "/topics/orders/subscriptions", {"name": "s"})
    guarded.allow(AclOperation.ALTER_CONFIGS, "group")
    give = {"push": guarded.target}
    assert guarded.ask("alice", "PATCH", "/subscriptions/s", give).status == 403
    assert guarded.ask("admin", "GET", "/subscriptions/s").json["push"] is None
    guarded.ask("admin", "PATCH", "/subscriptions/s", give)
    assert guarded.ask("alice", "PATCH", "/subscriptions/s", {"push": None}).json["push"] is None


def test_url_is_shown_in_whole_to_those_who_may_change_it(guarded: _Guarded) -> None:
    guarded.subscribe("admin")
    guarded.allow(AclOperation.DESCRIBE, "group")
    whole = guarded.target["url"]
    assert guarded.ask("admin", "GET", "/subscriptions/s").json["push"]["url"] == whole
    assert guarded.ask("alice", "GET", "/subscriptions/s").json["push"]["url"] == str(whole).removesuffix("/hook")
