"""`conveyor acl`, on a broker in memory."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer

from conveyor.cli.users import acl_client
from conveyor.testing import Broker
from tests.unit.cli.commands import Run

pytestmark = pytest.mark.slow

SETTINGS = {"access.enabled": True, "access.super_users": "User:ANONYMOUS;User:root"}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(memory=True, settings=SETTINGS) as running:
        yield running


@pytest.fixture
def acl(run: Run, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Return a function that runs `conveyor acl` on a broker without ACLs."""
    monkeypatch.setenv("CONVEYOR_BOOTSTRAP", broker.bootstrap_servers)

    def run_acl(*arguments: str, given: bytes = b"") -> Any:
        return run("acl", *arguments, given=given)

    yield run_acl
    run_acl("remove", "any", "--yes")


def listed(acl: Run, *arguments: str) -> list[tuple[str, ...]]:
    return [tuple(row.values()) for row in json.loads(acl("list", *arguments, "--json").out)]


def test_acls_are_added_listed_and_removed(acl: Run) -> None:
    assert acl("list").out == "no such ACLs: add one with 'conveyor acl add'\n"
    assert acl("add", "User:alice", "read,write", "topic", "orders").out == (
        "added: Allow User:alice from * to Read Topic orders\nadded: Allow User:alice from * to Write Topic orders\n"
    )
    assert acl("add", "User:*", "all", "group", "b", "--prefix", "--host", "192.0.2.1", "--deny").out == (
        "added: Deny User:* from 192.0.2.1 to All Group b*\n"
    )
    assert acl("list").out.splitlines() == [
        "principal   host       permission  operation  type   name    pattern",
        "User:alice  *          allow       read       topic  orders  literal",
        "User:alice  *          allow       write      topic  orders  literal",
        "User:*      192.0.2.1  deny        all        group  b       prefixed",
    ]
    [row] = json.loads(acl("list", "User:*", "--json").out)
    assert row == {
        "principal": "User:*", "host": "192.0.2.1", "permission": "deny", "operation": "all", "type": "group",
        "name": "b", "pattern": "prefixed",
    }  # fmt: skip
    assert acl("remove", "User:alice", "write", "--yes").out == (
        "removed: Allow User:alice from * to Write Topic orders\n"
    )
    assert [(row[0], row[3]) for row in listed(acl)] == [("User:alice", "read"), ("User:*", "all")]


def test_words_may_be_written_as_kafka_writes_them(acl: Run) -> None:
    for operation, kind in (("DescribeConfigs", "Topic"), ("describe_configs", "TOPIC"), ("describe-configs", "topic")):
        assert acl("add", "User:alice", operation, kind, "t").exit_code == 0
    for kind in ("TransactionalId", "transactional-id"):
        assert acl("add", "User:alice", "describe, two-phase-commit", kind, "t").exit_code == 0
    assert [row[3:5] for row in listed(acl)] == [
        ("describe-configs", "topic"), ("describe", "transactional-id"), ("two-phase-commit", "transactional-id"),
    ]  # fmt: skip


def test_cluster_needs_no_name(acl: Run) -> None:
    assert acl("add", "User:ops", "alter", "cluster").out == (
        "added: Allow User:ops from * to Alter Cluster kafka-cluster\n"
    )
    assert acl("test", "User:ops", "describe", "cluster").out == (
        "allowed: Allow User:ops from * to Alter Cluster kafka-cluster\n"
    )


def test_list_for_a_name_shows_what_counts_for_it(acl: Run) -> None:
    for name, *more in (("orders",), ("ord", "--prefix"), ("ord",), ("*",), ("things",)):
        acl("add", "User:alice", "read", "topic", name, *more)
    assert [row[-2:] for row in listed(acl, "any", "any", "topic", "orders")] == [
        ("orders", "literal"), ("ord", "prefixed"), ("*", "literal"),
    ]  # fmt: skip
    assert listed(acl, "User:alice", "write") == []
    assert len(listed(acl, "any", "read,write", "topic")) == 5


