"""Schedules: every firing happens once, and the last missed firing is caught up, also after failures."""

import asyncio
import logging
from typing import cast

import pytest
from msgspec.structs import replace

from conveyor.broker.broker_node import BrokerNode
from conveyor.cluster.changes import SchedulePut, TopicRemoved, topic_put
from conveyor.cluster.metadata_log import HEAD_PATH
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.subscription.policy import StartPosition
from conveyor.records.message import Message
from conveyor.records.message_attributes import DEDUP_ID
from conveyor.schedules.definition import Schedule
from tests.callers import CALLER
from tests.unit.broker.parts import NOW_MS, Storage, propose, rewrite, running_parts, stored_image
from tests.unit.replication.parts import set_at_change

MINUTE_MS = 60_000
FIRST_MS = NOW_MS - NOW_MS % MINUTE_MS + MINUTE_MS
SCHEDULE = Schedule(name="s", topic="t", cron="* * * * *", payload=b"go", headers=(("a", b"b"),))


async def published(broker: BrokerNode) -> list[Message]:
    return await broker.fetch.browser.browse(CALLER, "t", None, StartPosition(kind="earliest"), 100)


async def fired(broker: BrokerNode, count: int) -> list[Message]:
    """Return the topic's messages once there are `count`."""
    while True:
        changed = asyncio.Event()
        for number in range(len(broker.topics.existing("t").partitions)):
            set_at_change(broker.partitions.table.find("t", number), changed)
        if len(messages := await published(broker)) >= count:
            return messages
        await changed.wait()


async def written_down(storage: Storage, fired_ms: int) -> None:
    """Wait until the stored schedule shows a completed firing."""
    while True:
        changed = asyncio.Event()
        await storage.store.get(HEAD_PATH, changed.set)
        stored = (await stored_image(storage)).schedules["s"]
        if f'"fired_ms":{fired_ms}}}' in stored.document:
            return
        await changed.wait()


async def logged(caplog: pytest.LogCaptureFixture, text: str) -> None:
    """Wait until the broker logs something."""
    is_logged = asyncio.Event()

    def look(record: logging.LogRecord) -> bool:
        if text in record.getMessage():
            is_logged.set()
        return True

    caplog.handler.addFilter(look)
    await is_logged.wait()
    caplog.handler.removeFilter(look)


def due_times(messages: list[Message]) -> list[int]:
    ids = [cast("bytes", dict(message.headers)[DEDUP_ID]) for message in messages]
    assert all(dedup_id.startswith(b"schedule:s:") for dedup_id in ids)
    return [int(dedup_id.rpartition(b":")[2]) for dedup_id in ids]


def advance_to(storage: Storage, when_ms: int) -> None:
    storage.clock.advance(ms=when_ms - storage.clock.now_ms())


@pytest.fixture
async def scheduled(broker: BrokerNode) -> BrokerNode:
    await broker.schedules.add(CALLER, SCHEDULE)
    return broker


async def test_schedule_fires_when_it_is_due_and_not_before(scheduled: BrokerNode, storage: Storage) -> None:
    advance_to(storage, FIRST_MS - 1)
    assert await published(scheduled) == []
    advance_to(storage, FIRST_MS)
    (message,) = await fired(scheduled, 1)
    assert (message.value, message.headers[0], due_times([message])) == (b"go", ("a", b"b"), [FIRST_MS])
    await written_down(storage, FIRST_MS)
    advance_to(storage, FIRST_MS + MINUTE_MS)
    assert due_times(await fired(scheduled, 2)) == [FIRST_MS, FIRST_MS + MINUTE_MS]


async def test_only_the_last_missed_firing_is_made_good(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=2))
        await broker.schedules.add(CALLER, SCHEDULE)
    storage.clock.advance(ms=10 * MINUTE_MS)
    async with running_parts(storage=storage) as broker:
        assert [*broker.schedules.all()] == [SCHEDULE]
        storage.clock.advance()
        assert due_times(await fired(broker, 1)) == [FIRST_MS + 9 * MINUTE_MS]


