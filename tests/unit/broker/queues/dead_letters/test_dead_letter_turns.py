"""Requests for many dead letters share the event loop: each of its turns does a bounded part of one."""

import asyncio
from collections.abc import Coroutine, Iterator, Sized
from typing import Any, TypeVar
from uuid import UUID

import pytest

from conveyor.broker.queues.dead_letters import dead_letter_reader
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.queues.messages.dead_copies import CopiedRange, CopyLog, DeadCopies
from conveyor.queues.subscription.filter_expression import MAX_COST_NS
from conveyor.queues.subscription.filters import Filter
from conveyor.queues.subscription.policy import StartPosition
from conveyor.records.message import Message, parse_message_id
from tests.callers import CALLER
from tests.unit.broker.parts import running_parts
from tests.unit.broker.queues.dead_letters.test_dead_letter_copies import reject

EARLIEST = StartPosition(kind="earliest")
PARTITIONS = 20

Result = TypeVar("Result")


async def turns_of(work: Coroutine[Any, Any, object]) -> int:
    """Return the number of the loop's turns until the work is done."""
    turns, task = 0, asyncio.ensure_future(work)
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    await task
    return turns


async def most_in_a_turn(work: Coroutine[Any, Any, Result], counted: Sized) -> tuple[Result, int]:
    """Return the result of the work, and by how much a list has grown in one of the loop's turns at most."""
    task, before, most = asyncio.ensure_future(work), 0, 0
    while not task.done():
        await asyncio.sleep(0)
        most, before = max(most, len(counted) - before), len(counted)
    return await task, most


@pytest.mark.parametrize("verb", ["drop", "redrive"])
async def test_ids_are_parsed_once_and_each_of_their_partitions_has_its_turn(
    monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    parsed: list[str] = []

    def parse(message_id: str) -> tuple[int, int]:
        parsed.append(message_id)
        return parse_message_id(message_id)

    monkeypatch.setattr(dead_letter_reader, "parse_message_id", parse)
    async with running_parts() as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=2 * PARTITIONS))
        await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
        message_ids = [f"{number % PARTITIONS}-{number}" for number in range(1_000)]
        work = getattr(broker.queues.dead_letters.redrive, verb)(CALLER, "s", message_ids=message_ids)
        assert await turns_of(work) >= PARTITIONS
    assert parsed == message_ids


async def test_copies_of_ids_are_looked_up_only_where_there_are_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[CopyLog] = []
    of_originals = DeadCopies.of_originals

    def count(copies: DeadCopies, log: CopyLog, start: int, end: int) -> Iterator[CopiedRange]:
        looked_up.append(log)
        return of_originals(copies, log, start, end)

    async with running_parts() as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=1))
        await broker.topics.create(CALLER, TopicRequest(name="dlq", partitions=PARTITIONS))
        await broker.queues.lifecycle.create(CALLER, "t", "of-t", EARLIEST, {"dead_letter_topic": "dlq"})
        await reject(broker, 1)
        monkeypatch.setattr(DeadCopies, "of_originals", count)
        message_ids = [f"0-{number}" for number in range(1_000)]
        assert await broker.queues.dead_letters.redrive.drop(CALLER, "of-t", "true", message_ids) == 1
    assert len(looked_up) == 1_000


@pytest.mark.parametrize("verb", ["peek", "drop", "redrive"])
async def test_filter_on_each_dead_letter_has_the_budget_of_a_turn(monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    evaluated: list[int] = []

    def match(wanted: Filter, message: Message) -> bool:
        wanted.spent_ns += MAX_COST_NS / 4
        evaluated.append(message.offset)
        return False

    async with running_parts() as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=1))
        await broker.queues.lifecycle.create(CALLER, "t", "of-t", EARLIEST, {})
        await reject(broker, 50)
        monkeypatch.setattr(Filter, "matches", match)
        if verb == "peek":
            work: Coroutine[Any, Any, object] = broker.queues.dead_letters.peek(CALLER, "of-t", 10, filter="false")
        else:
            work = getattr(broker.queues.dead_letters.redrive, verb)(CALLER, "of-t", filter="false")
        _, most = await most_in_a_turn(work, evaluated)
    assert evaluated == list(range(50))
    assert most == 4


async def test_few_partitions_list_their_copies_in_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each lists up to a hundred ranges."""
    listed: list[int] = []
    from_copy = DeadCopies.from_copy

    def count(copies: DeadCopies, topic_id: UUID, partition: int, offset: int) -> Iterator[CopiedRange]:
        listed.append(partition)
        return from_copy(copies, topic_id, partition, offset)

    async with running_parts() as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=120))
        await broker.topics.create(CALLER, TopicRequest(name="dlq", partitions=1))
        await broker.queues.lifecycle.create(CALLER, "t", "of-t", EARLIEST, {"dead_letter_topic": "dlq"})
        monkeypatch.setattr(DeadCopies, "from_copy", count)
        peeked, most = await most_in_a_turn(broker.queues.dead_letters.peek(CALLER, "of-t", 10), listed)
        assert peeked.letters == []
    assert len(listed) == 120
    assert most == 50
