"""One tick of the event loop: records appended during the tick are written together, then the responses are sent.

requests of all connections -> appends ... end of tick: write each log once -> responses of all connections

An exception from a write or an output is a bug. The tick reports it, which stops the broker, and continues with the
other writes and outputs, so that the bug costs no other client its records or its response.
"""

import asyncio
from collections.abc import Callable
from functools import partial

from conveyor.broker.answers import answered
from conveyor.broker.tasks import Failed
from conveyor.kernel.attempts import attempt
from conveyor.replication.partition import Partition


class LoopTick:
    """Collects the work for the end of the tick.

    failed: receives an exception that is a bug.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, failed: Failed) -> None:
        self._call_soon = loop.call_soon
        self._failed = failed
        self._scheduled = False
        self._writes: list[Partition] = []
        self._outputs: list[Callable[[], None]] = []

    def add_write(self, partition: Partition) -> None:
        self._writes.append(partition)
        self._schedule()

    def add_output(self, output: Callable[[], None]) -> None:
        """Call back after the tick's writes. An output added by another output is called in the same tick."""
        self._outputs.append(output)
        self._schedule()

    async def end(self) -> None:
        """Wait until all work collected so far is done."""
        return await answered(lambda ended: self.add_output(partial(ended, None)))

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._call_soon(self._end)

    def _end(self) -> None:
        writes, self._writes = self._writes, []
        for partition in writes:
            attempt(self._failed, partition.write)
        while self._outputs:
            outputs, self._outputs = self._outputs, []
            for output in outputs:
                attempt(self._failed, output)
        self._scheduled = False
        if self._writes:
            self._schedule()
