"""The broker's wall clock is set by an hour: durations stay the same, and times of day follow the clock."""

import asyncio
from collections.abc import Sequence

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.fetch.fetcher import Fetched, FetchPosition, FetchWait
from conveyor.broker.produce.outgoing_message import OutgoingMessage
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.queues.subscription.policy import StartPosition
from conveyor.records.message import Message
from conveyor.records.message_attributes import DELAY_MS
from conveyor.replication.partition import Partition
from conveyor.schedules.definition import Schedule
from tests.callers import CALLER
from tests.unit.broker.parts import NOW_MS, Storage
from tests.unit.replication.parts import set_at_change

HOUR_MS = 3_600_000
MINUTE_MS = 60_000
FIRST_MS = NOW_MS - NOW_MS % MINUTE_MS + MINUTE_MS
EVERY_MINUTE = Schedule(name="s", topic="t", cron="* * * * *", payload=b"go")
by_an_hour = pytest.mark.parametrize("by_s", [3600, -3600])


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def fired(broker: BrokerNode, count: int) -> list[int]:
    """Return the timestamps of the topic's messages once there are `count`."""
    while True:
        changed = asyncio.Event()
        for number in range(2):
            set_at_change(broker.partitions.table.find("t", number), changed)
        messages: list[Message] = await broker.fetch.browser.browse(
            CALLER, "t", None, StartPosition(kind="earliest"), 100
        )
        if len(messages) >= count:
            return sorted(message.timestamp_ms for message in messages)
        await changed.wait()


async def asleep(broker: BrokerNode) -> None:
    """Wait until the schedule has recorded its firing and sleeps."""
    for _ in range(10_000):
        if broker.schedules._active["s"].alarm.is_set:
            return
        await asyncio.sleep(0)
    raise AssertionError("the schedule does not settle")


async def reaches(partition: Partition, count: int) -> None:
    while partition.term.high_watermark < count:
        risen = asyncio.Event()
        set_at_change(partition, risen)
        await risen.wait()


@by_an_hour
async def test_fetch_waits_as_long_as_before(broker: BrokerNode, storage: Storage, by_s: int) -> None:
    done: asyncio.Future[Sequence[Fetched]] = asyncio.get_running_loop().create_future()
    broker.fetch.fetcher.fetch(CALLER, [FetchPosition("t", 0, 0, 1000)], FetchWait(500, 1, 1000), done.set_result)
    storage.clock.advance(ms=1)
    storage.clock.set_wall_clock(by_seconds=by_s)
    storage.clock.advance(ms=498)
    assert not done.done()
    storage.clock.advance(ms=1)
    assert done.done()


@by_an_hour
async def test_lease_request_waits_as_long_as_before(broker: BrokerNode, storage: Storage, by_s: int) -> None:
    await broker.queues.lifecycle.create(CALLER, "t", "s", StartPosition(kind="earliest"), {})
    waiting = asyncio.ensure_future(broker.queues.leases.lease(CALLER, "s", 1, 500, 1000))
    await turns()
    storage.clock.set_wall_clock(by_seconds=by_s)
    storage.clock.advance(ms=499)
    await turns()
    assert not waiting.done()
    storage.clock.advance(ms=1)
    assert await waiting == []


async def test_schedule_follows_the_wall_clock_forward(broker: BrokerNode, storage: Storage) -> None:
    """Of the firings in the skipped interval, only the last is caught up."""
    await broker.schedules.add(CALLER, EVERY_MINUTE)
    storage.clock.set_wall_clock(by_seconds=3600)
    assert await fired(broker, 1) == [NOW_MS + HOUR_MS]
    await asleep(broker)
    storage.clock.advance(ms=FIRST_MS - NOW_MS)
    assert await fired(broker, 2) == [NOW_MS + HOUR_MS, FIRST_MS + HOUR_MS]


async def test_schedule_repeats_nothing_when_the_clock_is_set_back_by_an_hour(
    broker: BrokerNode, storage: Storage
) -> None:
    await broker.schedules.add(CALLER, EVERY_MINUTE)
    storage.clock.advance(ms=FIRST_MS - NOW_MS)
    await fired(broker, 1)
    await asleep(broker)
    storage.clock.set_wall_clock(by_seconds=-3600)
    storage.clock.advance(ms=HOUR_MS)
    await turns()
    assert await fired(broker, 1) == [FIRST_MS]
    storage.clock.advance(ms=MINUTE_MS)
    assert await fired(broker, 2) == [FIRST_MS, FIRST_MS + MINUTE_MS]


async def test_schedule_goes_on_from_now_when_the_clock_was_wrong_by_a_year(
    broker: BrokerNode, storage: Storage
) -> None:
    year_s = 365 * 24 * 3600
    storage.clock.set_wall_clock(by_seconds=year_s)
    await broker.schedules.add(CALLER, EVERY_MINUTE)
    storage.clock.advance(ms=MINUTE_MS)
    [wrong_ms] = await fired(broker, 1)
    await asleep(broker)
    storage.clock.set_wall_clock(by_seconds=-year_s)
    await asleep(broker)
    storage.clock.advance(ms=MINUTE_MS)
    first_ms, last_ms = await fired(broker, 2)
    assert first_ms <= NOW_MS + 2 * MINUTE_MS
    assert last_ms == wrong_ms


async def test_delayed_record_follows_the_wall_clock_into_the_target(broker: BrokerNode, storage: Storage) -> None:
    await broker.topics.create(CALLER, TopicRequest(name="due", partitions=1))
    await broker.topics.create(CALLER, TopicRequest(name="d", config={"delay.target": "due"}))
    topic = broker.partitions.table.find("due", 0)
    for hours in (1, 2):
        headers = ((DELAY_MS, b"%d" % (hours * HOUR_MS)),)
        await broker.produce.messages.publish(CALLER, "d", [OutgoingMessage(value=b"%d" % hours, headers=headers)])
    storage.clock.set_wall_clock(by_seconds=3600)
    storage.clock.advance()
    await reaches(topic, 1)
    storage.clock.set_wall_clock(by_seconds=-3600)
    storage.clock.advance(ms=2 * HOUR_MS - 1)
    await turns()
    assert topic.log.log_end_offset == 1
    storage.clock.advance(ms=1)
    await reaches(topic, 2)
