"""Quotas of REST clients: what is counted, what is refused, and for how long. The clock stands still."""

import sys
from collections.abc import AsyncIterator
from types import FrameType

import pytest
from msgspec.structs import replace

from conveyor.cluster.quotas import CLIENT_ID, USER, QuotaChange, QuotaEntity
from conveyor.http_api.application import ENDPOINTS
from conveyor.kernel.access.caller import Principal, PrincipalType
from tests.callers import CALLER
from tests.unit.http.memory_wire import Client, until
from tests.unit.http_api.guarded_door import Answer, GuardedDoor, guarded_door, head, received

ALICE: QuotaEntity = ((USER, "alice"),)
ROOT: QuotaEntity = ((USER, "root"),)
PUBLISH = "/topics/orders/messages"
LEASE = "/subscriptions/billing/messages?max_messages=100"
OVER = "429 throttling_quota_exceeded"


@pytest.fixture
async def door() -> AsyncIterator[GuardedDoor]:
    async with guarded_door() as made:
        await made.allow("alice", "write topic orders", "read topic orders", "read group billing")
        yield made


async def limit(door: GuardedDoor, entity: QuotaEntity = ALICE, **rates: float | None) -> None:
    changes = [QuotaChange(key=key, value=value) for key, value in rates.items()]
    await door.broker.clients.quotas.alter(CALLER, entity, changes)


async def retry_after(client: Client) -> int:
    """Return the header of a request that is refused by a quota."""
    await until(lambda: bool(client.wire.written))
    head = client.take()
    assert head.startswith(b"HTTP/1.1 429 ")
    return int(head.partition(b"\r\nRetry-After: ")[2].partition(b"\r\n")[0])


async def publish(door: GuardedDoor, size_bytes: int, user: str = "alice", target: str = PUBLISH) -> int:
    return (await door.ask(user, "POST", target, bytes(size_bytes))).status


async def test_publishing_over_the_quota_is_served_and_makes_later_requests_wait(door: GuardedDoor) -> None:
    await limit(door, producer_byte_rate=1000)
    assert await publish(door, 19_960) == 201
    refused = await door.ask("alice", "POST", PUBLISH, b"next")
    assert (refused.kind, refused.document["retriable"]) == (OVER, True)
    assert refused.document["detail"] == "the quota producer_byte_rate is exceeded: retry in 10 s"
    assert await retry_after(door.send("alice", "POST", PUBLISH, b"next")) == 10
    door.clock.advance(ms=9_999)
    assert await retry_after(door.send("alice", "POST", PUBLISH, b"next")) == 1
    assert door.broker.clients.quotas.throttled["producer_byte_rate"] == 3
    assert await publish(door, 20_000, "root") == 201, "nobody else waits"
    door.clock.advance(ms=1)
    assert await publish(door, 1) == 201


async def test_refusal_needs_only_the_head(door: GuardedDoor) -> None:
    await limit(door, producer_byte_rate=1)
    assert await publish(door, 1000) == 201
    client = door.send("alice", "POST", PUBLISH, b"")
    client.take()
    client.send(head("alice", "POST", PUBLISH, 1_000_000))
    assert await retry_after(client) > 1


async def test_waiting_is_as_long_as_the_excess_however_little_came_before(door: GuardedDoor) -> None:
    """The windows that a rate is measured over are shorter than the wait."""
    await limit(door, producer_byte_rate=1000)
    assert await publish(door, 99_960) == 201
    door.clock.advance(seconds=60)
    assert await retry_after(door.send("alice", "POST", PUBLISH, b"next")) == 30
    await limit(door, producer_byte_rate=1_000_000)
    assert await publish(door, 1) == 201, "a new limit does not punish what was done under the old one"


@pytest.mark.parametrize(
    ("target", "document"),
    [
        ("/topics/orders/messages:batch", {"messages": [{"payload": "a" * 10_000}, {"payload": "a" * 10_000}]}),
        ("/topics/orders/messages:batch", {"messages": [{"payload": "", "headers": {"h": ["v"] * 50}}] * 200}),
        ("/messages:batch", {"messages": [{"topic": "orders", "payload": "", "key": "k" * 20_000}]}),
        ("/transactions", {"messages": [{"topic": "orders", "payload": "a" * 20_000}]}),
    ],
)
async def test_batches_and_transactions_are_counted(door: GuardedDoor, target: str, document: object) -> None:
    await limit(door, ROOT, producer_byte_rate=1000)
    assert (await door.ask("root", "POST", target, document)).status == 200
    assert (await door.ask("root", "POST", target, document)).kind == OVER


