"""Kafka Connect: a worker in distributed mode copies a file into a topic, and the topic into another file."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from tests.clients.applications import Killable, Processes, bounds_of, until
from tests.clients.python.security import librdkafka
from tests.clients.scenarios import make_topic
from tests.clients.toolchains import connect_command

TOPIC = "lines"
SOURCE = "org.apache.kafka.connect.file.FileStreamSourceConnector"
SINK = "org.apache.kafka.connect.file.FileStreamSinkConnector"
COUNT = 50_000
# The worker itself gives up after 90 s.
REQUEST_SECONDS = 100
UNREADY = (404, 409, 500, 503)
INTERNAL = {"config": "connect-configs", "offset": "connect-offsets", "status": "connect-status"}
SETTINGS = {
    "group.id": "connect",
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    "listeners": "http://127.0.0.1:0",
    "offset.flush.interval.ms": "500",
    # A worker that takes the place of a killed one, and its sink, wait until the sessions of those have ended.
    **{f"{client}session.timeout.ms": "6000" for client in ("", "consumer.")},
    **{f"{client}heartbeat.interval.ms": "1000" for client in ("", "consumer.")},
    "scheduled.rebalance.max.delay.ms": "0",
    "plugin.discovery": "service_load",
    **{f"{kind}.storage.topic": topic for kind, topic in INTERNAL.items()},
    **{f"{kind}.storage.replication.factor": "1" for kind in INTERNAL},
}


class Worker:
    """A worker and its REST API, which tells what has become of its connectors."""

    def __init__(self, processes: Processes, bootstrap: str, more: Mapping[str, str]) -> None:
        settings = processes.properties("worker", SETTINGS | {"bootstrap.servers": bootstrap, **more})
        command = connect_command("org.apache.kafka.connect.cli.ConnectDistributed")
        self._application = processes.application("worker", [*command, settings])
        self._await_requests()

    def restart(self) -> None:
        """Kill the worker, and start another in its place."""
        self._application.kill()
        self._application.start()
        self._await_requests()

    def is_running(self) -> bool:
        return self._application.is_running()

    def connect(self, name: str, kind: str, **settings: str) -> None:
        """Make a connector."""
        config = {"connector.class": kind, "tasks.max": "1"} | settings
        until(lambda: self._ask("PUT", f"/connectors/{name}/config", config), f"{name} is made")

    def states(self, name: str) -> list[str]:
        """The state of a connector, and of each of its tasks."""
        status = self._ask("GET", f"/connectors/{name}/status")
        return [each["state"] for each in (status["connector"], *status["tasks"])] if status else []

    def offset(self, name: str) -> dict[str, int]:
        """How far a connector with one task has committed; nothing before it has."""
        offsets = self._ask("GET", f"/connectors/{name}/offsets")
        return dict(offsets["offsets"][0]["offset"]) if offsets and offsets["offsets"] else {}

    def _await_requests(self) -> None:
        line = self._application.await_line(r"REST server listening at (http://\S+?)/?,")
        self._address = line.group(1)
        until(lambda: self._ask("GET", "/health"), "the worker has started")

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        """The answer; None while the worker starts, or its group rebalances."""
        headers = {"Content-Type": "application/json"}
        request = Request(f"{self._address}{path}", body and json.dumps(body).encode(), headers, method=method)
        try:
            with urlopen(request, timeout=REQUEST_SECONDS) as answer:
                return json.load(answer)
        except HTTPError as error:
            error.close()
            if error.code not in UNREADY:
                raise
            return None


class Topic:
    """What a reader sees of the topic."""

    def __init__(self, bootstrap: str) -> None:
        make_topic(bootstrap, TOPIC, 1)
        settings = librdkafka(bootstrap) | {"group.id": "reader", "log_level": 0}
        self._consumer = Consumer(settings | {"enable.partition.eof": True})

    def end(self) -> int:
        return bounds_of(self._consumer, TopicPartition(TOPIC, 0))[1]

    def lines(self) -> list[str]:
        self._consumer.assign([TopicPartition(TOPIC, 0, 0)])
        read: list[str] = []
        while True:
            message = self._consumer.poll(60)
            assert message is not None
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF
                return read
            read.append(message.value().decode())


def numbered(numbers: Iterable[int]) -> list[str]:
    return [f"line {number}" for number in numbers]


def append(file: Path, lines: list[str]) -> None:
    with file.open("a") as opened:
        opened.writelines(f"{line}\n" for line in lines)


def lines_of(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def ends_with(file: Path, line: str) -> bool:
    return file.exists() and file.read_bytes().endswith(f"\n{line}\n".encode())


def once(lines: list[str]) -> list[str]:
    """Each line where it comes first: Connect may repeat what it has not committed."""
    return list(dict.fromkeys(lines))


def policies(bootstrap: str) -> list[str]:
    """The cleanup policies of the worker's own topics."""
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in INTERNAL.values()]
    admin = AdminClient(librdkafka(bootstrap))
    return [str(each.result(20)["cleanup.policy"].value) for each in admin.describe_configs(resources).values()]


