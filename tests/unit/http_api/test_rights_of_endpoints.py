"""Every endpoint refuses each request that lacks one of the rights it declares, before it has an effect.

The rights of a request are derived from the declaration and the request, so a new endpoint is tested at once if its
body is known here.
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.clients import credentials
from conveyor.http.endpoints.endpoint import Endpoint
from conveyor.http_api.application import ENDPOINTS
from conveyor.kernel.access.acl import CLUSTER_NAME, ResourceType
from conveyor.kernel.access.declared_access import Access, AnyOf
from tests.callers import CALLER
from tests.unit.http_api.guarded_door import Answer, GuardedDoor, guarded_door

PATH = {"topic": "orders", "subscription": "billing", "schedule": "nightly", "message_id": "0-1"}
KNOWN = {
    "subscription.topic": "orders",
    "subscription.dead_letter_topic": "orders.dlq",
    "schedule.topic": "orders",
}
"""What the broker knows of the things in the path, and in the bodies."""

MESSAGE = {"topic": "mails", "payload": "p"}
BODIES: dict[str, Any] = {
    "POST /topics": {"name": "new", "config": {"delay.target": "mails"}},
    "PATCH /topics/{topic}": {"partitions": 2, "config": {"retention.ms": 1000}},
    "POST /topics/{topic}/messages": b"p",
    "POST /topics/{topic}/messages:batch": {"messages": [{"payload": "p"}]},
    "POST /messages:batch": {"messages": [MESSAGE, {**MESSAGE, "topic": "orders"}]},
    "POST /transactions": {
        "messages": [MESSAGE],
        "acknowledge": [{"subscription": "billing", "message_ids": ["0-0"]}],
    },
    "POST /topics/{topic}/subscriptions": {"name": "second", "dead_letter_topic": "mails"},
    "PATCH /topics/{topic}/subscriptions/{subscription}": {"dead_letter_topic": "mails"},
    "PATCH /subscriptions/{subscription}": {"dead_letter_topic": "mails"},
    "POST /subscriptions/{subscription}/ack": {"message_ids": ["0-0"]},
    "POST /subscriptions/{subscription}/nack": {"message_ids": ["0-0"]},
    "POST /subscriptions/{subscription}/extend": {"message_ids": ["0-0"], "visibility": "1s"},
    "POST /subscriptions/{subscription}/reject": {"message_ids": ["0-0"]},
    "POST /subscriptions/{subscription}/seek": {"start": "latest"},
    "POST /schedules": {"name": "weekly", "topic": "mails", "cron": "0 3 * * 1"},
    "PATCH /schedules/{schedule}": {"topic": "mails"},
}
"""A valid body for each endpoint that needs one."""

STATUSES = {"GET /topics/{topic}/scheduled": 400}
"""The answers of endpoints that cannot do what is asked of the things in the path: this one wants a delayed topic."""

REFUSALS = {
    "Topic": "403 topic_authorization_failed",
    "Group": "403 group_authorization_failed",
    "Cluster": "403 cluster_authorization_failed",
}


class Asked(NamedTuple):
    """A request of this test."""

    method: str
    target: str
    body: Any


def name_of(endpoint: Endpoint) -> str:
    return f"{endpoint.method} {endpoint.path}"


def requests(endpoint: Endpoint) -> Iterator[Asked]:
    target = endpoint.path.format_map(PATH)
    yield Asked(endpoint.method, target, BODIES.get(name_of(endpoint)))
    if endpoint.method == "GET" and endpoint.takes_head:
        yield Asked("HEAD", target, None)


def named(path: str, body: Any) -> list[str]:
    """Return the resources to which a declared path leads."""
    first, *rest = path.split(".")
    if first != "body":
        return [PATH[first] if not rest else KNOWN[path]]
    found = [body]
    while rest:
        if found and isinstance(found[0], str):
            return [KNOWN[f"subscription.{rest[0]}"]]
        key = rest.pop(0)
        if key == "delay":
            key = f"{key}.{rest.pop(0)}"
        values = [value[key] for value in found if key in value]
        found = [item for value in values for item in (value if isinstance(value, list) else [value])]
    return found


def rights(endpoint: Endpoint, body: Any) -> dict[str, str]:
    """Return the rights that a request needs, each with the refusal if it is missing."""
    found: dict[str, str] = {}
    for need in endpoint.needs:
        if isinstance(need, AnyOf) and need.to_create:
            continue  # All topics exist.
        access = need.alternatives[-1] if isinstance(need, AnyOf) else need
        names = [name for path in access.named_by for name in named(path, body)]
        if access.resource_type is ResourceType.CLUSTER:
            names = [CLUSTER_NAME]
        kind = access.resource_type.value
        found |= {f"{access.operation.value} {kind} {name}": REFUSALS[kind] for name in names}
    return found


async def state(broker: BrokerNode) -> Any:
    """Return what requests have an effect on: the metadata, the logs, and the leases."""
    image = broker.metadata.image
    stats = await broker.queues.statistics.stats(CALLER, "billing")
    ends = {str(partition.identity): partition.log.log_end_offset for partition in broker.partitions.table}
    shared = image.topics, image.subscriptions, image.schedules, image.acls
    return shared, ends, stats.in_flight, stats.depth, stats.retried


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "_REFUSAL_PAUSE_S", 0)


def test_every_endpoint_that_reads_a_body_has_one_here() -> None:
    needing = {name_of(each) for each in ENDPOINTS if each.signature.body is not None and "body" in str(each.needs)}
    assert needing <= BODIES.keys() <= {name_of(each) for each in ENDPOINTS}


def test_declarations_have_only_what_this_door_decides_on() -> None:
    """A need that the door would ignore is not declared."""
    for endpoint in ENDPOINTS:
        for need in endpoint.needs:
            *others, last = need.alternatives if isinstance(need, AnyOf) else (need,)
            assert all(each.resource_type is ResourceType.CLUSTER for each in others)
            for access in (*others, last):
                assert access == Access(access.operation, access.resource_type, access.named_by)
                indirect = {path for path in access.named_by if "." in path and not path.startswith("body.")}
                assert indirect <= KNOWN.keys()


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=name_of)
async def test_requests_need_each_right_and_no_other(endpoint: Endpoint) -> None:
    async with guarded_door() as door:
        asked = list(requests(endpoint))
        needed = rights(endpoint, asked[0].body)
        if not endpoint.is_public:
            await assert_nobody_gets_in(door, asked)
            await assert_each_is_needed(door, asked, needed)
        await door.allow_only("alice", needed)
        await door.broker.queues.leases.lease(CALLER, "billing", 1, 0, None)  # The message that bodies acknowledge.
        for request in reversed(asked):  # That of the endpoint itself last: it may delete what the path names.
            answer = await door.ask("alice", *request)
            assert answer.status == STATUSES.get(name_of(endpoint), endpoint.status), answer


async def assert_nobody_gets_in(door: GuardedDoor, asked: list[Asked]) -> None:
    before = await state(door.broker)
    for request in asked:
        assert (await door.ask(None, *request)).status == 401
        assert (await door.ask("eve", *request)).status == 401
    assert await state(door.broker) == before


async def assert_each_is_needed(door: GuardedDoor, asked: list[Asked], needed: dict[str, str]) -> None:
    """No subset of the rights that lacks one is enough, nor all rights on other things."""
    others = [f"{right}2" for right in needed if not right.endswith(CLUSTER_NAME)]
    for missing, refusal in needed.items():
        for had in ([right for right in needed if right != missing], others):
            await door.allow_only("alice", had)
            before = await state(door.broker)
            for request in asked:
                answer = await door.ask("alice", *request)
                assert answer.status == 403, (missing, answer)
                assert request.method == "HEAD" or had is others or answer.kind == refusal
                assert_says_nothing(answer, request)
            assert await state(door.broker) == before


def assert_says_nothing(answer: Answer, asked: Asked) -> None:
    """The refusal names nothing but the right."""
    if asked.method != "HEAD":
        assert re.fullmatch(r"User:alice has no right to \w+ (Topic|Group|Cluster)", answer.document["detail"])
