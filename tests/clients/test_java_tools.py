"""Kafka's command line tools, as `bin/kafka-*.sh` start them."""

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from conveyor.testing import Broker
from tests.clients.rebalances import QUICK_GROUPS, SESSION_MS
from tests.clients.records import CODECS
from tests.clients.scenarios import commit_start
from tests.clients.toolchains import java_program, java_tool

TOOLS = "org.apache.kafka.tools"
COUNT = 20_000


class Tools:
    """The tools, each with this broker to talk to."""

    def __init__(self, broker: Broker) -> None:
        server = ("--bootstrap-server", broker.bootstrap_servers)
        self.topics = partial(java_tool(f"{TOOLS}.TopicCommand").print, *server)
        self.configs = partial(java_tool("kafka.admin.ConfigCommand").print, *server)
        self.producer = partial(java_tool(f"{TOOLS}.ConsoleProducer").print, *server)
        self.consumer = partial(java_tool(f"{TOOLS}.consumer.ConsoleConsumer").print, *server)
        self.groups = partial(java_tool(f"{TOOLS}.consumer.group.ConsumerGroupCommand").print, *server)
        self.all_groups = partial(java_tool(f"{TOOLS}.GroupsCommand").print, *server)
        self.offsets = partial(java_tool(f"{TOOLS}.GetOffsetShell").print, *server)
        self.delete_records = partial(java_tool(f"{TOOLS}.DeleteRecordsCommand").print, *server)
        self.log_dirs = partial(java_tool(f"{TOOLS}.LogDirsCommand").print, *server)
        self.api_versions = partial(java_tool(f"{TOOLS}.BrokerApiVersionsCommand").print, *server)
        self.reassign = partial(java_tool(f"{TOOLS}.reassign.ReassignPartitionsCommand").print, *server)
        self.produce_quickly = partial(java_tool(f"{TOOLS}.ProducerPerformance").print, *server)
        self.consume_quickly = partial(java_tool(f"{TOOLS}.ConsumerPerformance").print, *server)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker that takes the short session timeouts of the members."""
    with Broker(settings=QUICK_GROUPS) as running:
        yield running


@pytest.fixture(scope="module")
def tools(broker: Broker) -> Tools:
    return Tools(broker)


def described(page: str) -> dict[str, str]:
    """The first line of `kafka-topics --describe`."""
    return dict(part.split(": ", 1) for part in page.splitlines()[0].strip().split("\t") if ": " in part)


def test_topics_are_made_described_grown_and_deleted(tools: Tools, topic: str) -> None:
    made = tools.topics("--create", "--topic", topic, "--partitions", 2, "--config", "retention.ms=60000")
    assert f"Created topic {topic}." in made
    first = described(tools.topics("--describe", "--topic", topic))
    assert (first["PartitionCount"], first["ReplicationFactor"]) == ("2", "1")
    assert "retention.ms=60000" in first["Configs"]
    tools.topics("--alter", "--topic", topic, "--partitions", 3)
    page = tools.topics("--describe", "--topic", topic)
    assert described(page)["PartitionCount"] == "3"
    assert re.findall(r"Partition: (\d)\tLeader: 1\tReplicas: 1\tIsr: 1", page) == ["0", "1", "2"]
    assert tools.topics("--describe", "--under-replicated-partitions") == ""
    tools.topics("--delete", "--topic", topic)
    assert topic not in tools.topics("--list").split()


def test_settings_are_altered_and_described(tools: Tools, topic: str) -> None:
    tools.topics("--create", "--topic", topic)
    entity = ("--entity-type", "topics", "--entity-name", topic)
    assert "retention.ms" not in tools.configs("--describe", *entity)
    done = tools.configs("--alter", *entity, "--add-config", "retention.ms=60000,max.message.bytes=2000")
    assert f"Completed updating config for topic {topic}." in done
    page = tools.configs("--describe", *entity)
    assert "retention.ms=60000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=60000" in page
    tools.configs("--alter", *entity, "--delete-config", "max.message.bytes")
    page = tools.configs("--describe", *entity)
    assert "retention.ms=60000" in page
    assert "max.message.bytes" not in page
    assert "max.message.bytes=1048588" in tools.configs("--describe", "--all", *entity)
    assert "node.id=1 " in tools.configs("--describe", "--all", "--entity-type", "brokers", "--entity-name", "1")


def test_settings_of_groups_are_described(tools: Tools, topic: str) -> None:
    entity = ("--entity-type", "groups")
    assert "Exception" not in tools.configs("--describe", *entity)
    page = tools.configs("--describe", "--all", *entity, "--entity-name", topic)
    assert " consumer.session.timeout.ms=3000 " in page
    assert "group.consumer.session.timeout.ms=3000" in page


@pytest.mark.parametrize("codec", CODECS)
def test_the_console_reads_what_the_console_wrote(tools: Tools, topic: str, codec: str) -> None:
    properties = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    lines = [f"key-{number}:value-{number}" for number in range(200)]
    tools.producer("--topic", topic, "--compression-codec", codec, *properties, given="\n".join(lines) + "\n")
    shown = [word for each in ("print.key=true", "key.separator=:") for word in ("--formatter-property", each)]
    read = tools.consumer("--topic", topic, "--from-beginning", "--max-messages", len(lines), *shown)
    assert sorted(read.splitlines()) == sorted(lines)


def test_groups_are_listed_described_reset_and_deleted(tools: Tools, topic: str) -> None:
    tools.producer("--topic", topic, given="".join(f"{number}\n" for number in range(10)))
    group = f"{topic}-readers"
    tools.consumer("--topic", topic, "--group", group, "--from-beginning", "--max-messages", 10)
    assert group in tools.groups("--list").split()
    assert group in tools.all_groups("--list")
    row = next(line for line in tools.groups("--describe", "--group", group).splitlines() if topic in line).split()
    assert row[:6] == [group, topic, "0", "10", "10", "0"]
    assert re.search(rf"{group}.* Empty .* 0$", tools.groups("--describe", "--group", group, "--state"), re.MULTILINE)
    reset = ("--reset-offsets", "--execute", "--group", group, "--topic", topic)
    assert tools.groups(*reset, "--to-offset", 4).split()[-1] == "4"
    assert tools.groups(*reset, "--shift-by", -1).split()[-1] == "3"
    assert tools.groups(*reset, "--to-datetime", "2000-01-01T00:00:00.000").split()[-1] == "0"
    assert tools.groups(*reset, "--to-latest").split()[-1] == "10"
    assert "Successful" in tools.groups("--delete-offsets", "--group", group, "--topic", topic)
    tools.groups(*reset, "--to-latest")
    assert "was successful" in tools.groups("--delete", "--group", group)
    assert group not in tools.groups("--list").split()


@pytest.mark.parametrize(("protocol", "kind"), [("cooperative", "Classic"), ("consumer", "Consumer")])
def test_a_group_at_work_is_described_and_left_alone(
    tools: Tools, broker: Broker, topic: str, protocol: str, kind: str
) -> None:
    tools.topics("--create", "--topic", topic, "--partitions", 2)
    commit_start(broker.bootstrap_servers, topic, 2)
    member = java_program().start("member", broker.bootstrap_servers, topic, topic, protocol, SESSION_MS)
    member.until(lambda line: line["assigned"] == [0, 1])
    row = next(line for line in tools.all_groups("--list").splitlines() if topic in line)
    assert row.split()[1:3] == [kind, "consumer"]
    page = tools.groups("--describe", "--group", topic, "--members", "--verbose")
    assert f"{topic}:0,1" in page
    assert "GroupNotEmptyException" in tools.groups("--delete", "--group", topic)
    moved = tools.groups("--reset-offsets", "--execute", "--group", topic, "--topic", topic, "--to-earliest")
    assert "inactive" in moved
    member.finish()


def test_offsets_are_told_and_records_deleted(tools: Tools, topic: str, tmp_path: Path) -> None:
    tools.producer("--topic", topic, given="".join(f"{number}\n" for number in range(10)))
    plan = tmp_path / "plan.json"
    place = {"topic": topic, "partition": 0, "offset": 4}
    plan.write_text(json.dumps({"version": 1, "partitions": [place]}))
    assert "low_watermark: 4" in tools.delete_records("--offset-json-file", plan)
    assert tools.offsets("--topic", topic, "--time", "earliest") == f"{topic}:0:4\n"
    assert tools.offsets("--topic", topic, "--time", "latest") == f"{topic}:0:10\n"
    assert tools.offsets("--topic", topic, "--time", "max-timestamp").startswith(f"{topic}:0:")


def test_the_sizes_of_logs_are_told(tools: Tools, topic: str) -> None:
    tools.producer("--topic", topic, given="".join(f"{number}\n" for number in range(10)))
    page = json.loads(tools.log_dirs("--describe", "--topic-list", topic).splitlines()[-1])
    (directory,) = page["brokers"][0]["logDirs"]
    assert directory["error"] is None
    (partition,) = directory["partitions"]
    assert partition["partition"] == f"{topic}-0"
    assert partition["size"] > 0
    assert partition["offsetLag"] == 0


def test_settings_are_changed_at_run_time(tools: Tools, topic: str) -> None:
    brokers, name = ("--entity-type", "brokers"), "log.index.interval.bytes"
    group = ("--entity-type", "groups", "--entity-name", topic)
    tools.configs("--alter", *brokers, "--entity-default", "--add-config", f"{name}=8192")
    tools.configs("--alter", *brokers, "--entity-name", "1", "--add-config", f"{name}=4097")
    tools.configs("--alter", *group, "--add-config", "consumer.session.timeout.ms=50000")
    page = tools.configs("--describe", *brokers, "--entity-name", "1")
    synonyms = (
        f"DYNAMIC_BROKER_CONFIG:{name}=4097, DYNAMIC_DEFAULT_BROKER_CONFIG:{name}=8192, DEFAULT_CONFIG:{name}=4096"
    )
    assert synonyms in page
    assert "DYNAMIC_GROUP_CONFIG:consumer.session.timeout.ms=50000" in tools.configs("--describe", *group)


def test_no_partition_is_being_reassigned(tools: Tools) -> None:
    assert tools.reassign("--list").strip() == "No partition reassignments found."


def test_the_versions_of_the_protocol_are_listed(tools: Tools) -> None:
    page = tools.api_versions()
    assert re.search(r"Produce\(0\): \d+ to \d+ \[usable: \d+\]", page)
    assert re.search(r"Fetch\(1\): \d+ to \d+ \[usable: \d+\]", page)


def test_the_performance_tools_run_through(tools: Tools, topic: str) -> None:
    load = ("--topic", topic, "--num-records", COUNT, "--record-size", 1000, "--throughput", -1)
    assert f"{COUNT} records sent" in tools.produce_quickly(*load).splitlines()[-1]
    header, *rows = tools.consume_quickly("--topic", topic, "--num-records", COUNT, "--timeout", 30_000).splitlines()
    figures = dict(zip(header.split(", "), rows[-1].split(", "), strict=True))
    assert int(figures["data.consumed.in.nMsg"]) == COUNT
