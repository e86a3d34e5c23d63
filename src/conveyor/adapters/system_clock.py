"""The machine's clock, with the event loop's timers."""

import asyncio
import time
from collections.abc import Callable


class SystemClock:
    """See `conveyor.kernel.ports.Clock`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def call_at(self, when_ms: int, callback: Callable[[], None]) -> Callable[[], None]:
        return self._loop.call_later(max(0, when_ms - self.now_ms()) / 1000, callback).cancel
