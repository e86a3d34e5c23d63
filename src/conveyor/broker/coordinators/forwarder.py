"""The forwarder of one partition of a delayed topic: appends its records to the target when they are due.

    the delayed topic's last stable offset rises -> the machine learns of the new records and their due times
    the machine's next intent is committed       -> its records are appended to the target
    they are committed in the target             -> the next intent

Records below the last stable offset are committed, or aborted and never forwarded. The target has other writers: the
forwarder is a producer like any other, with an id of its own.

Nothing is forwarded while the disk is low on space. If the target refuses records, or a partition goes offline, or too
many files are open, the forwarder stops, even in the middle of an intent. The next forwarder derives from the logs how
far the intent was carried out, and continues. It never passes over a record.
"""

import logging
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from conveyor.broker.coordinators.hosted_machine import HostedMachine
from conveyor.broker.coordinators.log_follower import LogFollower
from conveyor.broker.coordinators.machine_services import MachineServices
from conveyor.broker.coordinators.state_trimming import SNAPSHOT_BYTES, StateTrimming
from conveyor.broker.partitions.disk_room import DiskRoom
from conveyor.broker.partitions.own_writes import wait_for_commits
from conveyor.delay.delayed_scan import DelayedScan, scan_packed
from conveyor.delay.forwarding import (
    RECORDS_AT_ONCE,
    CancelForwarding,
    Forwarding,
    NextIntent,
)
from conveyor.delay.forwarding_batches import RECORDS_OF_A_BATCH, ForwardedBatch, ForwardingBatches
from conveyor.delay.forwarding_records import PRODUCER_EPOCH, SEQUENCES, Intent
from conveyor.delay.forwarding_scan import DueRun
from conveyor.delay.target_scan import carried_out
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ids import NO_SEQUENCE, ProducerEpoch, ProducerId, ProducerIdentity
from conveyor.kernel.signal import Signal
from conveyor.log.record_source import SMALL_BYTES, MessageSource, SourceBatch, StillPacked, unpack_batch
from conveyor.records.batch import BatchHeader
from conveyor.records.checked_batch import own_batch
from conveyor.replication.machine_runner import Respond, Withdraw, replay
from conveyor.replication.partition import Partition
from conveyor.replication.stated_epochs import stated_end
from conveyor.replication.transactions import last_stable_offset
from conveyor.replication.trimming import CommittedLimits, RetentionLimits

log = logging.getLogger(__name__)

_SCANNED_BYTES_AT_LOAD = 1 << 20
_SCANNED_BYTES = 128 << 10
_FORWARDED_BYTES = 256 << 10
_COST_OF_A_RECORD = 3
_BYTES_OF_AN_ITEM = 2048
"""To append so many bytes, or a third of a record, takes as long as to handle a deadline."""


class DelayedPartitions(NamedTuple):
    """The partitions of a forwarder, with the same number: of the delayed topic, its target and its state."""

    delayed: Partition
    target: Partition
    state: Partition


class _TargetView:
    """The target as the machine sees it."""

    def __init__(self, target: Partition, room: DiskRoom) -> None:
        self._target = target
        self._room = room

    @property
    def log_end_offset(self) -> int:
        return int(self._target.log.log_end_offset)

    def next_sequence(self, producer_id: int) -> int | None:
        last = self._target.log.producers.remembered(producer_id).last_batch
        return None if last is None or last.last_sequence == NO_SEQUENCE else (last.last_sequence + 1) % SEQUENCES

    def may_append(self) -> bool:
        return not self._room.is_low and self._target.offline.reason is None


class LoadedForwarder:
    """The state of a forwarder as read from the logs, before its machine runs: call the methods in their order. They
    block, and raise StorageFailure for the partition that they read.

    The state and the target are committed up to their ends. stable_offset: the delayed topic's last stable offset.
    records_at_once: the most records of one intent.
    """

    def __init__(
        self,
        partitions: DelayedPartitions,
        stable_offset: int,
        room: DiskRoom,
        *,
        records_at_once: int = RECORDS_AT_ONCE,
    ) -> None:
        self.partitions = partitions
        delayed = partitions.delayed
        self.source = MessageSource(*delayed.identity, delayed.log)
        self.machine = Forwarding(_TargetView(partitions.target, room), records_at_once)
        self.scan = DelayedScan(self.source, self.machine, stable_offset)
        self._stable_offset = stable_offset
        self._cut_offset: int | None = None
        self.is_to_restate = False
        """Whether the state that is read differs from the stored one; see `HostedMachine.restate`."""

    def read_state(self) -> None:
        """Also forget what the state says of records that the delayed topic's log does not have any more."""
        delayed, _, state = self.partitions
        known_end = stated_end(replay(state.log, self.machine), delayed.log)
        if self.machine.reaches_beyond(known_end):
            log.warning(
                "forwarder cut back partition=%s offset=%d: the log has lost records", delayed.identity, known_end
            )
            self._cut_offset, self.is_to_restate = known_end, True

    @property
    def needs_producer_id(self) -> bool:
        """True if the forwarder needs a new producer id: it has none, or another producer has used it in the target."""
        producers, producer_id = self.partitions.target.log.producers, ProducerId(self.machine.producer_id)
        try:
            producers.check_epoch(ProducerIdentity(producer_id, ProducerEpoch(PRODUCER_EPOCH)))
        except RequestError:
            return True
        remembered = producers.remembered(producer_id)
        return producer_id < 0 or (remembered.epoch >= 0 and remembered.last_batch is None)

    def read_target(self, producer_id: int) -> None:
        """Find how far the last intent was carried out. producer_id: for the next intents."""
        last = self.machine.last_intent
        count = 0 if last is None else carried_out(last, self.partitions.target.log)
        start_offset = int(self.partitions.delayed.log.log_start_offset)
        self.machine.begin(producer_id, count, start_offset, self._cut_offset)

    def read_delayed(self) -> None:
        """Read the due times of the records that are not forwarded."""
        while not self.scan.advance(self._stable_offset, _SCANNED_BYTES_AT_LOAD, 0):
            pass


