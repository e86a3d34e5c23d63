"""The manual clock of an embedded broker. The test's thread moves it from one deadline of the broker to the next."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any

from conveyor.server.server import Server
from conveyor.testing.manual_clock import ManualClock
from conveyor.testing.settling_loop import SettlingLoop


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server and its event loop."""

    server: Server
    loop: SettlingLoop


class BrokerClock:
    """Moves a broker's time; see the module's docstring.

    running: returns the server while it runs; raises ValueError before the start.
    """

    def __init__(self, clock: ManualClock, running: Callable[[], RunningServer | None]) -> None:
        self._clock = clock
        self._running = running
        self._one_move = threading.Lock()

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def advance(self, *, seconds: float = 0, ms: int = 0) -> None:
        """Move time forward. On return the broker has processed everything that fell due, with all consequences.

        Time moves from one deadline of the broker to the next. Before each move the broker settles: messages are
        published, records flushed, metadata changes written. A callback that is set for a time within the move runs at
        that time. While the broker is stopped, time passes and nothing happens.
        Clients live in real time: a client may react to a response at any moment of the move, or after it. In
        asynchronous code, call this through `asyncio.to_thread`, unless the event loop may block.
        Raises ValueError for a negative move, RuntimeError if the broker stops meanwhile, or if its timers keep time
        from moving.
        """
        with self._one_move:
            running = self._running()
            if running is None:
                self._clock.advance(seconds=seconds, ms=ms)
            else:
                _run(running.loop, self._advance(running, seconds, ms))

    def set_wall_clock(self, *, by_seconds: float) -> None:
        """Set the wall clock forward or (negative) back, as NTP may do. On return all consequences have happened.

        Sessions, leases and other durations keep their length. Schedules and delayed messages follow the wall clock.
        """
        with self._one_move:
            running = self._running()
            if running is None:
                self._clock.set_wall_clock(by_seconds=by_seconds)
            else:
                _run(running.loop, self._set_wall_clock(running, by_seconds))

    async def _advance(self, running: RunningServer, seconds: float, ms: int) -> None:
        end_ms = self._clock.begin(seconds=seconds, ms=ms)
        await _settle(running)
        while (callback := self._clock.next_callback(end_ms)) is not None:
            running.loop.call_soon(
                callback
            )  # As a timer, so that the loop reports a bug in it, which stops the broker.
            await _settle(running)

    async def _set_wall_clock(self, running: RunningServer, by_seconds: float) -> None:
        await _settle(running)
        self._clock.set_wall_clock(by_seconds=by_seconds)
        await self._advance(running, 0, 0)


class EmbeddedClock(ManualClock):
    """A manual clock for real clients: long polls and throttles also end in real time.

    Otherwise a client that polls for half a second would wait until the test advances the clock.
    """

    def time_out(self, wait_ms: int, callback: Callable[[], None]) -> Callable[[], None]:
        def once() -> None:
            cancel()
            callback()

        def cancel() -> None:
            cancel_virtual()
            real.cancel()

        cancel_virtual = super().time_out(wait_ms, once)
        real = asyncio.get_running_loop().call_later(wait_ms / 1000, once)
        return cancel


async def _settle(running: RunningServer) -> None:
    """Wait until all pending work has ended. Raises RuntimeError if the broker stops."""
    broker = running.server.broker
    await running.loop.settled()
    while not (broker.partitions.flusher.is_idle and broker.partitions.compaction.is_idle):
        await broker.partitions.flusher.drain()
        await broker.partitions.compaction.drain()
        await running.loop.settled()
    if running.server.failure is not None:
        raise RuntimeError("the broker has stopped: an unexpected error") from running.server.failure


def _run(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> None:
    try:
        asyncio.run_coroutine_threadsafe(work, loop).result()
    except CancelledError:
        raise RuntimeError("the broker has stopped while its clock was moved") from None
