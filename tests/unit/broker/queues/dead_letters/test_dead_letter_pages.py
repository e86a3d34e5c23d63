"""Dead letters that another broker lists: it is asked for them in pages, however many there are."""

from collections.abc import AsyncIterator, Sequence

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.produce.outgoing_message import OutgoingMessage
from conveyor.broker.queues.dead_letters import dead_letter_copies
from conveyor.broker.remote.calls import Call
from conveyor.queues.messages.dead_copies import CopiedRange
from conveyor.queues.subscription.policy import StartPosition
from tests.callers import CALLER, answer_of
from tests.unit.broker.queues.dead_letters.test_dead_letters_of_two_brokers import dead
from tests.unit.broker.two_brokers import ONE, TWO, TwoBrokers, two_brokers

LETTERS = 600
PAGE_BYTES = 6_000


@pytest.fixture
async def brokers() -> AsyncIterator[TwoBrokers]:
    """Both brokers, with the subscription `s` of topic `t`; each leads a partition of the dead-letter topic."""
    async with two_brokers() as both:
        await both.create("dead", TWO, ONE)
        start = StartPosition(kind="earliest")
        await both.one.queues.lifecycle.create(CALLER, "t", "s", start, {"dead_letter_topic": "dead"})
        yield both


async def reject_every_other(broker: BrokerNode, partitions: Sequence[int]) -> None:
    """Publish two messages with a key to each of these partitions in turn, and reject the first of them."""
    messages = [
        OutgoingMessage(b"m", b"%d" % number, partition=partition)
        for number, partition in enumerate(partitions)
        for _ in range(2)
    ]
    await broker.produce.messages.publish(CALLER, "t", messages)
    left = len(messages)
    while left:
        leases = await broker.queues.leases.lease(CALLER, "s", 1_000, 0, None)
        ids = [lease.ack_id for lease in leases if lease.message.offset % 2 == 0]
        await answer_of(broker.queues.settlements.reject, CALLER, "s", ids, "bad")
        left -= len(leases)
    await dead(broker, len(partitions))


@pytest.mark.parametrize("ranges", [1, 3, 100])
async def test_pages_of_two_leaders_are_shown_in_the_order_of_the_copies(
    brokers: TwoBrokers, monkeypatch: pytest.MonkeyPatch, ranges: int
) -> None:
    monkeypatch.setattr(dead_letter_copies, "_PAGE_RANGES", ranges)
    monkeypatch.setattr(dead_letter_copies, "AT_ONCE", 7)
    await reject_every_other(brokers.one, [0, 1, 1] * 10)
    originals = {f"{partition}-{2 * number}" for partition, count in ((0, 10), (1, 20)) for number in range(count)}
    for broker in (brokers.one, brokers.two):
        page = await broker.queues.dead_letters.peek(CALLER, "s", 100)
        assert page.without_copy == 0
        assert {letter.message.message_id for letter in page.letters} == originals
        places = [tuple(map(int, letter.copy_id.split("-"))) for letter in page.letters]
        assert places == sorted(places)
        assert {partition for partition, _ in places} == {0, 1}
        for index in range(30):
            after = page.letters[index].copy_id
            assert (await broker.queues.dead_letters.peek(CALLER, "s", 100, after=after)).letters == (
                page.letters[index + 1 :]
            )
    ids = [*sorted(originals)[5:12], "0-1", "7-0", "x"]
    assert await brokers.one.queues.dead_letters.redrive.drop(CALLER, "s", "true", ids) == 7
    assert await brokers.one.queues.dead_letters.redrive.redrive(CALLER, "s", message_ids=sorted(originals)[:9]) == 5
    assert await brokers.two.queues.dead_letters.redrive.redrive(CALLER, "s") == 18
    await dead(brokers.one, 0)


async def test_no_answer_of_another_broker_has_more_than_a_page(
    brokers: TwoBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    await reject_every_other(brokers.two, [1] * LETTERS)
    answers: dict[str, int] = {}
    encode = Call.encode_reply

    def encoded(call: Call[object, object], reply: object) -> bytes:
        payload = encode(call, reply)
        answers[call.name] = max(answers.get(call.name, 0), len(payload))
        return payload

    monkeypatch.setattr(Call, "encode_reply", encoded)
    letters = brokers.one.queues.dead_letters
    subscriptions = brokers.one.cluster.subscriptions.all()
    assert [topic.depth for topic in await letters.topics(CALLER, subscriptions)] == [LETTERS]
    assert len((await letters.peek(CALLER, "s", 1_000)).letters) == LETTERS
    ids = [f"1-{offset}" for offset in range(LETTERS)]
    assert await letters.unknown(CALLER, "s", ids) == ids[1::2]
    assert await letters.redrive.drop(CALLER, "s", "true", ids[:50]) == 25
    assert await letters.redrive.drop(CALLER, "s", "true") == LETTERS - 25
    assert {name: size for name, size in answers.items() if name.startswith("queue.") and size > PAGE_BYTES} == {}
    assert any(name.startswith("queue.") for name in answers)


async def test_ranges_of_a_page_that_were_passed_are_not_passed_again(
    brokers: TwoBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each read of the dead-letter topic looks at what is left of the pages."""
    ranges, passed = 90, 0
    copy_end = CopiedRange.copy_end.fget  # type: ignore[attr-defined]

    def count(copied: CopiedRange) -> int:
        nonlocal passed
        passed += 1
        return int(copy_end(copied))

    await reject_every_other(brokers.one, [0] * ranges)
    monkeypatch.setattr(dead_letter_copies, "AT_ONCE", 5)
    monkeypatch.setattr(CopiedRange, "copy_end", property(count))
    assert len((await brokers.one.queues.dead_letters.peek(CALLER, "s", 100)).letters) == ranges
    assert passed <= 3 * ranges
