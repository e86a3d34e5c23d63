"""One partition as a queue: runs its machine, keeps it up to date with the partition's log, and trims the state log.

the topic's last stable offset rises -> the machine scans the new records -> waiting lease requests are woken
a command, or a deadline            -> the machine -> its records        -> waiting lease requests are woken

When the machine meets a large compressed batch, a thread unpacks the batch and the command is submitted again.
"""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import partial
from typing import TypeVar
from uuid import UUID

import msgspec

from conveyor.broker.answers import Answer, answered, pause
from conveyor.broker.hosts.log_follower import LogFollower
from conveyor.broker.hosts.state_trimming import StateTrimming
from conveyor.broker.partitions.own_writes import wait_for_commits
from conveyor.broker.partitions.retention import Retention
from conveyor.broker.tasks import Tasks
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ports import Clock
from conveyor.kernel.state_machine import Token
from conveyor.log.cache_share import CacheShare
from conveyor.log.record_source import SMALL_BYTES, MessageSource, StillPacked, unpack_batch
from conveyor.queues.queue_commands import LeaseMessages, QueueCommand, SeekSubscription
from conveyor.queues.queue_machine import QueueMachine
from conveyor.queues.subscription.policy import StartPosition
from conveyor.records.transaction_marker import TransactionMarker
from conveyor.replication.machine_runner import Respond, TransactionalRunner, lease_expired
from conveyor.replication.partition import Partition
from conveyor.replication.transactions import last_stable_offset

_STEPS_BETWEEN_LOOKS = 256
_RETRY_MS = 1_000

Result = TypeVar("Result")


class QueueServices(msgspec.Struct, frozen=True, kw_only=True):
    """The services that every queue uses.

    changed: called when a queue may have new messages for a subscription. is_sure: see `MachineRunner`.
    """

    clock: Clock
    retention: Retention
    tasks: Tasks
    threads: Executor
    cache: CacheShare
    changed: Callable[["QueuePartition"], None]
    is_sure: Callable[[], bool]