@pytest.mark.parametrize(
    "target",
    [
        LEASE,
        "/topics/orders/subscriptions/billing/messages?max_messages=100",
        "/subscriptions/billing/peek",
        "/topics/orders/messages",
        "/topics/orders/messages/0-2",
    ],
)
async def test_messages_in_answers_are_counted(door: GuardedDoor, target: str) -> None:
    assert await publish(door, 19_960, "root") == 201
    await limit(door, ROOT, consumer_byte_rate=1000)
    assert (await door.ask("root", "GET", target)).status == 200
    assert (await door.ask("root", "GET", target)).kind == OVER
    assert (await door.ask("root", "POST", "/subscriptions/billing/ack", {"message_ids": ["0-0"]})).status == 200
    assert await publish(door, 1, "root") == 201, "each quota refuses what counts for it"


async def test_dead_letters_in_answers_are_counted(door: GuardedDoor) -> None:
    assert await publish(door, 19_960, "root") == 201
    await door.ask("root", "POST", "/subscriptions/billing/reject", {"message_ids": ["0-1"]})
    leased = (await door.ask("root", "GET", LEASE)).document["messages"]
    rejected = {"ack_ids": [message["ack_id"] for message in leased]}
    assert (await door.ask("root", "POST", "/subscriptions/billing/reject", rejected)).status == 200
    await limit(door, ROOT, consumer_byte_rate=1)
    shown: Answer | None = None
    while shown is None or not shown.document["messages"]:  # Its copy takes a moment to be made.
        shown = await door.ask("root", "GET", "/dlq/billing")
    assert (await door.ask("root", "GET", "/dlq/billing")).kind == OVER


async def test_waiting_request_is_not_refused_in_the_middle(door: GuardedDoor) -> None:
    assert len((await door.ask("alice", "GET", LEASE)).document["messages"]) == 1
    await limit(door, consumer_byte_rate=1)
    waiting = [door.send("alice", "GET", "/subscriptions/billing/messages?wait=20s") for _ in range(2)]
    for _ in range(2):
        assert await publish(door, 1000, "root") == 201
    for client in waiting:
        answer = await received(client)
        assert (answer.status, len(answer.document["messages"])) == (200, 1)
    assert (await door.ask("alice", "GET", f"{LEASE}&wait=20s")).kind == OVER


async def test_client_id_of_a_lease_has_its_own_quota(door: GuardedDoor) -> None:
    assert await publish(door, 19_960, "root") == 201
    await limit(door, ((CLIENT_ID, "app"),), consumer_byte_rate=1000)
    assert (await door.ask("alice", "GET", f"{LEASE}&client_id=app")).status == 200
    assert (await door.ask("root", "GET", f"{LEASE}&client_id=app")).kind == OVER
    assert (await door.ask("alice", "GET", f"{LEASE}&client_id=other")).status == 200
    assert (await door.ask("alice", "GET", LEASE)).status == 200


async def test_both_doors_count_in_one_rate(door: GuardedDoor) -> None:
    await limit(door, producer_byte_rate=1000)
    caller = replace(CALLER, principal=Principal(PrincipalType.USER, "alice"))
    muted: list[int] = []
    door.broker.clients.quotas.meter(caller, "app", 19_960, muted.append).produced()
    assert (await door.ask("alice", "POST", PUBLISH, b"x")).kind == OVER
    door.clock.advance(seconds=30)
    assert await publish(door, 19_960) == 201
    door.broker.clients.quotas.meter(caller, "app", 1, muted.append).produced()
    assert len(muted) == 2


async def test_time_of_requests_counts_for_all_but_the_operators_endpoints(door: GuardedDoor) -> None:
    await limit(door, ROOT, request_percentage=1e-9)
    assert (await door.ask("root", "GET", "/topics")).status == 200
    for method, target in (("GET", "/topics"), ("POST", PUBLISH), ("DELETE", "/topics/mails")):
        assert (await door.ask("root", method, target)).kind == OVER
    assert await retry_after(door.send("root", "GET", "/topics")) == 1
    for target in ("/metrics", "/healthz", "/readyz", "/openapi.json", "/docs"):
        assert (await door.ask("root", "GET", target)).status == 200
    door.clock.advance(seconds=1)
    assert await publish(door, 1, "root") == 201, "one request a window is served, as over Kafka"
    assert (await door.ask("root", "GET", "/topics")).kind == OVER


