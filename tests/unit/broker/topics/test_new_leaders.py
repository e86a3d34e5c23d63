"""A created topic is served by its leaders on other brokers when the call returns."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from conveyor.cluster.topic_creation import TopicRequest
from tests.callers import CALLER
from tests.unit.broker.two_brokers import ONE, TWO, TwoBrokers, two_brokers


@pytest.fixture
async def brokers() -> AsyncIterator[TwoBrokers]:
    async with two_brokers() as both:
        yield both


def is_served(brokers: TwoBrokers, name: str, number: int) -> bool:
    return brokers.two.partitions.table.get(name, number) is not None


async def test_a_topic_is_open_at_its_leaders_when_it_was_created(brokers: TwoBrokers) -> None:
    await brokers.one.topics.create(CALLER, TopicRequest(name="new", assignment={0: (ONE,), 1: (TWO,)}))
    assert is_served(brokers, "new", 1)
    await brokers.one.topics.add_partitions(CALLER, "new", 3, [(TWO,)])
    assert is_served(brokers, "new", 2)
    await brokers.one.topics.ensure(CALLER, TopicRequest(name="auto", assignment={0: (TWO,)}))
    assert is_served(brokers, "auto", 0)


async def test_a_creation_waits_for_a_slow_leader_for_a_second(
    brokers: TwoBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()

    async def never(seq: int) -> None:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(brokers.two.metadata.applied, "settled", never)
    creation = asyncio.ensure_future(
        brokers.one.topics.create(CALLER, TopicRequest(name="new", assignment={0: (TWO,)}))
    )
    await asked.wait()
    assert not creation.done()
    brokers.clock.advance(seconds=1)
    assert (await creation).name == "new"


async def test_a_creation_does_not_wait_for_an_unreachable_leader(brokers: TwoBrokers) -> None:
    del brokers.cable.networks[TWO]
    for link in brokers.cable.links:
        link.close("cut")
    await brokers.one.topics.create(CALLER, TopicRequest(name="new", assignment={0: (TWO,)}))
