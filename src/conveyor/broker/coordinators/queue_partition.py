"""One partition as a queue: runs its machine, keeps it up to date with the partition's log, and trims the state log.

the topic's last stable offset rises -> the machine scans the new records -> waiting lease requests are woken
a command, or a deadline            -> the machine -> its records        -> waiting lease requests are woken

When the machine meets a large compressed batch, a thread unpacks the batch and the command is submitted again. By then
the cache may have dropped earlier batches. So a command that needs several must keep what it has learned from each, or
reply after a part of the work.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar
from uuid import UUID

from conveyor.broker.answers import Answer, ignored, pause
from conveyor.broker.coordinators.hosted_machine import HostedMachine
from conveyor.broker.coordinators.log_follower import LogFollower
from conveyor.broker.coordinators.machine_services import MachineServices
from conveyor.broker.coordinators.state_trimming import StateTrimming
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.signal import Signal
from conveyor.log.leader_epochs import shared_end
from conveyor.log.record_source import SMALL_BYTES, MessageSource, StillPacked, unpack_batch
from conveyor.queues.queue_commands import LeaseMessages, QueueCommand
from conveyor.queues.queue_machine import QueueMachine
from conveyor.replication.machine_runner import Respond, Withdraw, coordinator_uncertain
from conveyor.replication.partition import Partition
from conveyor.replication.transactions import last_stable_offset
from conveyor.replication.trimming import CommittedLimits, RetentionLimits

_STEPS_BETWEEN_LOOKS = 256
_RETRY_MS = 1_000

Result = TypeVar("Result")


class QueuePartition(HostedMachine):
    """See the module's docstring. Commands are accepted at once; the log of messages is followed from `start` on.

    changed: emitted when the queue may have new messages for a subscription.
    """

    def __init__(
        self,
        messages: Partition,
        state: Partition,
        source: MessageSource,
        machine: QueueMachine,
        services: MachineServices,
        changed: "Signal[QueuePartition]",
    ) -> None:
        self._session = services.common.metadata.session
        clock, holds_lease = services.common.clock, self._session.holds_lease
        super().__init__(state, machine, clock, described=messages.log, holds_lease=holds_lease)
        self.machine = machine
        self.source = source
        self.messages = messages
        self.cut_offset: int | None = None
        """The end of the messages that the state is about, if that is to be stored; see `stated_epochs`."""
        self._services = services
        self._changed = changed
        self._is_started = False
        self._follower = LogFollower(messages, self, self._clock, services.common.slices)
        self._unpacking = asyncio.Lock()
        self._unpacks_for_deadlines = False
        self._steps = 0
        self._trimming = StateTrimming(self, machine, services.retention)
        self._limits = CommittedLimits(state, int(messages.log.log_start_offset))

    def start(self) -> None:
        """Follow the log of messages, and report changes, from now on."""
        self._is_started = True
        self._services.retention.keep_for(self, self.messages)
        self.source.join(self._services.cache)
        self._follower.follow(self.messages)

    @property
    def topic_id(self) -> UUID:
        return self.messages.log.place.topic_id

    @property
    def number(self) -> int:
        return self.messages.identity.partition

    @property
    def stable_offset(self) -> int:
        """The end of the messages: those above may still be aborted."""
        return last_stable_offset(self.messages)

    def submit(self, command: QueueCommand[Answer], respond: Respond[Answer]) -> Withdraw:
        """See `MachineRunner.submit`. While the messages are offline, leased ones can still be settled. If messages
        cannot be read, they go offline.
        """
        refusal = self.delivery_refusal() if isinstance(command, LeaseMessages) else None
        if refusal is not None:
            respond(refusal)
            return partial(ignored, None)
        try:
            return super().submit(command, respond)
        except StillPacked as packed:
            return self._services.common.tasks.start(self._submit_unpacked(packed, command, respond)).cancel
        except StorageFailure as failure:
            respond(self.messages.failed_read(failure))
            return partial(ignored, None)

    def delivery_refusal(self) -> RequestError | None:
        """Return why no message can be delivered: the messages are offline, or another broker may lead already."""
        if self.messages.offline.reason is not None:
            return self.messages.offline.error()
        return None if self._session.holds_lease() else coordinator_uncertain(self.messages)

    def check_delivering(self) -> None:
        """Raise RequestError if no message can be delivered: what this broker knows of them may be out of date."""
        if (refusal := self.delivery_refusal()) is not None:
            raise refusal

    def lease_refusal(self) -> RequestError | None:
        """Return why no message can be leased, also if the state log cannot commit."""
        return self.delivery_refusal() or self.refusal()

    def offline_error(self) -> RequestError | None:
        """Return the reason why no message can be leased, if the messages or the state are offline."""
        for partition in (self.messages, self.partition):
            if partition.offline.reason is not None:
                return partition.offline.error()
        return None

    def retention_limits(self) -> RetentionLimits:
        """See `RetainingReader`. All is kept while the state is offline. Messages of open transactions are kept: they
        have not been delivered.
        """
        if self.partition.offline.reason is not None:
            return RetentionLimits(int(self.messages.log.log_start_offset), 0)
        kept, stable_offset = self.machine.retain_from_offset(), self.stable_offset
        if stable_offset != self.messages.term.high_watermark and self.machine.has_queues:
            kept = stable_offset if kept is None else min(kept, stable_offset)
        return self._limits.look(RetentionLimits(kept, self.machine.settled_offset()))

    async def read(self, work: Callable[[], Result]) -> Result:
        """Return what a read of messages returns, once the batches that it needs are unpacked. The read continues, or
        needs one batch only: earlier ones may have left the cache. Raises RequestError. A failed read takes the
        partition offline.
        """
        while not self.is_stopped:
            try:
                return work()
            except StillPacked as packed:
                failure = await self._unpack(packed)
            except StorageFailure as error:
                raise self.messages.failed_read(error) from error
            if failure is not None:
                raise failure
        raise _closed()

    def use(self, messages: Partition, state: Partition) -> bool:
        """Continue with reopened messages, if the state was not reopened as well; leases stay valid then.

        Returns False if the machine's state may be out of date.
        """
        if self.partition is not state:
            return False
        if self.messages is messages:
            return True
        term = messages.leader_term
        if term is None or messages.offline.reason is not None:
            return False
        before, after = self.messages.log, messages.log
        known_end = shared_end(
            before.leader_epochs.entries, before.log_end_offset, after.leader_epochs, after.log_end_offset
        )
        if known_end < self.machine.agenda.stable_offset:  # Messages that may be leased are lost.
            return False
        self._services.retention.release(self, self.messages)
        self._services.retention.keep_for(self, messages)
        self.messages, self._described = messages, messages.log
        self.source.use(messages.log)
        self._follower.follow(messages)
        return True

    def stop(self) -> None:
        """Answer every waiting request and accept no more commands."""
        self._follower.stop()
        self._services.retention.release(self, self.messages)
        super().stop()
        self.machine.close()

    @property
    def work_count(self) -> int:
        """See `CountsWork`."""
        return self.machine.work_count

    def scan(self, limit_offset: int) -> bool:
        """See `LogReader`."""
        return self.machine.advance(limit_offset, self._clock.now_ms(), SMALL_BYTES)

    def scanned(self) -> None:
        """See `LogReader`."""
        self.wake()
        self._changed.emit(self)

    def unpack(self, packed: StillPacked, unpacked: Respond[None]) -> None:
        """See `LogReader`."""

        async def unpack() -> None:
            unpacked(await self._unpack(packed))

        self._services.common.tasks.start(unpack())

    async def _submit_unpacked(
        self, packed: StillPacked, command: QueueCommand[Answer], respond: Respond[Answer]
    ) -> None:
        try:
            failure = await self._unpack(packed)
        except asyncio.CancelledError:
            respond(_closed())
            raise
        if failure is not None:
            respond(failure)
        else:
            self.submit(command, respond)

    async def _unpack(self, packed: StillPacked) -> RequestError | None:
        """Unpack a batch on a thread, one at a time. Returns the error if that fails."""
        messages = self.messages
        async with self._unpacking:
            if not self.source.has_content(packed.header):
                loop, threads = asyncio.get_running_loop(), self._services.common.threads
                try:
                    batch = await loop.run_in_executor(threads, unpack_batch, packed.header, packed.place)
                except StorageFailure as failure:
                    return messages.failed_read(failure)
                self.source.keep(batch)
        return _closed() if self.is_stopped else None

    def _unpack_for_deadlines(self) -> None:
        packed = self.machine.agenda.packed
        if packed is not None and not self._unpacks_for_deadlines:
            self._unpacks_for_deadlines = True
            self._services.common.tasks.start(self._expire_unpacked(packed))

    async def _expire_unpacked(self, packed: StillPacked) -> None:
        """Let the machine decide on passed deadlines that need a batch, or whether they need it still."""
        if await self._unpack(packed) is not None and not self.is_stopped:
            await pause(self._clock, _RETRY_MS)
        self._unpacks_for_deadlines = False
        if not self.is_stopped:
            self.machine.agenda.unpacked()
            self._follower.expire()

    def _deadline_passed(self) -> None:
        self._follower.expire()

    def _stepped(self) -> None:
        self._unpack_for_deadlines()
        if not self._is_started:
            return
        if self.machine.agenda.behind():
            self._follower.advance()
        self._steps += 1
        if self._steps % _STEPS_BETWEEN_LOOKS == 0:
            self._trimming.shorten()
        self._changed.emit(self)


def _closed() -> RequestError:
    return RequestError(ErrorKind.COORDINATOR_NOT_AVAILABLE, "the partition is closed: ask again")