class QueuePartition:
    """See the module's docstring. Commands are accepted at once; the log of messages is followed from `start` on."""

    def __init__(
        self,
        topic_id: UUID,
        messages: Partition,
        state: Partition,
        source: MessageSource,
        machine: QueueMachine,
        services: QueueServices,
    ) -> None:
        self.topic_id = topic_id
        self.machine = machine
        self.source = source
        self.messages = messages
        self.is_stopped = False
        self.state = state
        """The partition of the queue's state."""
        self._services = services
        self._is_started = False
        self._runner: TransactionalRunner[QueueCommand[object]] = TransactionalRunner(
            state, machine, services.clock, self._stepped, holds_lease=services.is_sure
        )
        self._follower = LogFollower(
            messages,
            clock=services.clock,
            call_soon=asyncio.get_running_loop().call_soon,
            limit=last_stable_offset,
            look=self._look,
            unpack=self._unpack_then,
            looked=self._looked,
        )
        self._unpacking = asyncio.Lock()
        self._unpacks_for_deadlines = False
        self._steps = 0
        self._trimming = StateTrimming(
            state,
            snapshot=machine.snapshot,
            append=self._runner.append_snapshot,
            trim=partial(services.retention.trim_later, state),
        )
        source.dispose = services.threads.submit

    def start(self) -> None:
        """Follow the log of messages, and report changes, from now on."""
        self._is_started = True
        self.messages.queue = self
        self.source.join(self._services.cache)
        self._follower.follow(self.messages)

    @property
    def number(self) -> int:
        return self.messages.identity.partition

    @property
    def stable_offset(self) -> int:
        """The end of the messages: those above may still be aborted."""
        return last_stable_offset(self.messages)

    async def ask(self, command: QueueCommand[Answer]) -> Answer:
        """Return the machine's reply, once it is durable. Raises RequestError."""
        return await answered(lambda respond: self.submit(command, respond))

    def submit(
        self, command: QueueCommand[Answer], respond: Callable[[Answer | RequestError], None]
    ) -> Callable[[], None]:
        """Submit a command to the machine. `respond` is called with its reply or a RequestError, now or later.

        Returns a function that withdraws the caller. While the messages are offline, leased ones can still be settled.
        """
        refusal = self._lease_refusal() if isinstance(command, LeaseMessages) else None
        if refusal is not None:
            respond(refusal)
            return lambda: None
        caller = _Caller(respond)
        self._submit(command, caller)
        return lambda: self._forget(caller)

    def _lease_refusal(self) -> RequestError | None:
        """Return why no message can be leased, whatever the subscription."""
        if self.messages.offline.reason is not None:
            return self.messages.offline.error()
        return None if self._services.is_sure() else lease_expired(self.messages)

    def lease_refusal(self) -> RequestError | None:
        """Return why no message can be leased, also if the state log cannot commit."""
        return self._lease_refusal() or self._runner.refusal()

    def has_messages(self, subscription: UUID) -> bool:
        """Return whether a subscription could lease a message now."""
        queue = self.machine.queue(subscription)
        return queue is not None and queue.has_messages

    def offline_error(self) -> RequestError | None:
        """Return the reason why no message can be leased, if the messages or the state are offline."""
        for partition in (self.messages, self.state):
            if partition.offline.reason is not None:
                return partition.offline.error()
        return None

    def retain_from_offset(self) -> int | None:
        """Return the lowest offset that retention must keep: the log start while the state is offline. Messages of open
        transactions are kept: they have not been delivered.
        """
        if self.state.offline.reason is not None:
            return int(self.messages.log.log_start_offset)
        kept, stable_offset = self.machine.retain_from_offset(), self.stable_offset
        if stable_offset == self.messages.term.high_watermark or not self.machine.has_queues:
            return kept
        return stable_offset if kept is None else min(kept, stable_offset)

    def settled_offset(self) -> int:
        """Return the offset below which every subscription has settled every message."""
        return self.machine.settled_offset()

    async def begin(self, subscription: UUID, start: StartPosition) -> int:
        """Begin a subscription at a position. Returns the number of messages that settles. Raises RequestError."""
        await wait_for_commits([self.messages], self._services.clock)
        end = self.stable_offset
        if start.kind == "earliest":
            offset = int(self.messages.log.log_start_offset)
        elif start.kind == "latest":
            offset = end
        else:
            with self.reading():
                offset = self.source.first_offset_after(start.timestamp_ms, end)
        return await self.ask(SeekSubscription(subscription=subscription, offset=offset))

    def append_marker(self, marker: TransactionMarker, transaction_version: int) -> None:
        """End a producer's transaction in the queue's state; see `TransactionalRunner.append_marker`."""
        self._runner.append_marker(marker, transaction_version)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Turn a failed read into a RequestError, and take the partition offline."""
        try:
            yield
        except StorageFailure as failure:
            raise self.messages.failed_read(failure) from failure

    async def when_unpacked(self, read: Callable[[], Result]) -> Result:
        """Return what a read of messages returns, once the batches that it needs are unpacked. The read continues, or
        needs one batch only: earlier ones may have left the cache. Raises RequestError, StorageFailure.
        """
        while True:
            try:
                return read()
            except StillPacked as packed:
                failure = await self._unpack(packed)
            if failure is not None:
                raise failure

    def use(self, messages: Partition, state: Partition) -> bool:
        """Continue with reopened messages, if the state was not reopened as well; leases stay valid then.

        Returns False if the machine's state may be out of date.
        """
        if self.state is not state:
            return False
        if self.messages is messages:
            return True
        term = messages.leader_term
        if term is None:
            return False
        recovered = term.recovered_end_offset
        if recovered is not None and self.machine.reaches_beyond(recovered):
            return False
        term.queue_recovered()
        self.messages = messages
        self.source.use(messages.log)
        messages.queue = self
        self._follower.follow(messages)
        return True

    def stop(self) -> None:
        """Answer every waiting request and accept no more commands."""
        self.is_stopped = True
        self._follower.stop()
        if self.messages.queue is self:
            self.messages.queue = None
        self._runner.stop()
        self.machine.close()

    def _submit(self, command: QueueCommand[object], caller: "_Caller") -> None:
        try:
            caller.token = self._runner.submit(command, caller.respond)
        except StillPacked as packed:
            self._services.tasks.start(self._submit_unpacked(packed, command, caller))

    async def _submit_unpacked(self, packed: StillPacked, command: QueueCommand[object], caller: "_Caller") -> None:
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
        """Unpack a batch on a thread, one at a time. Returns the error if that fails."""
        async with self._unpacking:
            if not self.source.has_content(packed.header):
                loop = asyncio.get_running_loop()
                try:
                    batch = await loop.run_in_executor(
                        self._services.threads, unpack_batch, packed.header, packed.place
                    )
                except StorageFailure as failure:
                    return self.messages.failed_read(failure)
                self.source.keep(batch)
        return _closed() if self.is_stopped else None

    def _unpack_then(self, packed: StillPacked, unpacked: Callable[[RequestError | None], None]) -> None:
        async def unpack() -> None:
            unpacked(await self._unpack(packed))

        self._services.tasks.start(unpack())

    def _look(self, limit_offset: int) -> bool:
        return self.machine.advance(limit_offset, self._services.clock.now_ms(), SMALL_BYTES)

    def _looked(self) -> None:
        self._runner.wake()
        self._services.changed(self)

    def _unpack_for_deadlines(self) -> None:
        packed = self.machine.packed
        if packed is not None and not self._unpacks_for_deadlines:
            self._unpacks_for_deadlines = True
            self._services.tasks.start(self._expire_unpacked(packed))

    async def _expire_unpacked(self, packed: StillPacked) -> None:
        """Let the machine decide on passed deadlines that need a batch, or whether they need it still."""
        if await self._unpack(packed) is not None and not self.is_stopped:
            await pause(self._services.clock, _RETRY_MS)
        self._unpacks_for_deadlines = False
        if not self.is_stopped:
            self.machine.unpacked()
            self._runner.expire()

    def _stepped(self) -> None:
        self._unpack_for_deadlines()
        if not self._is_started:
            return
        if not self.machine.is_caught_up:
            self._follower.advance()
        self._steps += 1
        if self._steps % _STEPS_BETWEEN_LOOKS == 0:
            self._trimming.shorten()
        self._services.changed(self)


class _Caller:
    """The caller that waits for the reply to a command."""

    __slots__ = ("is_gone", "respond", "token")

    def __init__(self, respond: Respond) -> None:
        self.respond = respond
        self.token: Token | None = None
        self.is_gone = False


def _closed() -> RequestError:
    return RequestError(ErrorKind.COORDINATOR_NOT_AVAILABLE, "the partition is closed: ask again")
