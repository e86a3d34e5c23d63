"""Work of a broker that is repeated after pauses."""

import asyncio
from abc import ABC, abstractmethod

from conveyor.broker.services import Services
from conveyor.kernel.alarm import Alarm
from conveyor.settings.tree import Settings


class Periodic(ABC):
    """One kind of work. A pause begins when the work has ended, and again when a setting changes its length.

    is_idle: whether the work that follows a pause is not in progress.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._clock = services.clock
        self._pause_ms = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._alarm = Alarm(services.clock, self._on_alarm)
        services.settings_changed.listen(self._settings_changed)

    @property
    @abstractmethod
    def interval_ms(self) -> int:
        """The length of a pause, by the settings in force."""
        ...

    @abstractmethod
    async def run_once(self) -> None:
        """Do the work once."""
        ...

    def start(self) -> None:
        """Do the work periodically from now on until the broker stops serving, first after a pause."""
        self._services.serving.callback(self.stop)
        self._rest()

    def stop(self) -> None:
        """Begin no more work. What is in progress goes on."""
        self._alarm.end()

    @property
    def is_idle(self) -> bool:
        return self._idle.is_set()

    async def drain(self) -> None:
        """Wait until no work is in progress."""
        await self._idle.wait()

    def _settings_changed(self, before: Settings) -> None:
        if self._alarm.is_set and self.interval_ms != self._pause_ms:
            self._rest()

    def _on_alarm(self) -> None:
        self._services.tasks.start(self._work())

    async def _work(self) -> None:
        self._idle.clear()
        try:
            await self.run_once()
        finally:
            self._idle.set()
        self._rest()

    def _rest(self) -> None:
        self._pause_ms = self.interval_ms
        self._alarm.after(self._pause_ms)