def check_copies(processes: Processes, broker: Killable, client: Mapping[str, str] | None = None) -> None:
    """Each line is copied over kills of the broker and of the worker. client: how the worker connects."""
    bootstrap = broker.bootstrap_servers
    source, target = processes.folder / "source.txt", processes.folder / "target.txt"
    expected = numbered(range(3 * COUNT))
    topic = Topic(bootstrap)
    worker = Worker(processes, bootstrap, client or {})
    assert policies(bootstrap) == ["compact"] * 3

    append(source, expected[:COUNT])
    worker.connect("source", SOURCE, file=str(source), topic=TOPIC)
    until(topic.end, "the source has produced")
    broker.kill()
    broker.start()
    worker.connect("sink", SINK, file=str(target), topics=TOPIC)
    until(lambda: lines_of(target), "the sink has written")
    broker.kill()
    append(source, expected[COUNT : 2 * COUNT])
    broker.start()
    until(lambda: ends_with(target, expected[2 * COUNT - 1]), "each line is copied")
    assert once(topic.lines()) == once(lines_of(target)) == expected[: 2 * COUNT]
    assert worker.is_running()
    assert worker.states("source") == worker.states("sink") == ["RUNNING", "RUNNING"]

    read, end = {"position": source.stat().st_size}, {"kafka_offset": topic.end()}
    until(lambda: (worker.offset("source"), worker.offset("sink")) == (read, end), "all is committed")
    copied = len(lines_of(target))
    worker.restart()
    append(source, expected[2 * COUNT :])
    until(lambda: ends_with(target, expected[-1]), "each line is copied after a restart of the worker")
    assert topic.lines()[end["kafka_offset"] :] == lines_of(target)[copied:] == expected[2 * COUNT :]


def test_each_line_is_copied_over_kills_of_the_broker_and_of_the_worker(processes: Processes) -> None:
    broker = processes.broker()
    check_copies(processes, broker)
    assert broker.stop() == 0


def check_exact_source(processes: Processes, broker: Killable, client: Mapping[str, str] | None = None) -> None:
    """A source produces each line exactly once over kills. client: how the worker connects."""
    source = processes.folder / "source.txt"
    expected = numbered(range(3 * COUNT))
    topic = Topic(broker.bootstrap_servers)
    exactly_once = {"exactly.once.source.support": "enabled", **(client or {})}
    worker = Worker(processes, broker.bootstrap_servers, exactly_once)
    append(source, expected[:COUNT])
    settings = {"exactly.once.support": "required", "producer.override.transaction.timeout.ms": "5000"}
    worker.connect("source", SOURCE, file=str(source), topic=TOPIC, **settings)
    until(topic.end, "the source has produced")
    broker.kill()
    append(source, expected[COUNT : 2 * COUNT])
    broker.start()
    until(lambda: len(topic.lines()) > COUNT, "the source goes on after a kill of the broker")
    worker.restart()
    append(source, expected[2 * COUNT :])
    until(lambda: len(topic.lines()) >= len(expected), "the source goes on after a kill of the worker")
    assert topic.lines() == expected
    assert worker.states("source") == ["RUNNING", "RUNNING"]


@pytest.mark.sweep
def test_a_source_produces_each_line_exactly_once_over_kills(processes: Processes) -> None:
    broker = processes.broker()
    check_exact_source(processes, broker)
    assert broker.stop() == 0
