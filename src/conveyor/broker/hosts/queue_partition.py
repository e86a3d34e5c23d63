"""One partition as a queue: its machine, kept up with the partition's log, and its own log kept short.

the topic's high watermark rises -> `advance` -> whoever waits for messages is told
a command, or time              -> the machine -> its records -> whoever waits is told

Where the machine comes to a batch that takes long to unpack, a thread unpacks it, and the machine is asked again.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from uuid import UUID

from conveyor.broker.partitions.retention import Retention
from conveyor.broker.tasks import Tasks
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ports import Clock
from conveyor.kernel.state_machine import Token
from conveyor.log.record_source import SMALL_BYTES, MessageSource, StillPacked, unpack_batch
from conveyor.queues.queue_commands import LeaseMessages, QueueCommand
from conveyor.queues.queue_machine import QueueMachine
from conveyor.replication.machine_runner import MachineRunner
from conveyor.replication.partition import Partition

log = logging.getLogger(__name__)

_SNAPSHOT_BYTES = 4 << 20
_SNAPSHOT_RATIO = 4
_STEPS_BETWEEN_LOOKS = 256
_RETRY_MS = 1_000


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
        threads: Executor,
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
        self._threads = threads
        self._call_soon = call_soon
        self._changed = changed
        self._runner = MachineRunner(state, machine, clock, self._stepped)
        self._is_advancing = False
        self.is_stopped = False
        self._unpacking = asyncio.Lock()
        self._cancel_retry: Callable[[], None] | None = None
        self._steps = 0
        self._snapshot_bytes = 0
        self._bytes_at_snapshot = 0
        messages.queue = self
        source.dispose = threads.submit
        self._rose()

    @property
    def number(self) -> int:
        return self.messages.identity.partition

    def submit(self, command: QueueCommand, respond: Callable[[object], None]) -> Callable[[], None]:
        """Hand a command to the machine; `respond` gets its reply, or a RequestError, now or later.

        Returns what forgets the caller. Without its messages a queue still settles what was leased.
        """
        if self.messages.offline_reason is not None and isinstance(command, LeaseMessages):
            respond(self.messages.offline_error())
            return lambda: None
        caller = _Caller(respond)
        self._submit(command, caller)
        return lambda: self._forget(caller)

    def has_messages(self, subscription: UUID) -> bool:
        """Whether there is something that a subscription could be given now."""
        queue = self.machine.queue(subscription)
        return queue is not None and queue.has_messages

    def offline_error(self) -> RequestError | None:
        """Why no message can be leased, if its messages or its state are offline."""
        for partition in (self.messages, self._state):
            if partition.offline_reason is not None:
                return partition.offline_error()
        return None

    def held_from(self) -> int | None:
        """The lowest offset that the topic's retention must leave: all, while what was decided may not be stored."""
        if self._state.offline_reason is not None:
            return int(self.messages.log.log_start_offset)
        return self.machine.held_from()

    def settled_offset(self) -> int:
        """Everything below it is settled by every subscription."""
        return self.machine.settled_offset()

    def is_of(self, messages: Partition, state: Partition) -> bool:
        """Whether it was loaded from these, and not from partitions that they have replaced."""
        return self.messages is messages and self._state is state

    def use(self, messages: Partition, state: Partition) -> bool:
        """Go on with a partition that was opened again, if that is all that has changed; leases hold then.

        False: what is known here may not be true any more.
        """
        opened = messages.opened_offset
        if self._state is not state or (opened is not None and self.machine.reaches_beyond(opened)):
            return False
        messages.opened_offset = None
        self.messages = messages
        self.source.use(messages.log)
        messages.queue = self
        self._rose()
        return True

    def stop(self) -> None:
        self.is_stopped = True
        self.messages.unwatch(self._rose)
        if self.messages.queue is self:
            self.messages.queue = None
        if self._cancel_retry is not None:
            self._cancel_retry()
        self._runner.stop()
        self.machine.close()

    def _submit(self, command: QueueCommand, caller: "_Caller") -> None:
        try:
            caller.token = self._runner.submit(command, caller.respond)
        except StillPacked as packed:
            self._tasks.start(self._submit_unpacked(packed, command, caller))

    async def _submit_unpacked(self, packed: StillPacked, command: QueueCommand, caller: "_Caller") -> None:
        try:
            failure = await self._unpack(packed)
        except asyncio.CancelledError:
            caller.respond(_closed())
            raise
        if failure is not None:
            caller.respond(failure)
        elif not caller.is_gone:
            self._submit(command, caller)

    def _forget(self, caller: "_Caller") -> None:
        caller.is_gone = True
        if caller.token is not None:
            self._runner.forget(caller.token)

    async def _unpack(self, packed: StillPacked) -> RequestError | None:
        """Have a batch unpacked, one at a time. Returns why its messages cannot be read."""
        async with self._unpacking:
            if not self.source.has_content(packed.header):
                try:
                    loop = asyncio.get_running_loop()
                    batch = await loop.run_in_executor(self._threads, unpack_batch, packed.header, packed.place)
                except StorageFailure as failure:
                    return self.messages.failed_read(failure)
                self.source.keep(batch)
        if self.is_stopped:
            return _closed()
        return None

    async def _advance_unpacked(self, packed: StillPacked) -> None:
        failure = await self._unpack(packed)
        self._is_advancing = False
        if failure is None:
            self._advance()
        else:
            self._advance_later()

    def _watch(self) -> None:
        if self.messages.offline_reason is None and not self.is_stopped:
            self.messages.watch(self._rose)

    def _rose(self) -> None:
        """The log has grown, or may have, while the machine was loaded."""
        self._watch()
        self._advance()

    def _advance(self) -> None:
        """Look through what is new in the log, a part in each turn; what cannot be read now is read later."""
        is_waiting = self._is_advancing or self._cancel_retry is not None
        if self.messages.offline_reason is not None or is_waiting or self.is_stopped:
            return
        try:
            is_done = self.machine.advance(self.messages.high_watermark, self._clock.now_ms(), SMALL_BYTES)
        except StillPacked as packed:
            self._is_advancing = True
            return self._tasks.start(self._advance_unpacked(packed))
        except StorageFailure as failure:
            self.messages.failed_read(failure)
            return self._advance_later()
        if not is_done:
            self._is_advancing = True
            self._call_soon(self._advance_more)
        self._runner.wake()
        self._changed(self)

    def _advance_later(self) -> None:
        if self.messages.offline_reason is None and self._cancel_retry is None and not self.is_stopped:
            self._cancel_retry = self._clock.call_later(_RETRY_MS, self._retry)

    def _retry(self) -> None:
        self._cancel_retry = None
        self._advance()

    def _advance_more(self) -> None:
        self._is_advancing = False
        if not self.is_stopped:
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


class _Caller:
    """Who waits for the reply to a command."""

    __slots__ = ("is_gone", "respond", "token")

    def __init__(self, respond: Callable[[object], None]) -> None:
        self.respond = respond
        self.token: Token | None = None
        self.is_gone = False


def _closed() -> RequestError:
    return RequestError(ErrorKind.COORDINATOR_NOT_AVAILABLE, "the partition is closed: ask again")