def test_removal_means_exactly_the_name(acl: Run) -> None:
    for name, *more in (("orders",), ("orders", "--prefix"), ("orders", "--deny"), ("ord", "--prefix"), ("*",)):
        acl("add", "User:alice", "read", "topic", name, *more)
    removed = acl("remove", "User:alice", "read", "topic", "orders", "--deny", "--yes").out
    assert removed == "removed: Deny User:alice from * to Read Topic orders\n"
    assert acl("remove", "any", "any", "topic", "orders", "--literal", "--yes").out == (
        "removed: Allow User:alice from * to Read Topic orders\n"
    )
    assert acl("remove", "any", "any", "topic", "orders", "--literal", "--yes").out == "no such ACLs: nothing removed\n"
    assert acl("remove", "any", "any", "topic", "orders", "--yes").out == (
        "removed: Allow User:alice from * to Read Topic orders*\n"
    )
    assert acl("remove", "User:alice", "--host", "192.0.2.1", "--yes").out == "no such ACLs: nothing removed\n"
    assert acl("remove", "User:alice", "--prefix", "--allow", "--yes").exit_code == 0
    assert [row[-2:] for row in listed(acl)] == [("*", "literal")]


def test_acls_are_removed_only_after_a_yes(acl: Run) -> None:
    acl("add", "User:alice", "read,write", "topic", "orders")
    refused = acl("remove", "User:alice", given=b"no\n")
    assert "Remove 2 ACLs? [y/N]" in refused.error
    assert "nothing has been changed" in refused.error
    assert "User:alice" in refused.out
    assert len(listed(acl)) == 2
    assert "removed: Allow User:alice" in acl("remove", "User:alice", given=b"yes\n").out
    assert listed(acl) == []
    assert acl("remove", "User:alice").out == "no such ACLs\n"


def test_decision_is_told_with_the_rule(acl: Run) -> None:
    denied = acl("test", "User:alice", "read", "topic", "orders")
    assert (denied.exit_code, denied.out) == (1, "denied: no ACL allows it\n")
    acl("add", "User:alice", "read", "topic", "ord", "--prefix")
    allowed = acl("test", "User:alice", "describe", "topic", "orders")
    assert (allowed.exit_code, allowed.out) == (0, "allowed: Allow User:alice from * to Read Topic ord*\n")
    acl("add", "User:*", "read", "topic", "orders", "--deny", "--host", "192.0.2.1")
    assert acl("test", "User:alice", "read", "topic", "orders").exit_code == 0
    denied = acl("test", "User:alice", "read", "topic", "orders", "--host", "192.0.2.1", "--json")
    assert denied.exit_code == 1
    assert json.loads(denied.out) == {
        "allowed": False, "rule": "Deny User:* from 192.0.2.1 to Read Topic orders",
    }  # fmt: skip
    root = acl("test", "User:root", "read", "topic", "orders", "--host", "192.0.2.1")
    assert root.out == "allowed: a super user (access.super_users)\n"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("add", "alice", "read", "topic", "t"), "the principal 'alice': it is written as 'User:alice'"),
        (
            ("add", "User:alice", "read", "queue", "t"),
            "there are no ACLs for 'queue': the types of resources are topic,",
        ),
        (("add", "User:alice", "write", "group", "g"), "there is no operation 'write' on a group: there are read,"),
        (("add", "User:alice", "read,", "topic", "t"), "there is no operation '' on a topic"),
        (("add", "User:alice", "read", "topic"), "name the topic: '*' is any"),
        (("add", "User:alice", "read", "topic", ""), "an ACL names a resource"),
        (("add", "User:alice", "alter", "cluster", "c"), "the only resource of the type Cluster is kafka-cluster"),
        (("list", "any", "wright"), "there is no operation 'wright': there are all, read,"),
        (("test", "User:alice", "read,write", "topic", "t"), "give one operation"),
        (("test", "Group:staff", "read", "topic", "t"), "the principal 'Group:staff'"),
    ],
)
def test_wrong_arguments_are_told(acl: Run, arguments: tuple[str, ...], reason: str) -> None:
    ended = acl(*arguments)
    assert ended.exit_code == 1
    assert reason in ended.error
    assert listed(acl) == []


