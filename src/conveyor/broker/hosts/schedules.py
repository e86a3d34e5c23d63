"""Messages that are published again and again, by the calendar.

In the metadata tree a schedule is one node, `/schedules/<name>`, with this JSON:

    {"topic": "reports", "topic_id": "<UUID>", "cron": "30 7 * * MON-FRI", "time_zone": "Europe/Berlin",
     "payload": "<base64>", "key": "<base64>" or null, "headers": [["name", "<base64>" or null], ...],
     "paused": false, "fired_ms": 1700000000000}

`fired_ms` says until when everything is done: it is written after a message was published. Of what falls due while no
broker runs only the last is made good. Each firing happens once, even if the broker ends before it has written so: its
message carries `conveyor-dedup-id: schedule:<name>:<due ms>`, which is looked for in the topic before a firing is made
good after a start.

A schedule ends with its topic, which it knows by its id, so that none goes on with another topic of the name. It never
makes a topic: a firing that finds none is left out.

Schedules follow the wall clock when it is set. Forward: of what falls due in between only the last firing is made good.
Back by up to three hours: no firing is repeated. Back by more: the clock was wrong before, so firings go on from now.
Source: cron(8) of Debian.
"""

import asyncio
import logging
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import UUID

import msgspec

from conveyor.broker.produce.message_publisher import Messages, OutgoingMessage
from conveyor.broker.tasks import Tasks
from conveyor.broker.topics.topics import Topics
from conveyor.cluster.image import SCHEDULES_PATH, TopicImage
from conveyor.kernel.errors import DiskFull, ErrorKind, RequestError, StorageFailure, metadata_failure
from conveyor.kernel.ports import ABSENT, ANY_VERSION, Clock, MetadataStore
from conveyor.queues.delivery.backoff import retry_delay_ms
from conveyor.queues.subscription.policy import Retry, Start
from conveyor.records.message_attributes import DEDUP_ID, check_attributes, last_header
from conveyor.records.record import Header
from conveyor.schedules.cron import check_cron, last_firing_ms, next_firing_ms

log = logging.getLogger(__name__)

