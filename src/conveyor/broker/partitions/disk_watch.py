"""Watches the free space of the broker's disk, and resumes the work that a full disk has stopped.

    measure the space -> reopen partitions whose failure may have passed -> if space is low, delete old records
                      -> if it is no longer low, resume the waiting work

The closer the disk is to its limit, the sooner the next measurement follows; a partition that finds the disk full
causes one at once. A partition that fails repeatedly is reopened after growing pauses of up to half a minute. Old
records are deleted once the space is low, and again at intervals, and once a partition was reopened: none of its
records could be deleted before.
"""

import asyncio
import logging

import msgspec

from conveyor.broker.partitions.disk_room import DiskRoom
from conveyor.broker.partitions.reconciler import Reconciler
from conveyor.broker.partitions.retention import Retention
from conveyor.broker.services import Services
from conveyor.kernel.alarm import Alarm
from conveyor.kernel.errors import DiskFull, StorageFailure, TransientFailure
from conveyor.kernel.ids import TopicPartition
from conveyor.kernel.signal import Signal

log = logging.getLogger(__name__)

_SOON_MS = 100
_TROUBLED_MS = 1_000
_QUIET_MS = 10_000
_FASTEST_BYTES_PER_MS = 500_000
"""The assumed maximum rate at which a disk fills."""
_RETENTION_MS = 10_000
_LONGEST_PAUSE_MS = 30_000
"""After this pause, work stopped by a full disk is retried even if the measured space is low."""


class _Pause(msgspec.Struct, frozen=True, kw_only=True):
    """The pause of a partition after it was reopened: its length and its end."""

    length_ms: int
    until_ms: int


class DiskWatch:
    """See the module's docstring. resumed: the disk has space for records again."""

    def __init__(self, services: Services, room: DiskRoom, reconciler: Reconciler, retention: Retention) -> None:
        self.resumed: Signal[None] = Signal()
        self._services = services
        self._clock = services.clock
        self._room = room
        self._reconciler = reconciler
        self._partitions = reconciler.partitions
        self._retention = retention
        self._pauses: dict[TopicPartition, _Pause] = {}
        self._retain_from_ms, self._full_ms = 0, -_LONGEST_PAUSE_MS
        self._was_low = False
        self._is_anything_paused = True
        self._alarm = Alarm(services.clock, self._on_alarm)
        self._alarm_ms = 0
        self._is_checking = False
        self._is_watching = False
        self._partitions.went_offline.listen(self._went_offline)

    def start(self) -> None:
        """Watch the disk from now on until the broker stops serving."""
        self._services.serving.callback(self._stop)
        self._is_watching = True
        self._measure_by(self._clock.steady_ms() + self._interval_ms())

    def _stop(self) -> None:
        self._is_watching = False
        self._alarm.cancel()

    def _went_offline(self, failure: StorageFailure) -> None:
        """Measure the disk soon: a partition has failed, possibly because the disk is full."""
        if isinstance(failure, DiskFull):
            self._full_ms = self._clock.steady_ms()
            self._is_anything_paused = True
            self._room.found_full()
        if isinstance(failure, TransientFailure) and not self._is_checking:
            self._measure_by(self._clock.steady_ms() + _SOON_MS)

    def _measure_by(self, when_ms: int) -> None:
        """Schedule a measurement, unless one is due earlier."""
        if not self._is_watching or (self._alarm.is_set and self._alarm_ms <= when_ms):
            return
        self._alarm_ms = when_ms
        self._alarm.after(when_ms - self._clock.steady_ms())

    def _on_alarm(self) -> None:
        self._is_checking = True
        self._services.tasks.start(self._check_and_go_on())

    async def _check_and_go_on(self) -> None:
        await self._check()
        self._is_checking = False
        self._measure_by(self._clock.steady_ms() + self._interval_ms())

    async def _check(self) -> None:
        if self._clock.steady_ms() - self._full_ms >= _LONGEST_PAUSE_MS:
            self._room.forget_full()
        await self._measure()
        await self._reconciler.raise_epochs()
        await self._bring_back()
        if self._room.is_low and self._is_time_to_retain():
            await self._retention.run_once()
            await self._measure()
        self._was_low = self._room.is_low
        if self._is_anything_paused and not self._was_low:
            self.resumed.emit(None)
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
            await asyncio.get_running_loop().run_in_executor(self._services.threads, self._room.measure)
        except StorageFailure as failure:
            log.warning("disk room unknown reason=%s", failure)

    async def _bring_back(self) -> None:
        """Reopen offline partitions, except those whose pause has not ended."""
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
                await self._reconciler.reopen(identity)
                self._retain_from_ms = now_ms

    def _is_time_to_retain(self) -> bool:
        """Return whether to run retention now; see the module's docstring."""
        now_ms = self._clock.steady_ms()
        is_due = not self._was_low or now_ms >= self._retain_from_ms
        if is_due:
            self._retain_from_ms = now_ms + _RETENTION_MS
        return is_due