class Forwarder(HostedMachine):
    """See the module's docstring. It forwards from `start` on, on the event loop.

    bytes_at_once: the bytes appended to the target before other machines have their turn, rounded up to whole batches.
    snapshot_bytes: see `StateTrimming`.
    """

    def __init__(
        self,
        loaded: LoadedForwarder,
        services: MachineServices,
        *,
        bytes_at_once: int = _FORWARDED_BYTES,
        snapshot_bytes: int = SNAPSHOT_BYTES,
    ) -> None:
        # Records of producers with acks=1 are forwarded even if the target has fewer replicas than it demands.
        super().__init__(
            loaded.partitions.state,
            loaded.machine,
            services.common.clock,
            needs_replicas=False,
            described=loaded.partitions.delayed.log,
        )
        self.partitions, self.is_to_restate = loaded.partitions, loaded.is_to_restate
        self.machine = loaded.machine
        self.failed: Signal[RequestError] = Signal()
        """Emitted if the forwarder ends although this broker leads and the delayed topic is online: load another."""
        self._delayed, self._target, self._state = loaded.partitions
        self._source = loaded.source
        self._scan = loaded.scan
        self._cache = services.cache
        self._retention = services.retention
        self._slices = services.common.slices
        self._bytes_at_once = bytes_at_once
        self._intended: ForwardingBatches | None = None
        self._batches: Iterator[ForwardedBatch | StillPacked] = iter(())
        """The intent in progress, and those of its batches that are left."""
        self._carried_out = 0
        """The number of offsets of the intent in progress that are appended to the target."""
        self._forward_count = 0
        """The work of forwarding so far, as a number of deadlines."""
        self._trimming = StateTrimming(self, self.machine, services.retention, snapshot_bytes)
        self._limits = CommittedLimits(self._state, int(self._delayed.log.log_start_offset))
        self._follower = LogFollower(self._delayed, self, self._clock, self._slices)

    def start(self) -> None:
        """Forward from now on."""
        self._source.join(self._cache)
        self._retention.keep_for(self, self._delayed)
        self._follower.follow(self._delayed)
        self._slices.soon(self._ask_next, self)

    def resume(self) -> None:
        """Forward due records: the disk has space again."""
        self._follower.expire()

    def stop(self) -> None:
        """Stop forwarding. The next forwarder completes the intent that was begun."""
        self._batches = iter(())
        self._follower.stop()
        self._slices.forget(self._ask_next)
        self._slices.forget(self._forward)
        super().stop()
        self._source.leave()
        self._retention.release(self, self._delayed)

    def cancel(self, offset: int, answer: Respond[None]) -> Withdraw:
        """Cancel a record; `answer` is called once that is durable. Returns a function that withdraws the caller.

        Raises RequestError, or answers with it: UNKNOWN_MESSAGE, MESSAGE_NOT_DELAYED, COORDINATOR_LOADING if the record
        is not known to be committed yet, and the errors of a state that cannot commit. The forwarder itself waits
        without limit.
        """
        self._state.term.check_replicas()
        if not self._delayed.log.log_start_offset <= offset < self._delayed.log.log_end_offset:
            raise RequestError(ErrorKind.UNKNOWN_MESSAGE, f"{self._delayed.identity} has no message at offset {offset}")
        withdraw = self.submit(CancelForwarding(offset=offset), answer)
        self._state.term.when_acknowledged(self._state.log.log_end_offset, partial(_answer_failure, answer))
        return withdraw

    async def committed(self) -> None:
        """Wait until all records that the delayed topic has acknowledged are committed. Raises RequestError."""
        await wait_for_commits([self._delayed], self._clock)

    @property
    def stable_offset(self) -> int:
        """The end of the records that the machine may know: those above may still be aborted."""
        return last_stable_offset(self._delayed)

    def check_running(self) -> None:
        """Raise RequestError (COORDINATOR_NOT_AVAILABLE) if another forwarder may have taken over."""
        if not self._is_running():
            raise RequestError(ErrorKind.COORDINATOR_NOT_AVAILABLE, f"{self._delayed.identity} is closed: ask again")

    def retention_limits(self) -> RetentionLimits:
        """See `RetainingReader`. What is forwarded or cancelled is settled."""
        kept = self.machine.retain_from_offset()
        return self._limits.look(RetentionLimits(kept, kept))

    @property
    def work_count(self) -> int:
        """See `CountsWork`."""
        return self.machine.work_count + self._scan.work_count + self._forward_count

    def scan(self, limit_offset: int) -> bool:
        """See `LogReader`."""
        return self._scan.advance(limit_offset, _SCANNED_BYTES, self._clock.now_ms(), SMALL_BYTES)

    def scanned(self) -> None:
        """See `LogReader`."""
        self.expire()

    def unpack(self, packed: StillPacked, unpacked: Respond[None]) -> None:
        """See `LogReader`."""
        self._slices.off_loop(partial(scan_packed, packed), partial(self._scanned, packed.header, unpacked))
        self.expire()

    def _scanned(self, header: BatchHeader, unpacked: Respond[None], runs: list[DueRun] | StorageFailure) -> None:
        if isinstance(runs, StorageFailure):
            return unpacked(self._delayed.failed_read(runs))
        if self._is_running():
            self._scan.add(header, runs)
            unpacked(None)

    def _deadline_passed(self) -> None:
        self._follower.expire()

    def _ask_next(self) -> None:
        """Ask for the next intent: the last one is committed in the target as far as it is carried out."""
        if not self._is_running():
            return
        start_offset, carried_out = int(self._delayed.log.log_start_offset), None
        if self._intended is not None:
            start_offset, carried_out = max(start_offset, self._intended.deleted_below), self._carried_out
        command = NextIntent(carried_out=carried_out, log_start_offset=start_offset)
        self.submit(command, self._forward_intent)

    def _forward_intent(self, intent: Intent | RequestError) -> None:
        """Forward the records of an intent that is committed. An error ends the forwarder."""
        if isinstance(intent, RequestError):
            return self._end(intent)
        if not self._is_running():
            return
        self._trimming.shorten()
        self._carried_out = 0
        stable_offset, settings = last_stable_offset(self._delayed), self._target.log.topic
        self._intended = ForwardingBatches(intent, self._source, stable_offset, settings)
        self._batches = iter(self._intended)
        self._slices.soon(self._forward, self)

    def _forward(self) -> None:
        """Append more of the intent's records to the target; after the last, wait until they are committed."""
        if not self._is_running():
            return
        size = count = 0
        try:
            for batch in self._batches:
                if isinstance(batch, StillPacked):
                    return self._slices.off_loop(partial(unpack_batch, batch.header, batch.place), self._unpacked)
                if self._target.append(own_batch(batch.content), self._clock.now_ms()).duplicate:
                    return self._end(_taken_for_repeated(self._target, self.machine.producer_id))
                self._carried_out += batch.offsets_count
                self._forward_count += _COST_OF_A_RECORD * batch.offsets_count + len(batch.content) // _BYTES_OF_AN_ITEM
                size, count = size + len(batch.content), count + batch.offsets_count
                if size >= self._bytes_at_once or count >= RECORDS_OF_A_BATCH:
                    return self._slices.soon(self._forward, self)
        except StorageFailure as failure:
            return self._end(self._delayed.failed_read(failure))
        except RequestError as error:
            return self._end(error)
        self._target.term.when_committed(self._target.log.log_end_offset, self._committed)

    def _unpacked(self, batch: SourceBatch | StorageFailure) -> None:
        if isinstance(batch, StorageFailure):
            return self._end(self._delayed.failed_read(batch))
        if self._is_running():
            self._source.keep(batch)
            self._slices.soon(self._forward, self)

    def _committed(self, error: RequestError | None) -> None:
        if error is not None:
            self._end(error)
        elif self._is_running():
            self._follower.advance()
            self._slices.soon(self._ask_next, self)

    def _end(self, error: RequestError) -> None:
        """End the forwarder: one of the partitions cannot be read or written now."""
        if self._is_running() and self._delayed.leader_term is not None:
            self.failed.emit(error)

    def _is_running(self) -> bool:
        return not self.is_stopped and self._delayed.offline.reason is None


def _taken_for_repeated(target: Partition, producer_id: int) -> RequestError:
    reason = f"{target.identity} takes a forwarded batch for a repeated one of producer {producer_id}"
    return RequestError(ErrorKind.OUT_OF_ORDER_SEQUENCE, reason)


def _answer_failure(answer: Respond[None], error: RequestError | None) -> None:
    if error is not None:
        answer(error)
