"""One turn of the event loop: what was appended in it is written as one, then the answers go out.

requests of all connections -> appends ... end of turn: write each log once -> answers of all connections

An exception that leaves a write or an output is a bug. The turn reports it, which stops the broker, and goes on with
the other writes and outputs, so that the bug costs no other client its records or its answer.
"""

import asyncio
from collections.abc import Callable

from conveyor.replication.partition import Partition


class Turn:
    """Collects what the end of the turn has to do.

    call_soon: runs a callback after the turn's other events. failed: takes an exception that is a bug.
    """

    def __init__(
        self, call_soon: Callable[[Callable[[], None]], object], failed: Callable[[BaseException], None]
    ) -> None:
        self._call_soon = call_soon
        self._failed = failed
        self._scheduled = False
        self._writes: list[Partition] = []
        self._outputs: list[Callable[[], None]] = []

    def add_write(self, partition: Partition) -> None:
        self._writes.append(partition)
        self._schedule()

    def add_output(self, output: Callable[[], None]) -> None:
        """Call back once the turn's writes are done; what this adds in turn is called in the same turn."""
        self._outputs.append(output)
        self._schedule()

    async def end(self) -> None:
        """Wait until what is collected now is done."""
        done = asyncio.get_running_loop().create_future()
        self.add_output(lambda: None if done.done() else done.set_result(None))
        await done

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._call_soon(self._end)

    def _end(self) -> None:
        writes, self._writes = self._writes, []
        for partition in writes:
            try:
                partition.write()
            except Exception as bug:  # noqa: BLE001
                self._failed(bug)
        while self._outputs:
            outputs, self._outputs = self._outputs, []
            for output in outputs:
                try:
                    output()
                except Exception as bug:  # noqa: BLE001
                    self._failed(bug)
        self._scheduled = False
        if self._writes:
            self._schedule()
