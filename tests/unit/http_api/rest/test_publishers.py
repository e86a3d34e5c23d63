"""Documents of messages name the user who has published them, and no request can name another one."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from conveyor.records.message_attributes import PUBLISHER
from tests.unit.http_api.guarded_door import GuardedDoor, guarded_door

RIGHTS = ("write topic *", "read topic *", "describe topic *", "read group billing", "describe group billing")
ONE = "/topics/mails/messages"


@pytest.fixture
async def door() -> AsyncIterator[GuardedDoor]:
    """A door that permits almost everything to alice."""
    async with guarded_door() as door:
        await door.allow("alice", *RIGHTS)
        yield door


async def shown(door: GuardedDoor, user: str = "alice") -> list[Any]:
    return [message.get("publisher") for message in (await door.ask(user, "GET", ONE)).document["messages"]]


async def test_every_way_to_publish_names_the_user(door: GuardedDoor) -> None:
    batch = {"messages": [{"payload": "2"}, {"payload": "3", "headers": {"a": "b"}}]}
    transaction = {"messages": [{"topic": "mails", "payload": "4"}]}
    for path, body in ((ONE, b"1"), (f"{ONE}:batch", batch), ("/transactions", transaction)):
        answer = await door.ask("alice", "POST", path, body)
        assert answer.status in (200, 201), answer
    assert await shown(door) == ["User:alice"] * 4
    await door.ask("root", "POST", ONE, b"5")
    assert (await shown(door))[-1] == "User:root"


async def test_every_document_of_a_message_names_the_user(door: GuardedDoor) -> None:
    await door.ask("alice", "POST", "/topics/orders/messages", b"1")
    for path in (
        "/topics/orders/messages",
        "/subscriptions/billing/peek",
        "/subscriptions/billing/messages?max_messages=10",
    ):
        messages = (await door.ask("alice", "GET", path)).document["messages"]
        by_payload = {message["payload"]: message.get("publisher", "nobody") for message in messages}
        assert (by_payload["1"], by_payload["now"]) == ("User:alice", "nobody")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", f"{ONE}?header={PUBLISHER}:User:root", b"1"),
        (
            "POST",
            "/schedules",
            {"name": "s", "topic": "mails", "cron": "0 3 * * *", "headers": {PUBLISHER: "User:root"}},
        ),
        ("PATCH", "/schedules/nightly", {"headers": {PUBLISHER: ["a", "User:root"]}}),
        ("POST", "/transactions", {"messages": [{"topic": "mails", "payload": "1", "headers": {PUBLISHER: None}}]}),
        ("POST", "/messages:batch", {"messages": [{"topic": "mails", "payload": "1", "headers": {PUBLISHER: "a"}}]}),
    ],
)
async def test_request_that_names_a_publisher_is_refused(
    door: GuardedDoor, method: str, path: str, body: object
) -> None:
    for user in ("alice", "root"):
        answer = await door.ask(user, method, path, body)
        assert answer.kind == "400 invalid_request"
        assert "as the broker sets it" in answer.document["detail"]
    assert await shown(door) == []


async def test_message_of_a_batch_that_names_a_publisher_is_refused(door: GuardedDoor) -> None:
    messages = [{"payload": "1", "headers": {PUBLISHER: {"base64": "VXNlcjpyb290"}}}, {"payload": "2"}]
    results = (await door.ask("alice", "POST", f"{ONE}:batch", {"messages": messages})).document["results"]
    assert [result["status"] for result in results] == ["error", "ok"]
    assert await shown(door) == ["User:alice"]


async def test_schedule_shows_its_owner(door: GuardedDoor) -> None:
    schedule = {"name": "s", "topic": "mails", "cron": "0 3 * * *"}
    assert (await door.ask("alice", "POST", "/schedules", schedule)).document["owner"] == "User:alice"
    assert (await door.ask("root", "PATCH", "/schedules/s", {"paused": True})).document["owner"] == "User:alice"
    assert (await door.ask("root", "PATCH", "/schedules/s", {"payload": "x"})).document["owner"] == "User:root"
    listed = (await door.ask("root", "GET", "/schedules")).document["schedules"]
    assert {each["name"]: each["owner"] for each in listed} == {"s": "User:root", "nightly": None}
