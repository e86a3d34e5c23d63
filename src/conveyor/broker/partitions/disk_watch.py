"""Watches the broker's disk: measures its room, and brings back what a full disk has stopped.

    measure the room -> open partitions again whose failure may have passed -> if the room is low, delete old records
                     -> if it is no longer low, go on with what has waited

The nearer the disk is to its limit, the sooner the next look follows; a partition that meets a full disk is a reason to
look at once. A partition that fails again and again is left alone for longer and longer, up to half a minute.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass

from conveyor.broker.partitions.disk_room import DiskRoom
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.partitions.retention import Retention
from conveyor.broker.tasks import Tasks
from conveyor.broker.topics.topics import Topics
from conveyor.kernel.errors import DiskFull, PassingFailure, StorageFailure
from conveyor.kernel.ids import TopicPartition
from conveyor.kernel.ports import Clock

log = logging.getLogger(__name__)

_SOON_MS = 100
_TROUBLED_MS = 1_000
_QUIET_MS = 10_000
_FASTEST_BYTES_PER_MS = 500_000
"""So fast a disk may fill."""
_RETENTION_MS = 10_000
_LONGEST_PAUSE_MS = 30_000
"""After it, what has met a full disk is tried again, whatever the disk says of its room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pause:
    """How long a partition is left alone after it was opened again, and until when."""

    length_ms: int
    until_ms: int


class DiskWatch:
    """See the module's docstring."""

    def __init__(
        self,
        *,
        room: DiskRoom,
        topics: Topics,
        partitions: PartitionTable,
        retention: Retention,
        clock: Clock,
        threads: Executor,
        tasks: Tasks,
    ) -> None:
        self._room = room
        self._topics = topics
        self._partitions = partitions
        self._retention = retention
        self._clock = clock
        self._threads = threads
        self._tasks = tasks
        self._pauses: dict[TopicPartition, _Pause] = {}
        self._retained_ms, self._full_ms = -_RETENTION_MS, -_LONGEST_PAUSE_MS
        self._was_low = False
        self._is_anything_paused = True
        self._when_back: list[Callable[[], None]] = []
        self._cancel_alarm: Callable[[], None] | None = None
        self._alarm_ms = 0
        self._is_looking = False
        self._is_stopped = False

    def start(self) -> None:
        """Watch from now on."""
        self._look_at(self._clock.steady_ms() + self._interval_ms())

    def stop(self) -> None:
        self._is_stopped = True
        if self._cancel_alarm is not None:
            self._cancel_alarm()

    def when_back(self, resumed: Callable[[], None]) -> None:
        """Call back when there is room for records again."""
        self._when_back.append(resumed)

    def went_offline(self, failure: StorageFailure) -> None:
        """A partition has met a failure, which may be that of a full disk."""
        if isinstance(failure, DiskFull):
            self._full_ms = self._clock.steady_ms()
            self._is_anything_paused = True
            self._room.found_full()
        if isinstance(failure, PassingFailure) and not self._is_looking:
            self._look_at(self._clock.steady_ms() + _SOON_MS)

    def _look_at(self, when_ms: int) -> None:
        """Look at a time, unless a look is due before."""
        if self._is_stopped or (self._cancel_alarm is not None and self._alarm_ms <= when_ms):
            return
        if self._cancel_alarm is not None:
            self._cancel_alarm()
        self._alarm_ms = when_ms
        self._cancel_alarm = self._clock.call_later(when_ms - self._clock.steady_ms(), self._on_alarm)

    def _on_alarm(self) -> None:
        self._cancel_alarm = None
        self._is_looking = True
        self._tasks.start(self._look_and_go_on())

    async def _look_and_go_on(self) -> None:
        await self._look()
        self._is_looking = False
        self.start()

    async def _look(self) -> None:
        if self._clock.steady_ms() - self._full_ms >= _LONGEST_PAUSE_MS:
            self._room.forget_full()
        await self._measure()
        await self._bring_back()
        if self._room.is_low and self._is_time_to_retain():
            await self._retention.retain_all()
            await self._measure()
        self._was_low = self._room.is_low
        if self._is_anything_paused and not self._was_low:
            for resumed in self._when_back:
                resumed()
        self._is_anything_paused = self._was_low

    def _interval_ms(self) -> int:
        room = self._room
        if room.is_low or self._partitions.returning():
            return _TROUBLED_MS
        if room.usable_bytes is None:
            return _QUIET_MS
        distance_ms = (room.usable_bytes - room.min_free_bytes) // _FASTEST_BYTES_PER_MS
        return max(_SOON_MS, min(_QUIET_MS, distance_ms))

    async def _measure(self) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, self._room.measure)
            with suppress(DiskFull):
                await self._topics.raise_epochs()
        except StorageFailure as failure:
            log.warning("disk room unknown reason=%s", failure)

    async def _bring_back(self) -> None:
        """Open partitions again that are offline, but for those that have failed again a short time ago."""
        now_ms = self._clock.steady_ms()
        returning = self._partitions.returning()
        self._pauses = {
            key: pause for key, pause in self._pauses.items() if pause.until_ms > now_ms or key in returning
        }
        for identity in returning:
            last = self._pauses.get(identity)
            if last is None or last.until_ms <= now_ms:
                length_ms = _TROUBLED_MS if last is None else min(_LONGEST_PAUSE_MS, 2 * last.length_ms)
                self._pauses[identity] = _Pause(length_ms=length_ms, until_ms=now_ms + length_ms)
                await self._topics.reopen(identity.topic, identity.partition)

    def _is_time_to_retain(self) -> bool:
        """Retention may make room: it is due when the room has become low, and then more often than usual."""
        now_ms = self._clock.steady_ms()
        is_due = not self._was_low or now_ms - self._retained_ms >= _RETENTION_MS
        if is_due:
            self._retained_ms = now_ms
        return is_due
