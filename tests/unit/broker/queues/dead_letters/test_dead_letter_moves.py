"""Moves to dead-letter topics have few messages in memory, however many are undeliverable."""

import asyncio
import gc
from collections.abc import Mapping
from typing import Any

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.produce.outgoing_message import OutgoingMessage
from conveyor.broker.queues.dead_letters import dead_letter_writer
from conveyor.broker.queues.dead_letters.dead_letter_writer import DeadLetterWriter
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.queues.subscription.policy import StartPosition, Subscription
from conveyor.records.message_attributes import DEAD_SUBSCRIPTION, last_header
from tests.callers import CALLER, answer_of
from tests.unit.broker.markers.producers import until
from tests.unit.broker.parts import running_parts
from tests.unit.broker.queues.dead_letters.test_dead_letter_copies import dead

EARLIEST = StartPosition(kind="earliest")
PARTITIONS = 4
LIMIT_BYTES = 10_000


class Moves:
    """The moves to each dead-letter topic: their messages' sizes, and the most that ran at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: dict[str, list[list[int]]] = {}
        self.most: dict[str, int] = {}
        self._running: dict[str, int] = {}
        self._copy = DeadLetterWriter._copy
        monkeypatch.setattr(dead_letter_writer, "_AT_ONCE_BYTES", LIMIT_BYTES)
        monkeypatch.setattr(DeadLetterWriter, "_copy", lambda *move: self._count(*move))

    async def _count(
        self, writer: DeadLetterWriter, subscription: Subscription, origin: int, letters: Mapping[int, OutgoingMessage]
    ) -> Any:
        topic = subscription.policy.dead_letter_topic
        self.sizes.setdefault(topic, []).append([len(letter.value or b"") for letter in letters.values()])
        self._running[topic] = self._running.get(topic, 0) + 1
        self.most[topic] = max(self.most.get(topic, 0), self._running[topic])
        try:
            return await self._copy(writer, subscription, origin, letters)
        finally:
            self._running[topic] -= 1


async def reject(broker: BrokerNode, topic: str, *sizes: int) -> None:
    """Reject messages of these sizes in each partition of a topic that has the subscription `of-<topic>`."""
    name = f"of-{topic}"
    await broker.topics.create(CALLER, TopicRequest(name=topic, partitions=PARTITIONS))
    await broker.queues.lifecycle.create(CALLER, topic, name, EARLIEST, {"dead_letter_topic": f"dead-{topic}"})
    messages = [OutgoingMessage(bytes(size), partition=number) for number in range(PARTITIONS) for size in sizes]
    await broker.produce.messages.publish(CALLER, topic, messages)
    leases = await broker.queues.leases.lease(CALLER, name, len(messages), 0, None)
    ack_ids = [lease.ack_id for lease in leases]
    assert len(ack_ids) == len(messages)
    assert not any(await answer_of(broker.queues.settlements.reject, CALLER, name, ack_ids, "bad"))


def copies_in_memory() -> list[OutgoingMessage]:
    outgoing = [found for found in gc.get_objects() if isinstance(found, OutgoingMessage)]
    return [message for message in outgoing if last_header(message.headers, DEAD_SUBSCRIPTION) is not None]


async def test_one_partition_moves_a_limited_size_to_a_topic_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    moves = Moves(monkeypatch)
    async with running_parts() as broker:
        await reject(broker, "t", 1, LIMIT_BYTES - 2, 1, 3 * LIMIT_BYTES, LIMIT_BYTES, 1, 1)
        await dead(broker, 7 * PARTITIONS, "t")
    one = [[1, LIMIT_BYTES - 2, 1], [3 * LIMIT_BYTES], [LIMIT_BYTES], [1, 1]]
    assert sorted(moves.sizes["dead-t"]) == sorted(one * PARTITIONS)
    assert moves.most == {"dead-t": 1}


async def test_topic_that_refuses_neither_holds_messages_nor_delays_another_topic(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Moves(monkeypatch)
    gc.collect()
    gc.disable()
    try:
        async with running_parts() as broker:
            await broker.topics.create(CALLER, TopicRequest(name="dead-t", config={"max.message.bytes": "100"}))
            await reject(broker, "t", 1_000, 1_000)
            await until(lambda: caplog.text.count("dead letters wait") >= PARTITIONS)
            assert not copies_in_memory()
            await reject(broker, "u", 1_000)
            await dead(broker, PARTITIONS, "u")
    finally:
        gc.enable()


async def test_few_topics_are_copied_to_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letter_writer, "_TOPICS_AT_ONCE", 1)
    begun: list[str] = []
    go_on = asyncio.Event()

    async def wait(_: DeadLetterWriter, subscription: Subscription, *__: object) -> Any:
        begun.append(subscription.name)
        await go_on.wait()
        return {}, {}

    monkeypatch.setattr(DeadLetterWriter, "_copy", wait)
    async with running_parts() as broker:
        await reject(broker, "t", 1)
        await reject(broker, "u", 1)
        assert begun == ["of-t"]
        go_on.set()
        await dead(broker, PARTITIONS, "t")
        await dead(broker, PARTITIONS, "u")
    assert sorted(begun) == ["of-t"] * PARTITIONS + ["of-u"] * PARTITIONS
