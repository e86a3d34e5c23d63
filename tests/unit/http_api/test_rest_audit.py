"""The audit has each request of a REST client that is permitted or refused, by its method and path."""

from collections.abc import AsyncIterator

import pytest

from tests.unit.broker.clients.audit_records import audit_of, written_records
from tests.unit.http.memory_wire import until
from tests.unit.http_api.guarded_door import GuardedDoor, guarded_door, head, received


@pytest.fixture
async def door() -> AsyncIterator[GuardedDoor]:
    async with guarded_door() as running:
        yield running


async def shown(door: GuardedDoor, decisions: int) -> list[str]:
    """Return the events in short, in their order."""
    return [
        f"{event['principal']} {event['request']}: {event['operation']} {event['resource_type']} {event['resource']}"
        f" {'allowed' if event['allowed'] else 'denied'} {event['count']}"
        for event in await written_records(door.broker, door.clock, decisions)
    ]


async def test_a_request_is_one_decision_however_often_it_is_checked(door: GuardedDoor) -> None:
    await door.allow("alice", "write topic orders", "delete group billing")
    message = {"messages": [{"payload": "x"}]}
    assert (await door.ask("alice", "POST", "/topics/orders/messages", message)).status < 300
    for _ in range(3):
        assert (await door.ask("root", "GET", "/topics/orders")).status == 200
    for _ in range(2):
        await door.ask("alice", "POST", "/topics/mails/messages", message)
    assert await shown(door, audit_of(door.broker).waiting_count + 1) == [
        "User:alice POST /topics/{topic}/messages: Write Topic orders allowed 1",
        "User:root GET /topics/{topic}: Describe Topic orders allowed 1",
        "User:root GET /topics/{topic}: DescribeConfigs Topic orders allowed 1",
        "User:alice POST /topics/{topic}/messages: Write Topic mails denied 2",
    ]


async def test_administration_is_an_event_every_time(door: GuardedDoor) -> None:
    await door.allow("alice", "delete group billing", "read topic orders", "alterconfigs group billing")
    for _ in range(2):
        answer = await door.ask("alice", "POST", "/subscriptions/billing/purge")
        assert answer.status < 300, answer
    events = await shown(door, audit_of(door.broker).waiting_count)
    purge = "User:alice POST /subscriptions/{subscription}/purge"
    assert events.count(f"{purge}: Delete Group billing allowed 1") == 2


async def test_topics_in_a_body_are_events_and_so_are_rights_on_the_cluster(door: GuardedDoor) -> None:
    await door.allow("alice", "create cluster kafka-cluster", "write topic a")
    messages = [{"topic": name, "payload": "x"} for name in ("a", "b")]
    await door.ask("alice", "POST", "/messages:batch", {"messages": messages})
    assert (await door.ask("alice", "POST", "/topics", {"name": "new"})).status == 201
    assert await shown(door, 2) == [
        "User:alice POST /messages:batch: Write Topic b denied 1",
        "User:alice POST /topics: Create Topic new allowed 1",
    ]


async def test_lists_make_no_events(door: GuardedDoor) -> None:
    for path in ("/topics", "/subscriptions", "/schedules", "/healthz"):
        assert (await door.ask("alice", "GET", path)).status == 200
    assert audit_of(door.broker).waiting_count == 0


async def test_a_request_that_is_refused_before_its_body_is_an_event(door: GuardedDoor) -> None:
    await door.ask("alice", "GET", "/topics")  # Logged in.
    client = door.send("alice", "GET", "/healthz")
    await until(lambda: bool(client.wire.written))
    client.take()
    client.send(head("alice", "POST", "/topics/orders/messages", 1_000_000))
    assert (await received(client)).status == 403
    assert await shown(door, 1) == ["User:alice POST /topics/{topic}/messages: Write Topic orders denied 1"]


async def test_what_nobody_knows_is_shown_as_any(door: GuardedDoor) -> None:
    await door.ask("alice", "DELETE", "/schedules/missing")
    await door.ask("root", "DELETE", "/schedules/missing")
    assert await shown(door, 2) == [
        "User:alice DELETE /schedules/{schedule}: Write Topic * denied 1",
        "User:root DELETE /schedules/{schedule}: Write Topic * allowed 1",
    ]
