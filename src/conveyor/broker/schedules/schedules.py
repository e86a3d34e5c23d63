"""Schedules: messages published repeatedly, by the calendar.

The broker that leads partition 0 of the topic fires the schedules of the topic; any broker lists and changes them.

The metadata holds the due time of the last completed firing of a schedule, written after its message was published,
and only if the schedule is unchanged and this broker still fires it. Of the firings missed while no broker ran, only
the last is caught up. A firing happens once even if the broker stops before it records the firing: the message carries
`conveyor-dedup-id: schedule:<name>:<due ms>`, and a broker that has started, or begins to fire the schedule, searches
the topic for that id before it catches a firing up. If the previous broker publishes after that search, because it has
not seen the change yet, the leader of the partition drops the second message: both have the same id.

A schedule belongs to a topic by the topic's id, and ends when that topic is deleted. A schedule never creates a topic:
a firing without its topic is skipped.

When the wall clock is set, every schedule computes its next firing again: see `conveyor.schedules.firings`.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from conveyor.broker.fetch.message_browser import MessageBrowser
from conveyor.broker.produce.message_publisher import MessagePublisher
from conveyor.broker.produce.outgoing_message import OutgoingMessage
from conveyor.broker.services import Services
from conveyor.broker.topics.topics import Topics
from conveyor.cluster.changes import SchedulePut
from conveyor.cluster.image import ClusterImage, ScheduleImage, changed_keys
from conveyor.cluster.schedule_decisions import (
    added_schedule,
    completed_firing,
    existing_schedule,
    is_fired_by,
    removed_schedule,
)
from conveyor.cluster.topic_decisions import existing_user_topic, unknown_topic
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.alarm import Alarm
from conveyor.kernel.errors import RequestError
from conveyor.kernel.ports import Clock
from conveyor.queues.delivery.backoff import retry_delay_ms
from conveyor.queues.subscription.policy import RetryPolicy, StartPosition
from conveyor.records.message_attributes import DEDUP_ID, PUBLISHER, last_header
from conveyor.records.publishers import owner_of
from conveyor.records.record import Header
from conveyor.schedules.definition import Schedule, check_schedule
from conveyor.schedules.firings import Firings
from conveyor.schedules.schedule_document import decode_schedule, encode_schedule

log = logging.getLogger(__name__)

_RETRY = RetryPolicy()
_LOOKED_AT_MESSAGES = 1_000
_PUBLISHED = frozenset(("topic", "key", "payload", "headers"))
"""The fields whose last change makes a user the owner of a schedule."""


class _Active:
    """A schedule that this broker fires. wake: called when the alarm rings.

    document: as the metadata holds it. written: the document that is being stored.
    """

    def __init__(
        self, firings: Firings, stored: ScheduleImage, clock: Clock, wake: "Callable[[_Active], None]"
    ) -> None:
        self.firings = firings
        self.topic_id = stored.topic_id
        self.document = stored.document
        self.written = stored.document
        self.alarm = Alarm(clock, lambda: wake(self))

    @property
    def schedule(self) -> Schedule:
        return self.firings.schedule

    def has_stored(self, document: str) -> bool:
        """Return whether this is the document of the schedule, or the one that this broker has just written."""
        if document not in (self.document, self.written):
            return False
        self.document = document
        return True


class Schedules:
    """See the module's docstring. Call `start` before any other method."""

    def __init__(
        self, services: Services, topics: Topics, publisher: MessagePublisher, browser: MessageBrowser
    ) -> None:
        self._me = services.me
        self._metadata = services.metadata
        self._own_caller = services.own_caller
        self._clock = services.clock
        self._tasks = services.tasks
        self._publisher = publisher
        self._browser = browser
        self._topics = topics
        self._active: dict[str, _Active] = {}
        self._is_started = False
        self._stopped = False
        self._unfollow_clock = self._clock.when_set(self._clock_set)
        self._metadata.listen(self._observe)
        services.serving.callback(self._stop)

    def start(self) -> None:
        """Start the schedules that this broker fires; missed firings are caught up afterwards."""
        self._is_started = True
        for name in self._metadata.image.schedules:
            self._follow(name, is_new=False)

    def _stop(self) -> None:
        """Fire no more."""
        self._stopped = True
        self._unfollow_clock()
        for active in self._active.values():
            active.alarm.cancel()

    def all(self) -> Iterator[Schedule]:
        """Yield every schedule that there is now, by name. Each is decoded as it is asked for."""
        image = self._metadata.image
        return (_stored(image, name).schedule for name in sorted(image.schedules))

    def existing(self, name: str) -> Schedule:
        """Raise RequestError (UNKNOWN_SCHEDULE)."""
        return _stored(self._metadata.image, name).schedule

    async def add(self, caller: Caller, schedule: Schedule) -> Schedule:
        """Begin a schedule, and return it. It is durable on return and first fires after now.

        The caller is its owner. Raises RequestError: INVALID_SCHEDULE, INVALID_REQUEST (a header), UNKNOWN_TOPIC,
        SCHEDULE_ALREADY_EXISTS.
        """
        schedule = msgspec.structs.replace(schedule, owner=owner_of(caller))
        firings = Firings(schedule, self._clock.now_ms(), is_sure=True)

        def decide(image: ClusterImage) -> list[SchedulePut]:
            return added_schedule(image, _checked(image, firings))

        await self._metadata.propose(decide)
        log.info("schedule added name=%s topic=%s cron=%s", schedule.name, schedule.topic, schedule.cron)
        return schedule

    async def change(self, caller: Caller, name: str, changes: Mapping[str, Any]) -> Schedule:
        """Change fields of a schedule, durably, from now on. Who changes what it publishes, or where, is its owner.

        Earlier due firings are still caught up, unless the schedule was paused then, or its topic or times change.
        Raises RequestError: those of `add`, and UNKNOWN_SCHEDULE.
        """

        def decide(image: ClusterImage) -> list[SchedulePut]:
            before = _stored(image, name)
            owner = before.schedule.owner if _PUBLISHED.isdisjoint(changes) else owner_of(caller)
            schedule = msgspec.structs.replace(before.schedule, **changes, owner=owner)
            return [_checked(image, before.changed(schedule, self._clock.now_ms()))]

        image = await self._metadata.propose(decide)
        log.info("schedule changed name=%s fields=%s caller=%s", name, ",".join(sorted(changes)), caller)
        return _stored(image, name).schedule

    async def remove(self, caller: Caller, name: str) -> None:
        """End a schedule. Raises RequestError (UNKNOWN_SCHEDULE)."""
        await self._metadata.propose(lambda image: removed_schedule(image, name))

    def _observe(self, old: ClusterImage, new: ClusterImage) -> None:
        """Follow the schedules that have changed, and all if leaders may have changed."""
        if not self._is_started or self._stopped or (new.schedules is old.schedules and new.topics is old.topics):
            return
        names = changed_keys(old.schedules, new.schedules)
        if new.topics is not old.topics:
            names = list({*names, *new.schedules, *self._active})
        for name in names:
            self._follow(name, is_new=name not in old.schedules)

    def _follow(self, name: str, *, is_new: bool) -> None:
        """Begin or cease to fire a schedule, or continue with its changed definition."""
        image, active = self._metadata.image, self._active.get(name)
        stored = image.schedules.get(name)
        is_owned = stored is not None and is_fired_by(image, stored, self._me)
        has_topic = stored is not None and stored.topic_id in image.names_by_id
        goes_on = is_owned or not has_topic  # Without its topic, its next firing is skipped.
        if active is not None and stored is not None and goes_on and active.has_stored(stored.document):
            return
        if active is not None:
            del self._active[name]
            active.alarm.cancel()
            if stored is None:
                log.info("schedule removed name=%s topic=%s", name, active.schedule.topic)
        if stored is not None and is_owned:
            firings = decode_schedule(name, stored.document)
            firings.is_sure = is_new
            started = self._active[name] = _Active(firings, stored, self._clock, self._wake)
            self._wake_at(started, self._clock.now_ms())

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
        if not self._is_active(active):
            return
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
        owner: tuple[Header, ...] = ((PUBLISHER, schedule.owner.encode()),) if schedule.owner else ()
        headers = (*schedule.headers, *owner, (DEDUP_ID, schedule.dedup_id(due_ms)))
        message = OutgoingMessage(value=schedule.payload, key=schedule.key, headers=headers)
        (result,) = await self._publisher.publish(self._own_caller, schedule.topic, [message])
        if isinstance(result, RequestError):
            raise result

    async def _is_in_log(self, schedule: Schedule, due_ms: int) -> bool:
        """Return whether the message of a firing was published. Its timestamp is the time of publishing. Raises
        RequestError, also if it may be behind the beginning of an open transaction.
        """
        dedup_id = schedule.dedup_id(due_ms)
        for number in range(len(self._topics.existing(schedule.topic).partitions)):
            start: StartPosition | int = StartPosition(kind="timestamp", timestamp_ms=due_ms)
            while messages := await self._browser.browse(
                self._own_caller, schedule.topic, number, start, _LOOKED_AT_MESSAGES, is_whole=True
            ):
                if any(last_header(message.headers, DEDUP_ID) == dedup_id for message in messages):
                    return True
                start = messages[-1].offset + 1
        return False

    async def _write_down(self, active: _Active) -> None:
        """Record a completed firing, unless the schedule or its broker has changed.

        If that fails, the topic's log shows the firing.
        """
        if not self._is_active(active):
            return
        name = active.schedule.name
        active.written = encode_schedule(active.firings, active.topic_id)
        put = SchedulePut(name=name, topic_id=active.topic_id, document=active.written)
        try:
            await self._metadata.propose(lambda image: completed_firing(image, active.document, put, self._me))
        except RequestError as error:
            log.warning("schedule not written name=%s reason=%s", name, error)

    def _is_active(self, active: _Active) -> bool:
        return self._active.get(active.schedule.name) is active


def _stored(image: ClusterImage, name: str) -> Firings:
    """Return a schedule and its progress. Raises RequestError (UNKNOWN_SCHEDULE)."""
    return decode_schedule(name, existing_schedule(image, name).document)


def _checked(image: ClusterImage, firings: Firings) -> SchedulePut:
    """Return the change that stores a schedule. Raises RequestError: see `Schedules.add`."""
    check_schedule(firings.schedule)
    topic = existing_user_topic(image, firings.schedule.topic)
    document = encode_schedule(firings, topic.topic_id)
    return SchedulePut(name=firings.schedule.name, topic_id=topic.topic_id, document=document)