_RETRY = Retry()
_NOT_REPEATED_MS = 3 * 3_600_000
_LOOKED_AT_MESSAGES = 1_000
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,200}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What to publish, and when: `cron` has five fields, in the time of an IANA time zone."""

    name: str
    topic: str
    cron: str
    time_zone: str = "UTC"
    payload: bytes = b""
    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    paused: bool = False


@dataclass(slots=True)
class _Active:
    """A schedule at work.

    topic_id: of its topic; None as an earlier version has stored it. fired_ms: everything up to then is done. is_sure:
    nothing after it can be in the log. failures: one after another.
    """

    schedule: Schedule
    topic_id: UUID | None
    fired_ms: int
    is_sure: bool
    failures: int = 0
    cancel: Callable[[], None] | None = None

    def sleep_no_more(self) -> None:
        if self.cancel is not None:
            self.cancel()


class Schedules:
    """See the module's docstring. `load` before anything else."""

    def __init__(self, *, store: MetadataStore, messages: Messages, topics: Topics, clock: Clock, tasks: Tasks) -> None:
        self._store = store
        self._messages = messages
        self._topics = topics
        self._clock = clock
        self._tasks = tasks
        self._active: dict[str, _Active] = {}
        self._one_change = asyncio.Lock()
        self._stopped = False
        self._unfollow_clock = clock.when_set(self._clock_set)
        topics.when_deleted(self._topic_deleted)

    async def load(self) -> None:
        """Take the schedules of the metadata store; what was missed is made good later. Raises StorageFailure.

        Those whose topic is gone are removed: the broker has ended between the two.
        """
        for path, node in (await self._store.tree(SCHEDULES_PATH)).items():
            active = _decode(path.rpartition("/")[2], node.value)
            schedule = active.schedule
            if not self._has_topic(active):
                await self._forget(path, schedule)
                continue
            active.topic_id = self._topics.existing(schedule.topic).topic_id
            self._active[schedule.name] = active
            self._wake_at(active, self._clock.now_ms())

    async def _forget(self, path: str, schedule: Schedule) -> None:
        """Without room for that, the next start does it. Raises StorageFailure."""
        try:
            await self._store.delete(path)
        except DiskFull as failure:
            log.warning("schedule of a topic that is gone stays stored name=%s reason=%s", schedule.name, failure)
        else:
            log.info("schedule removed name=%s topic=%s: the topic is gone", schedule.name, schedule.topic)

    def stop(self) -> None:
        """Let nothing fall due any more."""
        self._stopped = True
        self._unfollow_clock()
        for active in self._active.values():
            active.sleep_no_more()

    def list(self) -> "list[Schedule]":
        """Every schedule, by name."""
        return [self._active[name].schedule for name in sorted(self._active)]

    def existing(self, name: str) -> Schedule:
        """Raises RequestError (UNKNOWN_SCHEDULE)."""
        return self._find(name).schedule

    async def add(self, schedule: Schedule) -> None:
        """Begin a schedule; it is durable when this returns, and first falls due after now.

        Raises RequestError: INVALID_SCHEDULE, INVALID_REQUEST (a header), UNKNOWN_TOPIC, SCHEDULE_ALREADY_EXISTS.
        """
        async with self._one_change:
            await self._begin(self._activate(schedule, self._clock.now_ms(), is_sure=True), ABSENT)
        log.info("schedule added name=%s topic=%s cron=%s", schedule.name, schedule.topic, schedule.cron)

    async def change(self, name: str, changes: Mapping[str, Any]) -> Schedule:
        """Give other values to some fields of a schedule, durably, and from now on.

        What fell due before is still made good, unless the schedule was paused then, or its topic or times change.
        Raises RequestError: those of `add`, and UNKNOWN_SCHEDULE.
        """
        async with self._one_change:
            before = self._find(name)
            schedule = replace(before.schedule, **changes)
            goes_on = not before.schedule.paused and _goes_as(before.schedule, schedule)
            fired_ms = before.fired_ms if goes_on else self._clock.now_ms()
            await self._begin(self._activate(schedule, fired_ms, is_sure=False), ANY_VERSION)
            before.sleep_no_more()
        log.info("schedule changed name=%s fields=%s", name, ",".join(sorted(changes)))
        return schedule

    async def remove(self, name: str) -> None:
        """End a schedule. Raises RequestError (UNKNOWN_SCHEDULE)."""
        async with self._one_change:
            active = self._find(name)
            try:
                await self._store.delete(_path(name))
            except StorageFailure as failure:
                raise metadata_failure(failure) from failure
            self._end(active)

    def next_ms(self, schedule: Schedule, after_ms: int) -> int | None:
        """When a schedule falls due next, after a time; None if it is paused, or never does."""
        return None if schedule.paused else next_firing_ms(schedule.cron, schedule.time_zone, after_ms)

    def _find(self, name: str) -> _Active:
        active = self._active.get(name)
        if active is None:
            known = f"there are: {', '.join(sorted(self._active))}" if self._active else "there are no schedules"
            raise RequestError(ErrorKind.UNKNOWN_SCHEDULE, f"there is no schedule '{name}'; {known}")
        return active

    async def _begin(self, active: _Active, version: int) -> None:
        """Let a schedule hold once it is written down."""
        schedule = active.schedule
        if not await self._write(active, version):
            raise RequestError(
                ErrorKind.SCHEDULE_ALREADY_EXISTS,
                f"schedule '{schedule.name}' exists already: change it, or remove it first",
            )
        self._active[schedule.name] = active
        self._wake_at(active, self._clock.now_ms())

    async def _topic_deleted(self, topic: TopicImage) -> None:
        """End the schedules of a topic. A node that the store does not delete now is removed by the next start."""
        async with self._one_change:
            for active in [each for each in self._active.values() if not self._has_topic(each)]:
                self._end(active)
                try:
                    await self._store.delete(_path(active.schedule.name))
                except StorageFailure as failure:
                    log.warning("schedule stays in the metadata name=%s: %s", active.schedule.name, failure)

    def _end(self, active: _Active) -> None:
        del self._active[active.schedule.name]
        active.sleep_no_more()
        log.info("schedule removed name=%s topic=%s", active.schedule.name, active.schedule.topic)

    def _activate(self, schedule: Schedule, fired_ms: int, *, is_sure: bool) -> _Active:
        """Raises RequestError: see `add`."""
        _check(schedule)
        topic = self._topics.existing(schedule.topic)
        if topic.is_internal:
            raise RequestError(ErrorKind.INVALID_TOPIC, f"topic '{schedule.topic}' is the broker's own")
        return _Active(schedule, topic.topic_id, fired_ms, is_sure)

    def _has_topic(self, active: _Active) -> bool:
        """Whether the topic of a schedule is there: that one, and not another of its name."""
        topic = self._topics.image.topics.get(active.schedule.topic)
        return topic is not None and active.topic_id in (None, topic.topic_id)

    def _sleep(self, active: _Active) -> None:
        now_ms = self._clock.now_ms()
        due_ms = self.next_ms(active.schedule, max(active.fired_ms, now_ms))
        if due_ms is not None:
            self._wake_at(active, due_ms)

    def _wake_at(self, active: _Active, when_ms: int) -> None:
        if self._may_fire(active):
            active.cancel = self._clock.call_at(when_ms, partial(self._wake, active))

    def _may_fire(self, active: _Active) -> bool:
        return not self._stopped and not active.schedule.paused and self._is_active(active)

    def _clock_set(self, by_ms: int) -> None:
        """Every schedule that sleeps looks at the clock again."""
        for active in list(self._active.values()):
            if active.cancel is not None:
                active.cancel()
                self._wake(active)

    def _wake(self, active: _Active) -> None:
        active.cancel = None
        schedule, now_ms = active.schedule, self._clock.now_ms()
        if active.fired_ms > now_ms + _NOT_REPEATED_MS:
            active.fired_ms = now_ms
        due_ms = last_firing_ms(schedule.cron, schedule.time_zone, active.fired_ms, now_ms)
        if due_ms is None:
            self._sleep(active)
        else:
            self._tasks.start(self._fire(active, due_ms))

    async def _fire(self, active: _Active, due_ms: int) -> None:
        schedule = active.schedule
        dedup_id = f"schedule:{schedule.name}:{due_ms}".encode()
        try:
            if active.is_sure or not await self._is_in_log(schedule.topic, dedup_id, due_ms):
                await self._publish(active, dedup_id)
        except RequestError as error:
            if self._has_topic(active):
                log.warning("schedule failed name=%s due_ms=%d reason=%s: tried again", schedule.name, due_ms, error)
                active.is_sure, active.failures = False, active.failures + 1
                if self._may_fire(active):
                    pause_ms = retry_delay_ms(_RETRY, active.failures, 1.0)
                    active.cancel = self._clock.call_later(pause_ms, partial(self._wake, active))
                return
            log.warning("schedule failed name=%s due_ms=%d reason=%s: left out", schedule.name, due_ms, error)
        active.fired_ms, active.is_sure, active.failures = due_ms, True, 0
        await self._write_down(active)
        if self._is_active(active):
            self._wake(active)

    async def _publish(self, active: _Active, dedup_id: bytes) -> None:
        schedule = active.schedule
        if not self._has_topic(active):  # Nothing is awaited before `publish` looks for it, and may make it.
            raise RequestError(ErrorKind.UNKNOWN_TOPIC, f"topic '{schedule.topic}' is not there")
        headers = (*schedule.headers, (DEDUP_ID, dedup_id))
        message = OutgoingMessage(value=schedule.payload, key=schedule.key, headers=headers)
        (result,) = await self._messages.publish(schedule.topic, [message])
        if isinstance(result, RequestError):
            raise result

    async def _is_in_log(self, topic: str, dedup_id: bytes, since_ms: int) -> bool:
        """Whether a message with an id was published since: its timestamp is the time at which it was."""
        for number in range(len(self._topics.existing(topic).partitions)):
            start: Start | int = Start(kind="timestamp", timestamp_ms=since_ms)
            while found := await self._messages.browse(topic, number, start, _LOOKED_AT_MESSAGES):
                if any(last_header(message.headers, DEDUP_ID) == dedup_id for message in found):
                    return True
                start = found[-1].offset + 1
        return False

    async def _write_down(self, active: _Active) -> None:
        """That a firing is done, unless the schedule has changed; if it cannot be written, the log still says so."""
        async with self._one_change:
            if not self._is_active(active):
                return
            try:
                await self._write(active, ANY_VERSION)
            except RequestError as error:
                log.warning("schedule not written name=%s reason=%s", active.schedule.name, error)

    async def _write(self, active: _Active, version: int) -> bool:
        try:
            written = await self._store.put(_path(active.schedule.name), _encode(active), version)
        except StorageFailure as failure:
            raise metadata_failure(failure) from failure
        return written is not None

    def _is_active(self, active: _Active) -> bool:
        return self._active.get(active.schedule.name) is active


