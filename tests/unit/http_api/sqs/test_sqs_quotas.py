"""Quotas hold for SQS as for REST, by operation. The clock stands still."""

from collections.abc import AsyncIterator

import pytest

from conveyor.cluster.quotas import USER, QuotaChange
from conveyor.http_api.sqs.actions.action_table import ACTIONS
from tests.callers import CALLER
from tests.unit.http_api.guarded_door import GuardedDoor, guarded_door
from tests.unit.http_api.sqs.test_sqs_rights import ask

BODY = {"MessageBody": "m" * 10_000}
THROTTLED = "<Code>RequestThrottled</Code>"


@pytest.fixture
async def door() -> AsyncIterator[GuardedDoor]:
    async with guarded_door() as door:
        await ask(door, "root", "CreateQueue", {"QueueName": "work"})
        await door.allow("alice", "write topic work", "read topic work", "read group work", "create cluster *")
        yield door


async def limit(door: GuardedDoor, key: str, value: float) -> None:
    await door.broker.clients.quotas.alter(CALLER, ((USER, "alice"),), [QuotaChange(key=key, value=value)])


async def test_bytes_that_are_sent_count(door: GuardedDoor) -> None:
    await limit(door, "producer_byte_rate", 1)
    assert (await ask(door, "alice", "SendMessage", BODY))[0] == 200
    assert THROTTLED in (await ask(door, "alice", "SendMessage", BODY))[1]
    assert (await ask(door, "alice", "ReceiveMessage", {}))[0] == 200
    assert (await ask(door, "root", "SendMessage", BODY))[0] == 200


async def test_bytes_that_are_received_count(door: GuardedDoor) -> None:
    await limit(door, "consumer_byte_rate", 1)
    for _ in range(2):
        assert (await ask(door, "alice", "SendMessage", BODY))[0] == 200
    assert (await ask(door, "alice", "ReceiveMessage", {}))[0] == 200
    assert THROTTLED in (await ask(door, "alice", "ReceiveMessage", {}))[1]


def test_operations_that_carry_messages_declare_their_quota() -> None:
    assert {name: action.quotas for name, action in ACTIONS.items() if action.quotas} == {
        "CreateQueue": ("controller_mutation_rate",),
        "DeleteQueue": ("controller_mutation_rate",),
        "ReceiveMessage": ("consumer_byte_rate",),
        "SendMessage": ("producer_byte_rate",),
        "SendMessageBatch": ("producer_byte_rate",),
    }