async def test_firing_that_was_not_written_down_is_not_repeated(storage: Storage) -> None:
    """The broker crashes after it publishes and before it records the firing, and stays down for any time."""
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=2))
        await broker.schedules.add(CALLER, SCHEDULE)
        before = broker.metadata.image.schedules["s"]
        advance_to(storage, FIRST_MS)
        await fired(broker, 1)
        await written_down(storage, FIRST_MS)
    restored = SchedulePut(name="s", topic_id=before.topic_id, document=before.document)
    await rewrite(storage, lambda _: [restored])
    storage.clock.advance(ms=MINUTE_MS // 2)
    async with running_parts(storage=storage) as broker:
        storage.clock.advance()
        await written_down(storage, FIRST_MS)
        assert due_times(await fired(broker, 1)) == [FIRST_MS]


async def test_firing_that_fails_is_tried_again(storage: Storage, caplog: pytest.LogCaptureFixture) -> None:
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=1, config={"max.message.bytes": "1"}))
        await broker.schedules.add(CALLER, SCHEDULE)
        advance_to(storage, FIRST_MS)
        await logged(caplog, "retried")
        await broker.topics.replace_config(CALLER, "t", {})
        storage.clock.advance(ms=1000)
        assert due_times(await fired(broker, 1)) == [FIRST_MS]


async def test_schedule_ends_with_its_topic(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        for name in ("t", "other"):
            await broker.topics.create(CALLER, TopicRequest(name=name, partitions=1))
        await broker.schedules.add(CALLER, SCHEDULE)
        await broker.schedules.add(CALLER, replace(SCHEDULE, name="stays", topic="other"))
        await broker.topics.delete(CALLER, "t")
        assert [schedule.name for schedule in broker.schedules.all()] == ["stays"]
    assert list((await stored_image(storage)).schedules) == ["stays"]


async def test_firing_never_makes_a_topic(
    scheduled: BrokerNode, storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    """The topic may be deleted after the metadata changes and before its schedules end."""
    topic = scheduled.metadata.image.topics["t"]
    await propose(scheduled, TopicRemoved(name="t"))
    advance_to(storage, FIRST_MS)
    await logged(caplog, "topic 't' does not exist: skipped")
    storage.clock.advance(ms=MINUTE_MS // 2)
    assert "t" not in scheduled.metadata.image.topics
    assert caplog.text.count("skipped") == 1
    await propose(scheduled, topic_put(topic))
    advance_to(storage, FIRST_MS + MINUTE_MS)
    assert due_times(await fired(scheduled, 1)) == [FIRST_MS + MINUTE_MS]


async def test_schedule_is_paused_and_goes_on_later(scheduled: BrokerNode, storage: Storage) -> None:
    paused = await scheduled.schedules.change(CALLER, "s", {"paused": True})
    assert paused == replace(SCHEDULE, paused=True)
    advance_to(storage, FIRST_MS + MINUTE_MS)
    assert await scheduled.schedules.change(CALLER, "s", {"paused": False}) == SCHEDULE
    storage.clock.advance(ms=MINUTE_MS)
    assert due_times(await fired(scheduled, 1)) == [FIRST_MS + 2 * MINUTE_MS]


async def test_change_is_durable(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=1))
        await broker.schedules.add(CALLER, SCHEDULE)
        changed = await broker.schedules.change(CALLER, "s", {"cron": "0 3 * * *", "payload": b"new", "paused": True})
    async with running_parts(storage=storage) as broker:
        assert [*broker.schedules.all()] == [changed]


async def test_firing_that_failed_is_made_good_by_a_change(storage: Storage, caplog: pytest.LogCaptureFixture) -> None:
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=1, config={"max.message.bytes": "200"}))
        await broker.schedules.add(CALLER, replace(SCHEDULE, payload=b"x" * 1000))
        advance_to(storage, FIRST_MS)
        await logged(caplog, "retried")
        await broker.schedules.change(CALLER, "s", {"payload": b"go"})
        storage.clock.advance()
        assert due_times(await fired(broker, 1)) == [FIRST_MS]