def _check(schedule: Schedule) -> None:
    if not _NAME.fullmatch(schedule.name) or schedule.name in (".", ".."):
        raise RequestError(
            ErrorKind.INVALID_SCHEDULE,
            f"schedule name {schedule.name[:40]!r} is not valid: use 1 to 200 of letters, digits, '.', '_', '-'",
        )
    check_cron(schedule.cron, schedule.time_zone)
    check_attributes(schedule.headers)
    if last_header(schedule.headers, DEDUP_ID) is not None:
        raise RequestError(ErrorKind.INVALID_SCHEDULE, f"{DEDUP_ID} is the schedule's own to set: leave it out")


def _goes_as(schedule: Schedule, other: Schedule) -> bool:
    """Whether both publish to the same topic at the same times."""
    return (schedule.topic, schedule.cron, schedule.time_zone) == (other.topic, other.cron, other.time_zone)


def _path(name: str) -> str:
    return f"{SCHEDULES_PATH}/{name}"


def _encode(active: _Active) -> bytes:
    schedule = active.schedule
    document = {
        "topic": schedule.topic,
        "topic_id": None if active.topic_id is None else str(active.topic_id),
        "cron": schedule.cron,
        "time_zone": schedule.time_zone,
        "payload": _to_text(schedule.payload),
        "key": _to_text(schedule.key),
        "headers": [[name, _to_text(value)] for name, value in schedule.headers],
        "paused": schedule.paused,
        "fired_ms": active.fired_ms,
    }
    return msgspec.json.encode(document)


def _decode(name: str, content: bytes) -> _Active:
    document = msgspec.json.decode(content)
    schedule = Schedule(
        name=name,
        topic=document["topic"],
        cron=document["cron"],
        time_zone=document["time_zone"],
        payload=_to_bytes(document["payload"]) or b"",
        key=_to_bytes(document["key"]),
        headers=tuple((header, _to_bytes(value)) for header, value in document["headers"]),
        paused=document["paused"],
    )
    topic_id = document.get("topic_id")
    return _Active(schedule, None if topic_id is None else UUID(topic_id), document["fired_ms"], is_sure=False)


def _to_text(content: bytes | None) -> str | None:
    return None if content is None else b64encode(content).decode()


def _to_bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)
