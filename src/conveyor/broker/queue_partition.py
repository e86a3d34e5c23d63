"""One partition as a queue: its machine, kept up with the partition's log, and its own log kept short.

the topic's high watermark rises -> `advance` -> whoever waits for messages is told
a command, or time              -> the machine -> its records -> whoever waits is told
"""

import logging
from collections.abc import Callable
from uuid import UUID

from conveyor.broker.retention import Retention
from conveyor.broker.tasks import Tasks
from conveyor.kernel.errors import RequestError, StorageFailure
from conveyor.kernel.ports import Clock
from conveyor.queues.commands import QueueCommand
from conveyor.queues.machine import QueueMachine
from conveyor.queues.source import MessageSource
from conveyor.replication.partition import Partition
from conveyor.replication.runner import MachineRunner

log = logging.getLogger(__name__)

_SNAPSHOT_BYTES = 4 << 20
_SNAPSHOT_RATIO = 4
_STEPS_BETWEEN_LOOKS = 256


class QueuePartition:
    """See the module's docstring. changed: told whenever there may be something new for somebody."""

    def __init__(
        self,
        *,
        messages: Partition,
        state: Partition,
        source: MessageSource,
        machine: QueueMachine,
        clock: Clock,
        retention: Retention,
        tasks: Tasks,
        call_soon: Callable[[Callable[[], None]], object],
        changed: Callable[["QueuePartition"], None],
    ) -> None:
        self.machine = machine
        self.source = source
        self.messages = messages
        self._state = state
        self._clock = clock
        self._retention = retention
        self._tasks = tasks
        self._call_soon = call_soon
        self._changed = changed
        self._runner = MachineRunner(state, machine, clock, self._stepped)
        self._is_advancing = False
        self._is_stopped = False
        self._steps = 0
        self._snapshot_bytes = 0
        self._bytes_at_snapshot = 0
        messages.queue = self
        self._rose()

    @property
    def number(self) -> int:
        return self.messages.identity.partition

    def submit(self, command: QueueCommand, respond: Callable[[object], None]) -> Callable[[], None]:
        """Hand a command to the machine; `respond` gets its reply, or a RequestError, now or later.

        Returns what forgets the caller.
        """
        token = self._runner.submit(command, respond)
        return lambda: self._runner.forget(token)

    def has_messages(self, subscription: UUID) -> bool:
        """Whether there is something that a subscription could be given now."""
        queue = self.machine.queue(subscription)
        return queue is not None and queue.has_messages

    def held_from(self) -> int | None:
        """The lowest offset that the topic's retention must leave."""
        return self.machine.held_from()

    def settled_offset(self) -> int:
        """Everything below it is settled by every subscription."""
        return self.machine.settled_offset()

    def stop(self) -> None:
        self._is_stopped = True
        self.messages.unwatch(self._rose)
        self.messages.queue = None
        self._runner.stop()
        self.machine.close()

    def _watch(self) -> None:
        if self.messages.offline_reason is None:
            self.messages.watch(self._rose)

    def _rose(self) -> None:
        """The log has grown, or may have, while the machine was loaded."""
        self._watch()
        self._advance()

    def _advance(self) -> None:
        """Look through what is new in the log, a part in each turn."""
        if self.messages.offline_reason is not None or self._is_advancing:
            return
        try:
            is_done = self.machine.advance(self.messages.high_watermark, self._clock.now_ms())
        except StorageFailure as failure:
            return self.messages.go_offline(failure)
        if not is_done:
            self._is_advancing = True
            self._call_soon(self._advance_more)
        self._runner.wake()
        self._changed(self)

    def _advance_more(self) -> None:
        self._is_advancing = False
        if not self._is_stopped:
            self._advance()

    def _stepped(self) -> None:
        if not self.machine.is_caught_up:
            self._advance()
        self._steps += 1
        if self._steps % _STEPS_BETWEEN_LOOKS == 0:
            self._shorten_log()
        self._changed(self)

    def _shorten_log(self) -> None:
        """When much was written since the last snapshot, write another, and let go of what is before it."""
        grown_bytes = self._state.log.size_bytes - self._bytes_at_snapshot
        if grown_bytes < max(_SNAPSHOT_BYTES, _SNAPSHOT_RATIO * self._snapshot_bytes):
            return
        records = self.machine.snapshot()
        offset = self._runner.append_snapshot(records)
        if offset is None:
            return
        self._snapshot_bytes = sum(len(each.value or b"") for each in records)
        self._bytes_at_snapshot = self._state.log.size_bytes + self._snapshot_bytes
        self._state.when_committed(offset + len(records), lambda error: self._let_go_below(offset, error))

    def _let_go_below(self, offset: int, error: RequestError | None) -> None:
        if error is None:
            self._tasks.start(self._trim(offset))

    async def _trim(self, offset: int) -> None:
        try:
            await self._retention.trim(self._state, offset)
        except RequestError as error:
            log.warning("queue state not trimmed partition=%s: %s", self._state.identity, error)
        self._bytes_at_snapshot = self._state.log.size_bytes
