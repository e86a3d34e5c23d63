"""Admin clients manage ACLs as they do with Kafka: by their APIs, and Java's by its command line tool."""

from collections.abc import Iterator

import pytest

from conveyor.testing import Broker
from tests.clients import scenarios
from tests.clients.all_clients import CLIENTS, Client
from tests.clients.toolchains import java_tool


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker that decides by ACLs, whose clients may do everything as long as they do not log in."""
    settings = {"access.enabled": True, "access.super_users": "User:ANONYMOUS"}
    with Broker(memory=True, settings=settings) as running:
        yield running


@pytest.mark.parametrize(
    "client", [client for client in CLIENTS if client.administers_acls], ids=lambda client: client.name
)
def test_acls_are_administered(client: Client, broker: Broker, topic: str) -> None:
    scenarios.check_acl_admin(client.program(), broker, topic)


def test_acls_are_administered_by_kafka_acls(broker: Broker, topic: str) -> None:
    tool = java_tool("org.apache.kafka.tools.AclCommand")
    server = ("--bootstrap-server", broker.bootstrap_servers)
    of_topic = ("--topic", topic)
    consumer = ("--consumer", "--allow-principal", "User:alice", *of_topic, "--group", topic)
    denial = ("--deny-principal", "User:*", "--deny-host", "192.0.2.1", "--operation", "Write", "--topic", topic[:-1])
    tool.print(*server, "--add", *consumer)
    tool.print(*server, "--add", *denial, "--resource-pattern-type", "prefixed")

    page = tool.print(*server, "--list", *of_topic, "--resource-pattern-type", "match")
    for operation in ("READ", "DESCRIBE"):
        assert f"(principal=User:alice, host=*, operation={operation}, permissionType=ALLOW)" in page
    assert f"`ResourcePattern(resourceType=TOPIC, name={topic[:-1]}, patternType=PREFIXED)`" in page
    assert "(principal=User:*, host=192.0.2.1, operation=WRITE, permissionType=DENY)" in page

    tool.print(*server, "--remove", "--force", *consumer)
    left = tool.print(*server, "--list")
    assert "User:alice" not in left
    assert topic[:-1] in left
