"""Asks the metadata store again while it cannot be reached: a short outage must not end a broker that starts.

The first connection to a store is not repeated: a wrong address should be reported soon.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from conveyor.broker.timed_signal import Pauses, TimedSignal
from conveyor.kernel.errors import StoreUnreachable
from conveyor.kernel.ports import Clock

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

PATIENCE_MS = 60_000


async def until_answered(ask: Callable[[], Awaitable[Answer]], clock: Clock) -> Answer:
    """Return what `ask` returns. It is called again while it raises StoreUnreachable, for at most PATIENCE_MS.

    Raises the last StoreUnreachable; everything else that `ask` raises.
    """
    pauses, signal, began_ms = Pauses(), TimedSignal(clock), clock.steady_ms()
    while True:
        try:
            return await ask()
        except StoreUnreachable as failure:
            if clock.steady_ms() - began_ms >= PATIENCE_MS:
                raise
            log.log(pauses.log_level, "metadata store asked again reason=%s", failure)
        await signal.wait(pauses.next_ms())
