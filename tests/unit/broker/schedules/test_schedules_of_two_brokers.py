"""Each schedule fires once in the cluster, on the broker that leads partition 0 of its topic."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.cluster.changes import SchedulePut
from conveyor.cluster.image import ClusterImage
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.subscription.policy import StartPosition
from conveyor.records.message import Message
from conveyor.records.message_attributes import DEDUP_ID, last_header
from conveyor.schedules.definition import Schedule
from tests.callers import CALLER
from tests.unit.broker.parts import NOW_MS
from tests.unit.broker.two_brokers import ONE, TWO, TwoBrokers, two_brokers

MINUTE_MS = 60_000
FIRST_MS = (NOW_MS // MINUTE_MS + 1) * MINUTE_MS
SCHEDULE = Schedule(name="s", topic="far", cron="* * * * *", time_zone="UTC", payload=b"tick")
EARLIEST = StartPosition(kind="earliest")


@pytest.fixture
async def brokers() -> AsyncIterator[TwoBrokers]:
    """Both brokers. Broker 2 leads the topic `far`, and broker 1 has its schedule `s`."""
    async with two_brokers() as both:
        await both.create("far", TWO)
        await both.one.schedules.add(CALLER, SCHEDULE)
        yield both


async def advance_to(brokers: TwoBrokers, time_ms: int) -> None:
    brokers.clock.advance(ms=time_ms - brokers.clock.now_ms())


async def fired(broker: BrokerNode, count: int) -> list[bytes | None]:
    """Wait for the messages of a number of firings. Returns their ids."""
    messages: list[Message] = []
    while len(messages) < count:
        await asyncio.sleep(0.001)
        messages = await broker.fetch.browser.browse(CALLER, "far", 0, EARLIEST, 10)
    return [last_header(message.headers, DEDUP_ID) for message in messages]


def ids(*times_ms: int) -> list[bytes]:
    return [SCHEDULE.dedup_id(time_ms) for time_ms in times_ms]


async def recorded(brokers: TwoBrokers, time_ms: int) -> None:
    shown = asyncio.Event()

    def look(_: ClusterImage, image: ClusterImage) -> None:
        if f'"fired_ms":{time_ms}' in image.schedules["s"].document:
            shown.set()

    brokers.one.metadata.listen(look)
    look(brokers.one.metadata.image, brokers.one.metadata.image)
    await shown.wait()


async def test_leader_alone_fires(brokers: TwoBrokers) -> None:
    await advance_to(brokers, FIRST_MS)
    assert await fired(brokers.one, 1) == ids(FIRST_MS)
    await recorded(brokers, FIRST_MS)
    await advance_to(brokers, FIRST_MS + MINUTE_MS)
    assert await fired(brokers.one, 2) == ids(FIRST_MS, FIRST_MS + MINUTE_MS)


async def test_any_broker_lists_and_changes_schedules(brokers: TwoBrokers) -> None:
    for broker in (brokers.one, brokers.two):
        assert [*broker.schedules.all()] == [SCHEDULE]
        assert broker.schedules.existing("s") == SCHEDULE
    with pytest.raises(RequestError) as refused:
        await brokers.two.schedules.add(CALLER, SCHEDULE)
    assert refused.value.kind is ErrorKind.SCHEDULE_ALREADY_EXISTS
    changed = msgspec.structs.replace(SCHEDULE, payload=b"tock")
    assert await brokers.one.schedules.change(CALLER, "s", {"payload": b"tock"}) == changed
    await advance_to(brokers, FIRST_MS)
    assert await fired(brokers.one, 1) == ids(FIRST_MS)
    (message,) = await brokers.one.fetch.browser.browse(CALLER, "far", 0, EARLIEST, 10)
    assert message.value == b"tock"
    await brokers.one.schedules.remove(CALLER, "s")
    with pytest.raises(RequestError, match="there is no schedule"):
        await brokers.two.schedules.remove(CALLER, "s")


async def test_new_leader_goes_on(brokers: TwoBrokers) -> None:
    await advance_to(brokers, FIRST_MS)
    await fired(brokers.one, 1)
    await recorded(brokers, FIRST_MS)
    await brokers.move("far", 0, ONE)
    await advance_to(brokers, FIRST_MS + MINUTE_MS)
    assert await fired(brokers.two, 1) == ids(FIRST_MS + MINUTE_MS)


async def test_firing_that_was_published_and_not_recorded_is_not_repeated(brokers: TwoBrokers) -> None:
    await brokers.create("near", ONE)
    await brokers.one.schedules.change(CALLER, "s", {"topic": "near"})
    document = brokers.one.metadata.image.schedules["s"].document
    await advance_to(brokers, FIRST_MS)
    await recorded(brokers, FIRST_MS)
    stored = brokers.one.metadata.image.schedules["s"]
    put = SchedulePut(name="s", topic_id=stored.topic_id, document=document)
    await brokers.one.metadata.propose(lambda _: [put])
    await advance_to(brokers, FIRST_MS + 1_000)
    await recorded(brokers, FIRST_MS)
    assert len(await brokers.two.fetch.browser.browse(CALLER, "near", 0, EARLIEST, 10)) == 1