def test_broker_says_why_it_refuses(acl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conveyor.cli.users.acl_commands.check_acl", lambda _: None)
    assert "an ACL names a resource" in acl("add", "User:alice", "read", "topic", "").error


def test_acl_of_a_later_version_is_told(acl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    acl("add", "User:alice", "read", "topic", "t")
    monkeypatch.setattr(acl_client, "_OPERATIONS", {})
    assert "the cluster has an ACL that this version does not know" in acl("list").error


@pytest.mark.parametrize(
    "arguments",
    [
        ("add", "User:alice", "read", "topic", "t"),
        ("list",),
        ("remove", "User:alice"),
        ("remove", "User:alice", "--yes"),
        ("test", "User:alice", "read", "topic", "t"),
    ],
)
def test_brokers_without_acls_name_the_setting(run_on_broker: Run, arguments: tuple[str, ...]) -> None:
    ended = run_on_broker("acl", *arguments)
    assert (ended.exit_code, ended.out) == (1, "")
    assert "start all brokers with access.enabled=true" in ended.error


def test_everybody_may_use_what_no_acl_names_if_the_brokers_say_so(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with Broker(memory=True, settings=SETTINGS | {"access.allow_if_no_acl": True}) as broker:
        monkeypatch.setenv("CONVEYOR_BOOTSTRAP", broker.bootstrap_servers)
        assert run("acl", "test", "User:alice", "read", "topic", "t").out == (
            "allowed: no ACL names the resource (access.allow_if_no_acl)\n"
        )


def test_command_without_the_right_is_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with Broker(memory=True, settings=SETTINGS | {"access.super_users": "User:root"}) as broker:
        monkeypatch.setenv("CONVEYOR_BOOTSTRAP", broker.bootstrap_servers)
        assert "no right to Describe Cluster" in run("acl", "list").error
        assert "no right to Alter Cluster" in run("acl", "add", "User:alice", "read", "topic", "t").error
        assert "no right to Alter Cluster" in run("acl", "remove", "User:alice", "--yes").error


def test_decision_is_not_told_without_the_right_to_know_the_settings(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SETTINGS | {"access.super_users": "User:root", "access.allow_if_no_acl": True}
    with Broker(memory=True, settings=settings) as broker:
        monkeypatch.setenv("CONVEYOR_BOOTSTRAP", broker.bootstrap_servers)
        run("acl", "add", "User:ANONYMOUS", "describe,alter", "cluster")
        assert "you need describe-configs on the cluster" in run("acl", "test", "User:a", "read", "topic", "t").error
        run("acl", "add", "User:ANONYMOUS", "describe-configs", "cluster")
        assert run("acl", "test", "User:a", "read", "topic", "t").out.startswith("allowed: no ACL names the resource")


def test_first_acls_are_added_as_the_page_says(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """docs/security.md, "Who may do what"."""
    listeners = {"network.kafka": "127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0"}
    with Broker(tmp_path / "data", settings=listeners) as broker:
        monkeypatch.setenv("CONVEYOR_BOOTSTRAP", broker.bootstrap_servers)
        for user in ("admin", "alice"):
            run("user", "add", user, given=b"secret\n")

    def login(user: str) -> dict[str, Any]:
        settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": user}
        return settings | {"sasl.password": "secret"}

    (tmp_path / "admin.properties").write_text("".join(f"{name}={value}\n" for name, value in login("admin").items()))
    access = {"access.enabled": True, "access.super_users": "User:admin"}
    with Broker(tmp_path / "data", settings=listeners | access) as broker:
        address = broker.kafka_addresses["SASL_PLAINTEXT"]
        monkeypatch.setenv("CONVEYOR_BOOTSTRAP", address)
        monkeypatch.setenv("CONVEYOR_CLIENT_CONFIG", str(tmp_path / "admin.properties"))
        run("topic", "create", "orders")
        run("topic", "create", "others")
        run("acl", "add", "User:alice", "write", "topic", "orders")
        assert run("acl", "test", "User:alice", "write", "topic", "orders").exit_code == 0

        errors: list[Any] = []
        producer = Producer(login("alice") | {"bootstrap.servers": address, "enable.idempotence": True})
        for topic in ("orders", "others"):
            producer.produce(topic, b"x", on_delivery=lambda error, _: errors.append(error and error.code()))
            producer.flush(20)
        assert errors == [None, KafkaError.TOPIC_AUTHORIZATION_FAILED]
