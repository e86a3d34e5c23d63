"""Requests for many dead letters share the event loop: each of its turns does a bounded part of one."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from conveyor.broker.queues.dead_letters import dead_letter_reader
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.queues.subscription.policy import StartPosition
from conveyor.records.message import parse_message_id
from tests.callers import CALLER
from tests.unit.broker.parts import running_parts

EARLIEST = StartPosition(kind="earliest")
PARTITIONS = 20


async def turns_of(work: Coroutine[Any, Any, object]) -> int:
    """Return the number of the loop's turns until the work is done."""
    turns, task = 0, asyncio.ensure_future(work)
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    await task
    return turns


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
        work = getattr(broker.queues.dead_letter_redrive, verb)(CALLER, "s", message_ids=message_ids)
        assert await turns_of(work) >= PARTITIONS
    assert parsed == message_ids
