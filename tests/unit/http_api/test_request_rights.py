"""What clients without rights try: names that may not exist, rights that go while a request waits, large requests."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from conveyor.broker.slices import Slices
from conveyor.cluster.topic_change import ConfigChange, Operation
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.http.endpoints.endpoint import Endpoint
from conveyor.http_api.application import ENDPOINTS
from conveyor.kernel.errors import RequestError
from conveyor.queues.subscription.policy import StartPosition
from tests.callers import CALLER
from tests.unit.http.memory_wire import until
from tests.unit.http_api.guarded_door import GuardedDoor, guarded_door, head, received
from tests.unit.http_api.test_rights_of_endpoints import BODIES, PATH, name_of

DENIED = {
    "topic": "403 topic_authorization_failed",
    "group": "403 group_authorization_failed",
}
LEASE = ("read group billing", "read topic orders")


@pytest.fixture
async def door() -> AsyncIterator[GuardedDoor]:
    async with guarded_door() as door:
        yield door


@pytest.mark.parametrize("endpoint", [each for each in ENDPOINTS if "{" in each.path], ids=name_of)
async def test_what_is_forbidden_looks_like_what_is_missing(door: GuardedDoor, endpoint: Endpoint) -> None:
    """Whoever has rights on other things learns nothing from a name: neither in the path, nor in the body."""
    operations = ("read", "write", "delete", "alter", "alterconfigs", "describeconfigs")
    await door.allow("alice", *(f"{each} topic mails" for each in operations))
    await door.allow("alice", "read group mine", "delete group mine", "alterconfigs group mine")
    answers = []
    for suffix in ("", "x"):
        target = endpoint.path.format_map({name: f"{value}{suffix}" for name, value in PATH.items()})
        answers.append(await door.ask("alice", endpoint.method, target, BODIES.get(name_of(endpoint))))
    assert answers[0] == answers[1]
    assert answers[0].status == 403


async def test_only_who_may_do_something_with_all_topics_learns_that_there_is_no_such_schedule(
    door: GuardedDoor,
) -> None:
    assert (await door.ask("root", "GET", "/schedules/none")).kind == "404 unknown_schedule"
    await door.allow("alice", "write topic mails", "describe topic mails")
    assert (await door.ask("alice", "GET", "/schedules/none")).kind == DENIED["topic"]
    await door.allow("alice", "describe topic *")
    assert (await door.ask("alice", "GET", "/schedules/none")).kind == "404 unknown_schedule"
    assert (await door.ask("alice", "DELETE", "/schedules/none")).kind == DENIED["topic"]
    await door.deny("alice", "describe topic orders")
    missing, forbidden = [await door.ask("alice", "GET", f"/schedules/{name}") for name in ("none", "nightly")]
    assert missing == forbidden
    assert missing.kind == DENIED["topic"]


async def test_path_with_the_wrong_topic_says_nothing_of_it(door: GuardedDoor) -> None:
    await door.allow("alice", "read group billing", "read topic orders")
    answers = [await door.ask("alice", "GET", f"/topics/{name}/subscriptions/billing") for name in ("mails", "wrong")]
    assert [answer.kind for answer in answers] == ["404 unknown_subscription"] * 2
    details = [answer.document["detail"] for answer in answers]
    assert details[0].replace("mails", "wrong") == details[1]
    await door.allow("alice", "describe topic wrong")
    assert (await door.ask("alice", "GET", "/topics/wrong/subscriptions/billing")).kind == "404 unknown_topic"


async def test_refusals_name_the_topic_of_a_subscription_only_to_those_who_may_describe_it(door: GuardedDoor) -> None:
    await door.allow("alice", "read group billing", "read topic mails")

    async def refusals() -> list[Any]:
        created = await door.ask("alice", "POST", "/topics/mails/subscriptions", {"name": "billing"})
        found = await door.ask("alice", "GET", "/topics/mails/subscriptions/billing")
        assert [created.kind, found.kind] == ["409 subscription_already_exists", "404 unknown_subscription"]
        return [answer.document["detail"] for answer in (created, found)]

    assert not any("orders" in refusal for refusal in await refusals())
    await door.allow("alice", "describe topic orders")
    assert all("it belongs to topic 'orders'" in refusal for refusal in await refusals())


async def test_name_of_another_users_schedule_shows_no_topic(door: GuardedDoor) -> None:
    await door.allow("alice", "write topic mails")
    body = {"name": "nightly", "topic": "mails", "cron": "0 2 * * *"}
    refused = await door.ask("alice", "POST", "/schedules", body)
    assert refused.kind == "409 schedule_already_exists"
    assert "orders" not in refused.document["detail"]


@pytest.mark.parametrize("target", ["/topics/%6Frders/messages", "/topics/orders/messages"])
async def test_names_are_compared_as_they_are_meant(door: GuardedDoor, target: str) -> None:
    await door.allow("alice", "write topic %6Frders", "write topic ORDERS", "write topic orders2")
    assert (await door.ask("alice", "POST", target, b"x")).kind == DENIED["topic"]
    await door.allow("alice", "write topic orders")
    assert (await door.ask("alice", "POST", target, b"x")).status == 201


async def test_checks_of_long_names_are_not_remembered(door: GuardedDoor) -> None:
    await door.allow("alice", "read topic a*")
    assert door.rights is not None
    before = len(passed := door.rights._passed)
    for size in (511, 512):
        assert (await door.ask("alice", "GET", f"/topics/{'a' * size}/messages/1")).kind == "404 unknown_topic"
    assert len(passed) == before + 1


async def test_encoded_slash_leads_to_no_other_name(door: GuardedDoor) -> None:
    await door.allow("alice", "write topic mails*")
    assert (await door.ask("alice", "POST", "/topics/mails%2F..%2Forders/messages", b"x")).status in (403, 404)
    assert (await door.ask("alice", "POST", "/topics/mails/../orders/messages", b"x")).status == 404


def ends(door: GuardedDoor) -> list[int]:
    return sorted(partition.log.log_end_offset for partition in door.broker.partitions.table)


@pytest.mark.parametrize("order", [1, -1])
async def test_one_forbidden_topic_refuses_the_whole_body(door: GuardedDoor, order: int) -> None:
    await door.allow("alice", "write topic mails", "read group billing", "read topic orders")
    messages = [{"topic": topic, "payload": "p"} for topic in ("mails", "orders")][::order]
    before = ends(door)
    acknowledge = [{"subscription": "billing", "message_ids": ["0-0"]}]
    for path, body in (
        ("/messages:batch", {"messages": messages}),
        ("/transactions", {"messages": messages}),
        ("/transactions", {"messages": messages, "acknowledge": acknowledge}),
    ):
        assert (await door.ask("alice", "POST", path, body)).kind == DENIED["topic"]
    forbidden = [*acknowledge, {"subscription": "other", "message_ids": ["0-0"]}][::order]
    body = {"messages": [{"topic": "mails", "payload": "p"}], "acknowledge": forbidden}
    assert (await door.ask("alice", "POST", "/transactions", body)).kind == DENIED["group"]
    assert ends(door) == before


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/topics/new/messages", b"x"),
        ("/topics/new/messages:batch", {"messages": [{"payload": "p"}]}),
        ("/messages:batch", {"messages": [{"topic": "new", "payload": "p"}, {"topic": "mails", "payload": "p"}]}),
        ("/transactions", {"messages": [{"topic": "mails", "payload": "p"}, {"topic": "new", "payload": "p"}]}),
    ],
)
@pytest.mark.parametrize("right", ["create topic new", "create topic n*", "create cluster kafka-cluster"])
async def test_topic_that_is_created_by_a_message_needs_the_right_to_create_it(
    door: GuardedDoor, path: str, body: Any, right: str
) -> None:
    await door.allow("alice", "write topic new", "write topic mails", "create topic mails")
    assert (await door.ask("alice", "POST", path, body)).kind == DENIED["topic"]
    assert "new" not in door.broker.metadata.image.topics
    await door.allow("alice", right)
    assert (await door.ask("alice", "POST", path, body)).status in (200, 201)
    await door.allow_only("alice", ["write topic new", "write topic mails"])
    assert (await door.ask("alice", "POST", path, body)).status in (200, 201), "it exists by now"


async def test_who_may_write_learns_that_the_broker_creates_no_topic() -> None:
    async with guarded_door({"broker.auto_create_topics": False}) as door:
        assert (await door.ask("alice", "POST", "/topics/new/messages", b"x")).kind == DENIED["topic"]
        await door.allow("alice", "write topic new")
        assert (await door.ask("alice", "POST", "/topics/new/messages", b"x")).kind == "404 unknown_topic"
        creates = ConfigChange(name="auto.create.topics.enable", operation=Operation.SET, value="true")
        await door.broker.cluster.dynamic_settings.change_broker(CALLER, None, [creates])
        assert (await door.ask("alice", "POST", "/topics/new/messages", b"x")).kind == DENIED["topic"]


async def test_topic_is_created_for_messages_only_to_targets_that_the_client_may_write_to(door: GuardedDoor) -> None:
    await door.allow("alice", "create topic late")
    late = {"name": "late", "config": {"delay.target": "orders"}}
    assert (await door.ask("alice", "POST", "/topics", late)).kind == DENIED["topic"]
    await door.allow("alice", "write topic orders")
    assert (await door.ask("alice", "POST", "/topics", late)).status == 201


async def test_lists_leave_out_what_the_client_has_no_right_to(door: GuardedDoor) -> None:
    broker = door.broker
    await broker.queues.lifecycle.create(CALLER, "orders", "audit", StartPosition(kind="earliest"), {})
    await broker.queues.lifecycle.create(CALLER, "mails", "sender", StartPosition(), {"dead_letter_topic": "dead"})
    await door.ask("root", "POST", "/schedules", {"name": "weekly", "topic": "mails", "cron": "0 3 * * 1"})
    for user, topics, subscriptions, schedules, dead in (
        ("alice", [], [], [], []),
        ("root", ["mails", "orders"], ["audit", "billing", "sender"], ["nightly", "weekly"], ["dead", "orders.dlq"]),
    ):
        assert await names(door, user, "/topics", "topics") == topics
        assert await names(door, user, "/subscriptions", "subscriptions") == subscriptions
        assert await names(door, user, "/schedules", "schedules") == schedules
        assert await names(door, user, "/dlq", "topics", "topic") == dead
    await door.allow("alice", "read topic orders", "describe topic orders.dlq", "describe group billing")
    assert await names(door, "alice", "/topics", "topics") == ["orders"]
    assert await names(door, "alice", "/subscriptions", "subscriptions") == ["billing"]
    assert await names(door, "alice", "/topics/orders/subscriptions", "subscriptions") == ["billing"]
    assert await names(door, "alice", "/schedules", "schedules") == ["nightly"]
    [dead_letters] = (await door.ask("alice", "GET", "/dlq")).document["topics"]
    assert dead_letters == {"topic": "orders.dlq", "depth": 0, "subscriptions": ["billing"]}
    states = (await door.ask("alice", "GET", "/topics/orders/messages/0-0/ack")).document["subscriptions"]
    assert states.keys() == {"billing"}
    await door.allow("alice", "describeconfigs topic orders")
    shown = (await door.ask("alice", "GET", "/topics/orders")).document
    assert shown["subscriptions"] == ["billing"]


async def names(door: GuardedDoor, user: str, path: str, field: str, name: str = "name") -> list[str]:
    answer = await door.ask(user, "GET", path)
    assert answer.status == 200
    return [item[name] for item in answer.document[field]]


async def test_list_of_topics_leaves_out_settings_that_the_client_may_not_see(door: GuardedDoor) -> None:
    await door.allow("alice", "read topic orders", "read topic mails", "describeconfigs topic mails")
    mails, orders = (await door.ask("alice", "GET", "/topics")).document["topics"]
    assert (mails["name"], mails["config"]) == ("mails", {})
    assert "config" not in orders


async def test_long_lists_are_decided_on_in_turns(door: GuardedDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = counted_turns(monkeypatch)
    for number in range(300):
        await door.broker.topics.create(CALLER, TopicRequest(name=f"a{number}", partitions=1))
    await door.allow("alice", "describe topic a*")
    turns.clear()
    assert len(await names(door, "alice", "/topics", "topics")) == 300
    assert len(turns) == 2  # One for the topics, one for their settings.


def counted_turns(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    turns: list[None] = []
    turn = Slices.turn

    async def counted(self: Slices) -> None:
        turns.append(None)
        await turn(self)

    monkeypatch.setattr(Slices, "turn", counted)
    return turns


async def test_bodies_with_many_names_are_decided_on_in_turns(
    door: GuardedDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = counted_turns(monkeypatch)
    await door.allow("alice", "write topic a*", "create topic a1*")
    topics = [f"a{number}" for number in range(1_000)] + ["b"]
    body = {"messages": [{"topic": topic, "payload": None} for topic in topics]}
    before = ends(door)
    assert (await door.ask("alice", "POST", "/messages:batch", body)).kind == DENIED["topic"]
    assert len(turns) == 4
    body["messages"].pop()
    assert (await door.ask("alice", "POST", "/messages:batch", body)).kind == DENIED["topic"]
    assert len(turns) >= 8, "they may be written to, and not all of them may be created"
    assert ends(door) == before


async def test_request_is_refused_before_its_body(door: GuardedDoor) -> None:
    await door.ask("alice", "GET", "/topics")  # Logged in.
    client = door.send("alice", "GET", "/healthz")
    assert (await received(client)).status == 200
    client.send(head("alice", "POST", "/topics/orders/messages", 1_000_000))
    assert (await received(client)).kind == DENIED["topic"]


async def test_right_that_goes_while_the_body_comes_is_missing(door: GuardedDoor) -> None:
    await door.allow("alice", "write topic orders")
    client = door.send("alice", "GET", "/healthz")
    await received(client)
    before = ends(door)
    client.send(head("alice", "POST", "/topics/orders/messages", 4) + b"ab")
    await door.ask("root", "GET", "/topics")
    assert not client.wire.written
    await door.forget("alice", "write topic orders")
    client.send(b"cd")
    assert (await received(client)).kind == DENIED["topic"]
    assert ends(door) == before


@pytest.mark.parametrize("lost", LEASE)
async def test_lease_that_waits_gets_nothing_once_a_right_is_lost(door: GuardedDoor, lost: str) -> None:
    await take_all(door)
    await door.allow("alice", *LEASE)
    waiting = door.send("alice", "GET", "/subscriptions/billing/messages?wait=20s")
    next_one = door.send("root", "GET", "/subscriptions/billing/messages?wait=20s")
    waiters = door.broker.queues.leases._waiters._waiting
    await until(lambda: [len(queue) for queue in waiters.get("orders", {}).values()] == [2])
    await door.forget("alice", lost)
    assert (await door.ask("root", "POST", "/topics/orders/messages", b"secret")).status == 201
    assert (await received(waiting)).kind == DENIED[lost.split(" ")[1]]
    [message] = (await received(next_one)).document["messages"]
    assert (message["payload"], message["delivery_count"]) == ("secret", 1)


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
async def test_answer_that_takes_time_is_not_sent_once_the_right_is_lost(
    door: GuardedDoor, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    await door.allow("alice", "describe group billing", "read topic orders")
    inspection = door.broker.queues.inspection
    peek = inspection.peek

    async def slow(*arguments: Any) -> Any:
        peeked = await peek(*arguments)
        await door.forget("alice", "read topic orders")
        return peeked

    monkeypatch.setattr(inspection, "peek", slow)
    assert (await door.ask("alice", method, "/subscriptions/billing/peek")).status == 403


async def test_list_that_takes_time_is_not_sent_once_the_right_is_lost(
    door: GuardedDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    await door.allow("alice", "describe group billing", "read topic orders")
    scheduled = door.broker.queues.scheduled
    of_subscription = scheduled.of_subscription

    async def slow(*arguments: Any) -> Any:
        page = await of_subscription(*arguments)
        await door.forget("alice", "describe group billing")
        return page

    assert (await door.ask("alice", "GET", "/subscriptions/billing/scheduled")).status == 200
    monkeypatch.setattr(scheduled, "of_subscription", slow)
    assert (await door.ask("alice", "GET", "/subscriptions/billing/scheduled")).status == 403


async def take_all(door: GuardedDoor) -> None:
    [message] = await door.broker.queues.leases.lease(CALLER, "billing", 10, 0, None)
    assert message.message.value == b"now"


async def test_long_redrive_ends_once_a_right_is_lost(door: GuardedDoor) -> None:
    for _ in range(4):
        await door.ask("root", "POST", "/topics/orders/messages", b"x")
    leased = (await door.ask("root", "GET", "/subscriptions/billing/messages?max_messages=5")).document["messages"]
    rejected = {"message_ids": [message["message_id"] for message in leased]}
    await door.ask("root", "POST", "/subscriptions/billing/reject", rejected)
    await door.allow("alice", "delete group billing", "read topic orders")

    async def dead() -> int:
        return int((await door.ask("root", "GET", "/subscriptions/billing")).document["dead"])

    while await dead() < 5:
        pass
    client = door.send("alice", "POST", "/dlq/billing/redrive", {"rate": 1})
    while await dead() == 5:
        pass
    await door.forget("alice", "read topic orders")
    door.clock.advance(seconds=1)
    assert (await received(client)).kind == DENIED["topic"]
    assert await dead() >= 3, "one may be on its way"


async def test_readiness_shows_no_names_to_those_who_may_not_see_them(
    door: GuardedDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(door.broker.partitions.table), "offline", lambda _: {"orders-0": "damaged"})
    shown = await door.ask(None, "GET", "/readyz")
    assert (shown.status, shown.document) == (503, {"status": "degraded", "offline_partitions": {}})
    await door.allow("ANONYMOUS", "describe cluster kafka-cluster")
    assert (await door.ask(None, "GET", "/readyz")).document["offline_partitions"] == {"orders-0": "damaged"}


async def test_door_of_a_broker_without_acls_asks_for_no_rights() -> None:
    async with guarded_door({"access.enabled": False}) as door:
        assert (await door.ask("alice", "GET", "/schedules/none")).kind == "404 unknown_schedule"
        assert (await door.ask("alice", "DELETE", "/topics/orders")).status == 204
        with pytest.raises(RequestError):
            await door.allow("alice", "read topic orders")


async def test_client_that_has_not_logged_in_has_the_rights_of_anonymous() -> None:
    async with guarded_door({"network.http_users": False}) as door:
        assert (await door.ask(None, "POST", "/topics/orders/messages", b"x")).kind == DENIED["topic"]
        await door.allow("ANONYMOUS", "write topic orders")
        assert (await door.ask(None, "POST", "/topics/orders/messages", b"x")).status == 201
