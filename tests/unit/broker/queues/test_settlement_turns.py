"""Requests to settle many messages share the event loop: each of its turns settles some."""

from typing import Any

import pytest

from conveyor.broker.answers import answered
from conveyor.broker.produce.outgoing_message import OutgoingMessage
from conveyor.broker.queues import settlements
from conveyor.broker.queues.message_targets import find_target
from conveyor.broker.queues.settlements import Reply
from conveyor.broker.slices import Slices
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind
from conveyor.queues.subscription.policy import StartPosition
from tests.callers import CALLER
from tests.unit.broker.parts import running_parts
from tests.unit.broker.queues.dead_letters.test_dead_letter_turns import most_in_a_turn

COUNT = 1_250


@pytest.mark.parametrize("is_stopping", [False, True])
async def test_a_thousand_messages_of_a_request_are_settled_in_a_turn(
    monkeypatch: pytest.MonkeyPatch, is_stopping: bool
) -> None:
    found: list[str] = []

    def find(subscription: Any, text: str, partition_count: int) -> Any:
        found.append(text)
        return find_target(subscription, text, partition_count)

    monkeypatch.setattr(settlements, "find_target", find)
    async with running_parts() as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=2))
        await broker.queues.lifecycle.create(CALLER, "t", "s", StartPosition(kind="earliest"), {})
        messages = [OutgoingMessage(b"", partition=0) for _ in range(COUNT)]
        await broker.produce.messages.publish(CALLER, "t", messages)
        leased = [await broker.queues.leases.lease(CALLER, "s", 1_000, 0, None) for _ in range(2)]
        ack_ids = [lease.ack_id for leases in leased for lease in leases]
        ids = [text for ack_id in ack_ids for text in (ack_id, "1-0")]

        def ack(reply: Reply) -> None:
            broker.queues.settlements.ack(CALLER, "s", ids, reply)

        with monkeypatch.context() as patched:
            if is_stopping:
                patched.setattr(Slices, "later", lambda *_: False)
            results, most = await most_in_a_turn(answered(ack), found)
        stats = await broker.queues.statistics.stats(CALLER, "s")
    assert [None if error is None else error.kind for error in results] == [None, ErrorKind.UNKNOWN_MESSAGE] * COUNT
    assert found == ids
    assert most == (len(ids) if is_stopping else 1_000)
    assert stats.unsettled == 0
