"""Kafka's command line tools for settings of brokers and groups, which change at run time; for users and ACLs."""

import re
from collections.abc import Callable
from functools import partial

import pytest

from conveyor.testing import Broker
from tests.clients.toolchains import java_tool

TOOLS = "org.apache.kafka.tools"
RETENTION = "log.retention.ms=60000"
SESSION = "consumer.session.timeout.ms=50000"
HEARTBEAT = "consumer.heartbeat.interval.ms=6000"

Tool = Callable[..., str]


@pytest.fixture
def configs(broker: Broker) -> Tool:
    """`kafka-configs`."""
    return partial(java_tool("kafka.admin.ConfigCommand").print, "--bootstrap-server", broker.bootstrap_servers)


@pytest.mark.parametrize(
    ("entity", "source"),
    [
        (("--entity-name", "1"), "DYNAMIC_BROKER_CONFIG"),
        (("--entity-default",), "DYNAMIC_DEFAULT_BROKER_CONFIG"),
    ],
    ids=["one broker", "all brokers"],
)
def test_a_default_of_topics_is_changed_at_run_time(
    configs: Tool, broker: Broker, topic: str, entity: tuple[str, ...], source: str
) -> None:
    topics = java_tool(f"{TOOLS}.TopicCommand").print
    topics("--bootstrap-server", broker.bootstrap_servers, "--create", "--topic", topic)
    of_topic = ("--describe", "--all", "--entity-type", "topics", "--entity-name", topic)
    of_brokers = ("--entity-type", "brokers", *entity)

    assert "Completed updating" in configs("--alter", *of_brokers, "--add-config", RETENTION)
    assert f"{RETENTION} sensitive=false synonyms={{{source}:{RETENTION}" in configs("--describe", *of_brokers)
    assert f" retention.ms=60000 sensitive=false synonyms={{{source}:{RETENTION}" in configs(*of_topic)
    configs("--alter", *of_brokers, "--delete-config", "log.retention.ms")
    assert "log.retention.ms" not in configs("--describe", *of_brokers)
    assert " retention.ms=1209600000 " in configs(*of_topic)


def test_what_needs_a_restart_is_refused(broker: Broker) -> None:
    tool = java_tool("kafka.admin.ConfigCommand")
    entity = ("--bootstrap-server", broker.bootstrap_servers, "--entity-type", "brokers", "--entity-name", "1")
    printed = tool.fail("--alter", *entity, "--add-config", "node.id=2")
    assert "InvalidRequestException" in printed
    assert "node.id" in printed


def test_settings_of_a_group_are_changed_at_run_time(configs: Tool, topic: str) -> None:
    entity = ("--entity-type", "groups", "--entity-name", topic)
    assert "Completed updating" in configs("--alter", *entity, "--add-config", f"{SESSION},{HEARTBEAT}")
    page = configs("--describe", *entity)
    assert f"{SESSION} sensitive=false synonyms={{DYNAMIC_GROUP_CONFIG:{SESSION}" in page
    assert f"{HEARTBEAT} sensitive=false synonyms={{DYNAMIC_GROUP_CONFIG:{HEARTBEAT}" in page
    # Groups that have settings are listed, be there members or not.
    assert re.search(rf"group '?{topic}'?\b", configs("--describe", "--entity-type", "groups"))
    configs("--alter", *entity, "--delete-config", "consumer.session.timeout.ms,consumer.heartbeat.interval.ms")
    assert "consumer." not in configs("--describe", *entity)
    assert topic not in configs("--describe", "--entity-type", "groups")


def test_users_are_added_described_and_removed(configs: Tool, topic: str) -> None:
    user = ("--entity-type", "users", "--entity-name", topic)
    credentials = "SCRAM-SHA-256=[iterations=8192,password=secret],SCRAM-SHA-512=[password=secret]"
    assert "Completed updating" in configs("--alter", *user, "--add-config", credentials)
    shown = f"SCRAM credential configs for user-principal '{topic}' are "
    assert f"{shown}SCRAM-SHA-256=iterations=8192, SCRAM-SHA-512=iterations=4096" in configs("--describe", *user)
    configs("--alter", *user, "--delete-config", "SCRAM-SHA-256")
    assert f"{shown}SCRAM-SHA-512=iterations=4096" in configs("--describe", *user)
    configs("--alter", *user, "--delete-config", "SCRAM-SHA-512")
    assert "SCRAM" not in configs("--describe", *user)


def test_there_are_no_subscriptions_to_metrics(broker: Broker) -> None:
    tool = java_tool(f"{TOOLS}.ClientMetricsCommand")
    assert tool.print("--bootstrap-server", broker.bootstrap_servers, "--list").strip() == ""


def test_settings_without_effect_are_accepted(configs: Tool) -> None:
    entity = ("--entity-type", "brokers", "--entity-name", "1")
    assert "Completed updating" in configs("--alter", *entity, "--add-config", "background.threads=9")
    assert "background.threads=9 sensitive=false synonyms={DYNAMIC_BROKER_CONFIG" in configs("--describe", *entity)
    configs("--alter", *entity, "--delete-config", "background.threads")


def test_the_metadata_log_is_described(broker: Broker) -> None:
    tool = java_tool(f"{TOOLS}.MetadataQuorumCommand")
    server = ("--bootstrap-server", broker.bootstrap_servers)
    page = tool.print(*server, "describe", "--status")
    assert re.search(r"LeaderId: +1\n", page)
    assert re.search(r"MaxFollowerLag: +0\n", page)
    assert f'CurrentVoters:          [{{"id": 1, "endpoints": ["PLAINTEXT://{broker.bootstrap_servers}"]}}]' in page
    _, row = tool.print(*server, "describe", "--replication", "--human-readable").strip().split("\n")
    assert re.match(r"1\s+A+\s+\d+\s+0\s+\d+ ms ago\s+\d+ ms ago\s+Leader", row)


def test_features_are_described_and_do_not_change(broker: Broker) -> None:
    tool = java_tool(f"{TOOLS}.FeatureCommand")
    server = ("--bootstrap-server", broker.bootstrap_servers)
    assert "FinalizedVersionLevel: 2" in tool.print(*server, "describe")
    assert "transaction.version was upgraded to 2" in tool.print(
        *server, "upgrade", "--feature", "transaction.version=2"
    )
    assert "does not change" in tool.fail(*server, "downgrade", "--feature", "transaction.version=1")


def test_acls_are_refused(broker: Broker, topic: str) -> None:
    tool = java_tool(f"{TOOLS}.AclCommand")
    server = ("--bootstrap-server", broker.bootstrap_servers)
    read = ("--allow-principal", "User:reader", "--operation", "Read", "--topic", topic)
    assert "SecurityDisabledException" in tool.fail(*server, "--list")
    assert "SecurityDisabledException" in tool.fail(*server, "--add", *read)
    assert "SecurityDisabledException" in tool.fail(*server, "--remove", "--force", *read)