async def test_change_of_times_does_not_look_back(scheduled: BrokerNode, storage: Storage) -> None:
    """The new expression fell due a minute ago."""
    await scheduled.schedules.change(CALLER, "s", {"cron": "0 0 1 1 *"})
    storage.clock.advance(ms=10 * MINUTE_MS)
    await scheduled.schedules.change(CALLER, "s", {"cron": SCHEDULE.cron})
    due_ms = SCHEDULE.next_ms(storage.clock.now_ms())
    assert due_ms is not None
    advance_to(storage, due_ms)
    assert due_times(await fired(scheduled, 1)) == [due_ms]


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"cron": "often"}, ErrorKind.INVALID_SCHEDULE),
        ({"topic": "nothing"}, ErrorKind.UNKNOWN_TOPIC),
        ({"headers": ((DEDUP_ID, b"1"),)}, ErrorKind.INVALID_SCHEDULE),
    ],
)
async def test_bad_change_is_refused(scheduled: BrokerNode, changes: dict[str, object], kind: ErrorKind) -> None:
    with pytest.raises(RequestError) as refused:
        await scheduled.schedules.change(CALLER, "s", changes)
    assert refused.value.kind is kind
    assert [*scheduled.schedules.all()] == [SCHEDULE]


async def test_paused_schedule_never_fires(broker: BrokerNode, storage: Storage) -> None:
    paused = Schedule(name="s", topic="t", cron="* * * * *", paused=True)
    await broker.schedules.add(CALLER, paused)
    assert paused.next_ms(NOW_MS) is None
    storage.clock.advance(ms=10 * MINUTE_MS)
    assert await published(broker) == []


async def test_removed_schedule_never_fires_and_is_gone_after_a_restart(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=1))
        await broker.schedules.add(CALLER, SCHEDULE)
        await broker.schedules.remove(CALLER, "s")
        storage.clock.advance(ms=10 * MINUTE_MS)
        assert await published(broker) == []
    async with running_parts(storage=storage) as broker:
        assert [*broker.schedules.all()] == []


async def test_next_firing_is_told(broker: BrokerNode) -> None:
    assert SCHEDULE.next_ms(NOW_MS) == FIRST_MS


@pytest.mark.parametrize(
    ("schedule", "kind"),
    [
        (Schedule(name="a/b", topic="t", cron="* * * * *"), ErrorKind.INVALID_SCHEDULE),
        (Schedule(name="s", topic="t", cron="* * * *"), ErrorKind.INVALID_SCHEDULE),
        (Schedule(name="s", topic="t", cron="* * * * *", time_zone="Nowhere"), ErrorKind.INVALID_SCHEDULE),
        (Schedule(name="s", topic="t", cron="* * * * *", headers=((DEDUP_ID, b"1"),)), ErrorKind.INVALID_SCHEDULE),
        (
            Schedule(name="s", topic="t", cron="* * * * *", headers=(("conveyor-priority", b"11"),)),
            ErrorKind.INVALID_REQUEST,
        ),
        (Schedule(name="s", topic="nothing", cron="* * * * *"), ErrorKind.UNKNOWN_TOPIC),
    ],
)
async def test_bad_schedule_is_refused(broker: BrokerNode, schedule: Schedule, kind: ErrorKind) -> None:
    with pytest.raises(RequestError) as refused:
        await broker.schedules.add(CALLER, schedule)
    assert refused.value.kind is kind
    assert [*broker.schedules.all()] == []


async def test_name_is_taken_once(scheduled: BrokerNode) -> None:
    with pytest.raises(RequestError, match="remove it first") as refused:
        await scheduled.schedules.add(CALLER, SCHEDULE)
    assert refused.value.kind is ErrorKind.SCHEDULE_ALREADY_EXISTS


async def test_unknown_schedule_is_neither_shown_nor_changed_nor_removed(scheduled: BrokerNode) -> None:
    with pytest.raises(RequestError, match=r"there is no schedule 'x'$") as refused:
        await scheduled.schedules.remove(CALLER, "x")
    assert refused.value.kind is ErrorKind.UNKNOWN_SCHEDULE
    await scheduled.schedules.remove(CALLER, "s")
    with pytest.raises(RequestError, match=r"there is no schedule 'none'$"):
        await scheduled.schedules.change(CALLER, "none", {"paused": True})
    with pytest.raises(RequestError, match="there is no schedule 'none'"):
        scheduled.schedules.existing("none")
