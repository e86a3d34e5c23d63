"""`conveyor audit`, on a broker in memory."""

import json
import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from conveyor.broker.clients.audit_event import AuditEvent
from conveyor.cli.users import audit_commands
from conveyor.testing import Broker
from tests.unit.cli.commands import Run

pytestmark = pytest.mark.slow


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    settings = {"access.enabled": True, "access.super_users": "User:ANONYMOUS"}
    with Broker(memory=True, settings=settings) as running:
        monkeypatch.setenv("CONVEYOR_BOOTSTRAP", running.bootstrap_servers)
        yield running


def until_written(broker: Broker) -> None:
    """Wait until `__audit` has the events of the requests so far."""
    config = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
    consumer = Consumer(config)
    consumer.subscribe(["__audit"])
    try:
        while (message := consumer.poll(10)) is None or message.error() is not None:
            pass
    finally:
        consumer.close()


def test_events_are_printed_as_a_table_or_as_json(run: Run, broker: Broker) -> None:
    assert run("topic", "create", "orders").exit_code == 0
    until_written(broker)
    header, *lines = run("audit", "tail").out.splitlines()
    assert header.split() == ["time", "decision", "count", "principal", "address", "right", "request", "rule"]
    [created] = [line for line in lines if "Create Topic orders" in line]
    assert created.split()[1:7] == ["allowed", "1", "User:ANONYMOUS", "127.0.0.1", "Create", "Topic"]
    assert created.endswith("CreateTopics          a super user (access.super_users)")
    events = [json.loads(line) for line in run("audit", "tail", "--from", "beginning", "--json").out.splitlines()]
    [event] = [event for event in events if event["request"] == "CreateTopics"]
    assert list(event) == list(AuditEvent.__struct_fields__)


def test_events_are_chosen_by_time_decision_and_principal(run: Run, broker: Broker) -> None:
    assert run("topic", "create", "orders").exit_code == 0
    until_written(broker)
    assert len(run("audit", "tail", "--principal", "User:ANONYMOUS").out.splitlines()) > 1
    for choice in (("--denied",), ("--principal", "User:alice"), ("--from", "2100-01-01T00:00Z")):
        assert len(run("audit", "tail", *choice).out.splitlines()) == 1


def test_new_events_follow(run: Run, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("topic", "create", "orders").exit_code == 0
    until_written(broker)
    seen: list[str] = []
    line_of = audit_commands._line

    def line(cells: dict[str, str]) -> str:
        seen.append(cells["right"])
        if len(seen) == 1:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
            threading.Thread(target=lambda: admin.delete_topics(["orders"])["orders"].result()).start()
        if "Delete Topic orders" in cells["right"]:
            raise KeyboardInterrupt
        return line_of(cells)

    monkeypatch.setattr(audit_commands, "_line", line)
    run("audit", "tail", "--follow")
    assert "Delete Topic orders" in seen


def test_control_characters_are_escaped() -> None:
    event = dict.fromkeys(AuditEvent.__struct_fields__, "x") | {"resource": "a\x1b[2J\nb", "allowed": False, "count": 1}
    write = audit_commands._writer(denied=True, principal=None, as_json=False)

    class Message:
        def value(self) -> bytes:
            return json.dumps(event).encode()

    line = write(Message())
    assert line is not None
    assert rb"a\x1b[2J\nb" in line
    assert b"\x1b" not in line


@pytest.mark.parametrize("value", [None, b"", b"not \x1b[2J json", b"7", b"{}", b'{"allowed": true}', b"\xff"])
@pytest.mark.parametrize("as_json", [False, True])
def test_a_record_that_is_no_event_is_shown_as_it_is(value: bytes | None, as_json: bool) -> None:
    class Message:
        def value(self) -> bytes | None:
            return value

    line = audit_commands._writer(denied=False, principal=None, as_json=as_json)(Message())
    assert line == ascii(value).encode()


def test_a_topic_that_is_missing_and_wrong_positions_are_explained(run: Run, broker: Broker) -> None:
    assert "--from 7: expected beginning, a time, or how long ago" in run("audit", "tail", "--from", "7").error
    ended = run("audit", "tail")
    assert ended.exit_code == 1
    assert "no topic __audit: it is created for the first event" in ended.error
