"""Schedules: messages published repeatedly, by the calendar.

The metadata holds the due time of the last completed firing of a schedule, written after its message was published.
Of the firings missed while no broker ran, only the last is caught up. A firing happens once even if the broker stops
before it records the firing: the message carries `conveyor-dedup-id: schedule:<name>:<due ms>`, and after a start the
topic is searched for that id before a firing is caught up.

A schedule belongs to a topic by the topic's id, and ends when that topic is deleted. A schedule never creates a topic:
a firing without its topic is skipped.

When the wall clock is set, every schedule computes its next firing again: see `conveyor.schedules.firings`.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from conveyor.broker.fetch.message_browser import MessageBrowser
from conveyor.broker.metadata.metadata import Metadata
from conveyor.broker.produce.message_publisher import MessagePublisher
from conveyor.broker.produce.outgoing_message import OutgoingMessage
from conveyor.broker.tasks import Tasks
from conveyor.broker.topics.topics import Topics
from conveyor.cluster.changes import SchedulePut, ScheduleRemoved
from conveyor.cluster.image import ClusterImage
from conveyor.cluster.topic_decisions import owned_by_broker, unknown_topic
from conveyor.kernel.alarm import Alarm
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import TopicId
from conveyor.kernel.ports import Clock
from conveyor.queues.delivery.backoff import retry_delay_ms
from conveyor.queues.subscription.policy import RetryPolicy, StartPosition
from conveyor.records.message_attributes import DEDUP_ID, last_header
from conveyor.schedules.definition import Schedule, check_schedule
from conveyor.schedules.firings import Firings
from conveyor.schedules.schedule_document import decode_schedule, encode_schedule

log = logging.getLogger(__name__)

_RETRY = RetryPolicy()
_LOOKED_AT_MESSAGES = 1_000


class _Active:
    """A running schedule. wake: called when the alarm rings."""

    def __init__(self, firings: Firings, topic_id: TopicId, clock: Clock, wake: "Callable[[_Active], None]") -> None:
        self.firings = firings
        self.topic_id = topic_id
        self.alarm = Alarm(clock, lambda: wake(self))

    @property
    def schedule(self) -> Schedule:
        return self.firings.schedule


class Schedules:
    """See the module's docstring. Call `start` before any other method."""

    def __init__(
        self,
        *,
        metadata: Metadata,
        publisher: MessagePublisher,
        browser: MessageBrowser,
        topics: Topics,
        clock: Clock,
        tasks: Tasks,
    ) -> None:
        self._metadata = metadata
        self._publisher = publisher
        self._browser = browser
        self._topics = topics
        self._clock = clock
        self._tasks = tasks
        self._active: dict[str, _Active] = {}
        self._one_change = asyncio.Lock()
        self._stopped = False
        self._unfollow_clock = clock.when_set(self._clock_set)
        metadata.listen(self._observe)

    def start(self) -> None:
        """Start the schedules in the metadata; missed firings are caught up afterwards."""
        for image in self._metadata.image.schedules.values():
            active = _Active(decode_schedule(image.name, image.document), image.topic_id, self._clock, self._wake)
            self._active[image.name] = active
            self._wake_at(active, self._clock.now_ms())

    def stop(self) -> None:
        """Fire no more."""
        self._stopped = True
        self._unfollow_clock()
        for active in self._active.values():
            active.alarm.cancel()

    def list(self) -> "list[Schedule]":
        """Return every schedule, by name."""
        return [self._active[name].schedule for name in sorted(self._active)]

    def existing(self, name: str) -> Schedule:
        """Raise RequestError (UNKNOWN_SCHEDULE)."""
        return self._find(name).schedule

    async def add(self, schedule: Schedule) -> None:
        """Begin a schedule. It is durable on return and first fires after now.

        Raises RequestError: INVALID_SCHEDULE, INVALID_REQUEST (a header), UNKNOWN_TOPIC, SCHEDULE_ALREADY_EXISTS.
        """
        async with self._one_change:
            await self._begin(self._activate(Firings(schedule, self._clock.now_ms(), is_sure=True)), is_new=True)
        log.info("schedule added name=%s topic=%s cron=%s", schedule.name, schedule.topic, schedule.cron)

    async def change(self, name: str, changes: Mapping[str, Any]) -> Schedule:
        """Change fields of a schedule, durably, from now on.

        Earlier due firings are still caught up, unless the schedule was paused then, or its topic or times change.
        Raises RequestError: those of `add`, and UNKNOWN_SCHEDULE.
        """
        async with self._one_change:
            before = self._find(name)
            schedule = msgspec.structs.replace(before.schedule, **changes)
            firings = before.firings.changed(schedule, self._clock.now_ms())
            await self._begin(self._activate(firings), is_new=False)
            before.alarm.cancel()
        log.info("schedule changed name=%s fields=%s", name, ",".join(sorted(changes)))
        return schedule

    async def remove(self, name: str) -> None:
        """End a schedule. Raises RequestError (UNKNOWN_SCHEDULE)."""
        async with self._one_change:
            self._find(name)
            await self._metadata.propose(lambda _: [ScheduleRemoved(name=name)])

    def _find(self, name: str) -> _Active:
        active = self._active.get(name)
        if active is None:
            existing = f"there are: {', '.join(sorted(self._active))}" if self._active else "there are no schedules"
            raise RequestError(ErrorKind.UNKNOWN_SCHEDULE, f"there is no schedule '{name}'; {existing}")
        return active

    async def _begin(self, active: _Active, *, is_new: bool) -> None:
        """Store a schedule, then activate it."""
        await self._write(active, is_new=is_new)
        if active.schedule.name in self._metadata.image.schedules:  # Else its topic was deleted since.
            self._active[active.schedule.name] = active
            self._wake_at(active, self._clock.now_ms())

    def _observe(self, old: ClusterImage, new: ClusterImage) -> None:
        """End the schedules that are removed, by themselves or with their topic."""
        if new.schedules is old.schedules:
            return
        for name in old.schedules.keys() - new.schedules.keys():
            active = self._active.pop(name, None)
            if active is not None:
                active.alarm.cancel()
                log.info("schedule removed name=%s topic=%s", name, active.schedule.topic)

    def _activate(self, firings: Firings) -> _Active:
        """Raise RequestError: see `add`."""
        check_schedule(firings.schedule)
        topic = self._topics.existing(firings.schedule.topic)
        if topic.is_internal:
            raise owned_by_broker(topic.name)
        return _Active(firings, topic.topic_id, self._clock, self._wake)

    def _has_topic(self, active: _Active) -> bool:
        """Return whether the topic of a schedule exists: the same topic, not another topic with its name."""
        topic = self._metadata.image.topics.get(active.schedule.topic)
        return topic is not None and active.topic_id == topic.topic_id

    def _wake_at(self, active: _Active, when_ms: int) -> None:
        if self._may_fire(active):
            active.alarm.at(when_ms)

    def _may_fire(self, active: _Active) -> bool:
        return not self._stopped and not active.schedule.paused and self._is_active(active)

    def _clock_set(self, by_ms: int) -> None:
        """Let every sleeping schedule compute its next firing again."""
        for active in list(self._active.values()):
            if active.alarm.is_set:
                active.alarm.cancel()
                self._wake(active)

    def _wake(self, active: _Active) -> None:
        now_ms = self._clock.now_ms()
        due_ms = active.firings.due_ms(now_ms)
        if due_ms is not None:
            self._tasks.start(self._fire(active, due_ms))
        elif (next_ms := active.firings.next_ms(now_ms)) is not None:
            self._wake_at(active, next_ms)

    async def _fire(self, active: _Active, due_ms: int) -> None:
        schedule, firings = active.schedule, active.firings
        try:
            if firings.is_sure or not await self._is_in_log(schedule, due_ms):
                await self._publish(active, due_ms)
        except RequestError as error:
            if self._has_topic(active):
                log.warning("schedule failed name=%s due_ms=%d reason=%s: retried", schedule.name, due_ms, error)
                firings.failed()
                if self._may_fire(active):
                    active.alarm.after(retry_delay_ms(_RETRY, firings.failures, 1.0))
                return
            log.warning("schedule failed name=%s due_ms=%d reason=%s: skipped", schedule.name, due_ms, error)
        firings.done(due_ms)
        await self._write_down(active)
        if self._is_active(active):
            self._wake(active)

    async def _publish(self, active: _Active, due_ms: int) -> None:
        schedule = active.schedule
        if not self._has_topic(active):  # `publish` may create the topic, but looks for it before its first await.
            raise unknown_topic(schedule.topic)
        headers = (*schedule.headers, (DEDUP_ID, schedule.dedup_id(due_ms)))
        message = OutgoingMessage(value=schedule.payload, key=schedule.key, headers=headers)
        (result,) = await self._publisher.publish(schedule.topic, [message])
        if isinstance(result, RequestError):
            raise result

    async def _is_in_log(self, schedule: Schedule, due_ms: int) -> bool:
        """Return whether the message of a firing was published. Its timestamp is the time of publishing."""
        dedup_id = schedule.dedup_id(due_ms)
        for number in range(len(self._topics.existing(schedule.topic).partitions)):
            start: StartPosition | int = StartPosition(kind="timestamp", timestamp_ms=due_ms)
            while messages := await self._browser.browse(schedule.topic, number, start, _LOOKED_AT_MESSAGES):
                if any(last_header(message.headers, DEDUP_ID) == dedup_id for message in messages):
                    return True
                start = messages[-1].offset + 1
        return False

    async def _write_down(self, active: _Active) -> None:
        """Record a completed firing, unless the schedule has changed. If that fails, the topic's log shows it."""
        async with self._one_change:
            if not self._is_active(active):
                return
            try:
                await self._write(active, is_new=False)
            except RequestError as error:
                log.warning("schedule not written name=%s reason=%s", active.schedule.name, error)

    async def _write(self, active: _Active, *, is_new: bool) -> None:
        """Raise RequestError: SCHEDULE_ALREADY_EXISTS, UNKNOWN_TOPIC."""
        schedule = active.schedule

        def decide(image: ClusterImage) -> list[SchedulePut]:
            if is_new and schedule.name in image.schedules:
                raise RequestError(
                    ErrorKind.SCHEDULE_ALREADY_EXISTS,
                    f"schedule '{schedule.name}' exists already: change it, or remove it first",
                )
            if active.topic_id not in image.names_by_id:
                raise unknown_topic(schedule.topic)
            return [
                SchedulePut(
                    name=schedule.name,
                    topic_id=active.topic_id,
                    document=encode_schedule(active.firings, active.topic_id),
                )
            ]

        await self._metadata.propose(decide)

    def _is_active(self, active: _Active) -> bool:
        return self._active.get(active.schedule.name) is active