async def test_partitions_made_and_deleted_over_rest_are_counted(door: GuardedDoor) -> None:
    await limit(door, ROOT, controller_mutation_rate=1)
    made = await door.ask("root", "POST", "/topics", {"name": "many", "partitions": 12})
    assert made.status == 201
    assert (await door.ask("root", "POST", "/topics", {"name": "more"})).kind == OVER
    assert await retry_after(door.send("root", "DELETE", "/topics/many")) == 1
    assert await retry_after(door.send("root", "PATCH", "/topics/many", {"partitions": 13})) == 1
    changed = await door.ask("root", "PATCH", "/topics/many", {"config": {"retention.ms": 1000}})
    assert changed.status == 200, "settings are no partitions"
    door.clock.advance(seconds=1)
    assert (await door.ask("root", "DELETE", "/topics/many")).status == 204
    assert await retry_after(door.send("root", "DELETE", "/topics/mails")) == 12
    door.clock.advance(seconds=12)
    assert (await door.ask("root", "PATCH", "/topics/mails", {"partitions": 3})).status == 200
    assert (await door.ask("root", "POST", "/topics", {"name": "more"})).kind == OVER


async def test_request_that_is_refused_costs_no_tokens(door: GuardedDoor) -> None:
    await limit(door, ROOT, controller_mutation_rate=1)
    for _ in range(30):
        assert (await door.ask("root", "POST", "/topics", {"name": "orders"})).status == 409
        assert (await door.ask("root", "DELETE", "/topics/nowhere")).status == 404
        assert (await door.ask("root", "PATCH", "/topics/orders", {"partitions": 0})).status == 400
    assert (await door.ask("root", "DELETE", "/topics/mails")).status == 204


async def test_quota_of_anonymous_clients_is_that_of_kafkas() -> None:
    async with guarded_door({"network.http_users": False, "access.enabled": False}) as door:
        await limit(door, ((USER, "ANONYMOUS"),), producer_byte_rate=1000)
        assert (await door.ask(None, "POST", PUBLISH, bytes(20_000))).status == 201
        assert (await door.ask(None, "POST", PUBLISH, b"")).kind == OVER


async def test_requests_without_a_limit_of_theirs_are_served(door: GuardedDoor) -> None:
    await limit(
        door, ROOT, producer_byte_rate=1, consumer_byte_rate=1, request_percentage=1, controller_mutation_rate=1
    )
    for _ in range(2):
        assert await publish(door, 20_000) == 201
        assert (await door.ask("alice", "GET", LEASE)).status == 200


def test_every_endpoint_that_carries_messages_declares_its_quota() -> None:
    limited = {f"{endpoint.method} {endpoint.path}": endpoint.quotas for endpoint in ENDPOINTS if endpoint.quotas}
    assert limited == {
        "POST /topics": ("controller_mutation_rate",),
        "DELETE /topics/{topic}": ("controller_mutation_rate",),
        "POST /topics/{topic}/messages": ("producer_byte_rate",),
        "POST /topics/{topic}/messages:batch": ("producer_byte_rate",),
        "POST /messages:batch": ("producer_byte_rate",),
        "POST /transactions": ("producer_byte_rate",),
        "GET /topics/{topic}/messages": ("consumer_byte_rate",),
        "GET /topics/{topic}/messages/{message_id}": ("consumer_byte_rate",),
        "GET /subscriptions/{subscription}/messages": ("consumer_byte_rate",),
        "GET /topics/{topic}/subscriptions/{subscription}/messages": ("consumer_byte_rate",),
        "GET /subscriptions/{subscription}/peek": ("consumer_byte_rate",),
        "POST /subscriptions/{subscription}/peek": ("consumer_byte_rate",),
        "GET /dlq/{subscription}": ("consumer_byte_rate",),
    }


async def test_without_quotas_nothing_is_metered(door: GuardedDoor) -> None:
    """Not one function of the quotas, or of the calls that they meter, is called."""
    called: set[str] = set()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            called.add(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        assert await publish(door, 100) == 201
        assert (await door.ask("alice", "GET", LEASE)).status == 200
        assert (await door.ask("alice", "POST", "/subscriptions/billing/ack", {"message_ids": ["0-0"]})).status == 200
    finally:
        sys.setprofile(None)
    assert "RoutedCall.serve" in called
    foreign = ("Quotas.", "AdmittedRequest.", "MeteredCall.", "HttpCall.count_", "RestDoor.meter")
    assert [name for name in called if name.startswith(foreign)] == []
