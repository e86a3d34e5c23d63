"""The inbox of one partition, and its forwarder: the only writer of the partition while the inbox exists.

    the inbox's last stable offset rises -> the machine learns of the new records and their due times
    the machine's next intent is on the disk -> its records are appended to the topic -> the next intent

Transactions end in the inbox: the machine never learns of aborted records, and of others once they are committed. One
that was open in the topic when the inbox was created needs a marker there, too. The forwarder appends it between two
intents, because the end of the topic says which records of an intent are in the topic.

Nothing is forwarded while the disk is low on space. When either partition goes offline, or too many files are open, the
forwarder stops, even in the middle of an intent. The next forwarder derives from the two logs which records have been
forwarded. It stops, too, when the partition refuses records because this broker cannot be sure for a while that it
still leads; another forwarder continues.
"""

from collections.abc import Callable, Iterator
from functools import partial

from conveyor.broker.hosts.log_follower import CallSoon, LogFollower
from conveyor.broker.partitions.disk_room import DiskRoom
from conveyor.delay.forwarding import (
    RECORDS_AT_ONCE,
    CancelForwarding,
    Forwarding,
    ForwardingCommand,
    NextIntent,
)
from conveyor.delay.forwarding_batches import batches_of
from conveyor.delay.forwarding_records import Intent
from conveyor.delay.forwarding_scan import DueRun
from conveyor.delay.inbox_scan import InboxScan, scan_packed
from conveyor.kernel.errors import ErrorKind, OutOfFiles, RequestError, StorageFailure
from conveyor.kernel.ports import Clock
from conveyor.log.batch_reading import batches_in
from conveyor.log.cache_share import CacheShare
from conveyor.log.record_source import SMALL_BYTES, MessageSource, SourceBatch, StillPacked
from conveyor.records.batch import CONTROL, BatchHeader, is_transactional
from conveyor.records.checked_batch import own_batch
from conveyor.records.message import Message
from conveyor.records.message_attributes import read_attributes
from conveyor.replication.machine_runner import MachineRunner, replay
from conveyor.replication.partition import Partition
from conveyor.replication.roles import Leader
from conveyor.replication.transactions import last_stable_offset

Look = Callable[[], list[DueRun]]
Answer = Callable[[RequestError | None], None]
Looked = Callable[[list[DueRun] | StorageFailure], None]
OffLoop = Callable[[Look, Looked], None]
"""Runs its first argument on a thread, and calls the second on the event loop with the result or the failure."""

_READ_BYTES = 1 << 20
_SCANNED_BYTES = 128 << 10
_FORWARDED_BYTES = 256 << 10


class LoadedInbox:
    """The state of an inbox as read from its log, before its machine runs. Created by `load_inbox`."""

    def __init__(
        self,
        topic: Partition,
        inbox: Partition,
        stable_offset: int,
        may_forward: Callable[[], bool],
        records_at_once: int,
    ) -> None:
        self.topic = topic
        self.inbox = inbox
        self.source = MessageSource(inbox.identity.topic, inbox.identity.partition, inbox.log)
        self.machine = Forwarding(lambda: int(topic.log.log_end_offset), may_forward, records_at_once)
        self.loaded_offset = stable_offset
        self.scan = InboxScan(self.source, self.machine, self.loaded_offset, lambda: topic.log.topic.delay_enable)


def load_inbox(
    topic: Partition, inbox: Partition, stable_offset: int, room: DiskRoom, *, records_at_once: int = RECORDS_AT_ONCE
) -> LoadedInbox:
    """Read an inbox: first its notes, then the records not yet forwarded. Blocks. Raises StorageFailure.

    stable_offset: the inbox's last stable offset. records_at_once: the most records of one intent.
    """

    def may_forward() -> bool:
        return not room.is_low and topic.offline_reason is None

    loaded = LoadedInbox(topic, inbox, stable_offset, may_forward, records_at_once)
    replay(inbox.log, loaded.machine, CONTROL)
    loaded.machine.begin(int(inbox.log.log_start_offset))
    while not loaded.scan.advance(loaded.loaded_offset, _READ_BYTES, 0):
        pass
    return loaded


class InboxPartition:
    """See the module's docstring. It forwards from the start, on the event loop.

    bytes_per_tick: the bytes appended to the topic in one tick, rounded up to whole batches. failed: called if the
    forwarder stops although this broker leads and both partitions are online; the caller loads another.
    """

    def __init__(
        self,
        loaded: LoadedInbox,
        *,
        clock: Clock,
        call_soon: CallSoon,
        off_loop: OffLoop,
        cache: CacheShare,
        failed: Callable[[OutOfFiles | RequestError], None],
        bytes_per_tick: int = _FORWARDED_BYTES,
    ) -> None:
        self.topic = loaded.topic
        self.inbox = loaded.inbox
        self.machine = loaded.machine
        self._source = loaded.source
        self._scan = loaded.scan
        self._clock = clock
        self._call_soon = call_soon
        self._off_loop = off_loop
        self._failed = failed
        self._bytes_per_tick = bytes_per_tick
        self._batches: Iterator[bytes] = iter(())
        self._is_stopped = False
        self._settled = (0, 0, 0)
        self._between_intents: list[tuple[Callable[[], None], Answer]] = []
        self._source.join(cache)
        self.inbox.queue = self
        # Records of producers with acks=1 are forwarded even if the topic has fewer replicas than it demands.
        self._runner: MachineRunner[ForwardingCommand[object]] = MachineRunner(
            self.inbox, self.machine, clock, attributes=CONTROL, needs_replicas=False
        )
        self._follower = LogFollower(
            self.inbox,
            clock=clock,
            call_soon=call_soon,
            limit=last_stable_offset,
            look=self._look,
            unpack=self._unpack,
            looked=self.resume,
        )
        self._follower.follow(self.inbox)
        self._runner.submit(NextIntent(), self._carry_out)

    def resume(self) -> None:
        """Continue to forward: records were scanned, or the disk has space again."""
        self._runner.expire()

    def stop(self) -> None:
        """Stop forwarding. The next start completes the intent that was begun."""
        self._is_stopped = True
        self._batches = iter(())
        self._follower.stop()
        self._runner.stop()
        self._source.leave()
        for _, answer in self._between_intents:
            reason = f"the inbox of {self.topic.identity} is being closed"
            answer(RequestError(ErrorKind.COORDINATOR_NOT_AVAILABLE, reason))
        self._between_intents.clear()

    def append_to_topic(self, append: Callable[[], None], answer: Answer) -> None:
        """Append a batch to the topic between two intents. `answer` is called once that is done, or has failed.

        append: appends it; may raise RequestError.
        """
        self._between_intents.append((append, answer))
        if self._is_online() and self.machine.is_idle:
            self._append_between_intents()

    def cancel(self, offset: int, answer: Answer) -> Callable[[], None]:
        """Cancel a record; `answer` is called once that is durable. Returns a function that withdraws the caller.

        Raises RequestError, or answers with it: UNKNOWN_MESSAGE, MESSAGE_NOT_DELAYED, PARTITION_OFFLINE, and those of
        an inbox that cannot commit. The forwarder itself waits without limit.
        """
        self.inbox.check_replicas()
        message = self.find(offset)
        if message is None:
            raise RequestError(ErrorKind.UNKNOWN_MESSAGE, f"no message waits at offset {offset} of the inbox")
        due_ms = read_attributes(message.headers, message.timestamp_ms).due_ms
        token = self._runner.submit(CancelForwarding(offset=offset, due_ms=due_ms), partial(self._answer, answer))
        self.inbox.when_acknowledged(self.inbox.log.log_end_offset, partial(_answer_failure, answer))
        return lambda: self._runner.forget(token)

    def waiting(self, offset: int) -> Message | None:
        """Return the record at an offset, if it was neither forwarded nor cancelled."""
        message = self.find(offset)
        if message is None:
            return None
        due_ms = read_attributes(message.headers, message.timestamp_ms).due_ms
        return message if self.machine.is_waiting(offset, due_ms, self._clock.now_ms()) else None

    def find(self, offset: int) -> Message | None:
        """Return the record at an offset of the inbox, also if it was forwarded or cancelled; None if its transaction
        is open, or was aborted. Raises RequestError, StillPacked.
        """
        self.inbox.check_online()
        try:
            return self._source.get(offset) if self._is_decided(offset) else None
        except StillPacked:
            raise
        except StorageFailure as failure:
            raise self.inbox.failed_read(failure) from failure

    def keep(self, batch: SourceBatch) -> None:
        """Keep a batch that was unpacked on a thread, for `find`."""
        self._source.keep(batch)

    def _is_decided(self, offset: int) -> bool:
        """Return whether an offset is committed, and below the last stable offset or not in a transaction."""
        if offset < last_stable_offset(self.inbox):
            return True
        log, end_offset = self.inbox.log, self.inbox.high_watermark
        piece = log.read(offset, 1, end_offset, at_least_one=True) if offset < end_offset else None
        return piece is not None and not any(is_transactional(batch.header) for batch in batches_in(piece))

    def retain_from_offset(self) -> int:
        return self.machine.retain_from_offset()

    def settled_offset(self) -> int:
        """Return the offset below which records may be deleted: forwarded, and older than the deduplication window."""
        now_ms, needed = self._clock.now_ms(), self.machine.retain_from_offset()
        since_ms, offset, settled = self._settled
        if now_ms - since_ms >= self.inbox.log.topic.dedup_window_ms:
            settled = offset
            self._settled = (now_ms, needed, settled)
        return settled

    def _answer(self, answer: Callable[[RequestError | None], None], reply: RequestError | None) -> None:
        is_offline = reply is not None and self.inbox.offline_reason is not None
        answer(self.inbox.offline_error() if is_offline else reply)

    def _look(self, limit_offset: int) -> bool:
        return self._scan.advance(limit_offset, _SCANNED_BYTES, self._clock.now_ms(), SMALL_BYTES)

    def _unpack(self, packed: StillPacked, unpacked: Callable[[RequestError | None], None]) -> None:
        self._off_loop(partial(scan_packed, packed), partial(self._scanned, packed.header, unpacked))
        self.resume()

    def _scanned(
        self,
        header: BatchHeader,
        unpacked: Callable[[RequestError | None], None],
        runs: list[DueRun] | StorageFailure,
    ) -> None:
        if isinstance(runs, StorageFailure):
            return unpacked(self.inbox.failed_read(runs))
        if self._is_online():
            self._scan.take(header, runs, self._clock.now_ms())
            unpacked(None)

    def _carry_out(self, intent: Intent | RequestError) -> None:
        """Forward the records of an intent that is on the disk. An error ends the forwarder."""
        if isinstance(intent, RequestError):
            return self._refused(intent)
        if not self._is_online():
            return
        assert self.topic.log.log_end_offset == intent.topic_offset, "another writer has appended to the topic"
        self._batches = batches_of(intent, self._source, last_stable_offset(self.inbox), self.topic.log.topic)
        self._forward(intent)

    def _forward(self, intent: Intent) -> None:
        """Append more of an intent's records to the topic; after the last, request the next intent."""
        if not self._is_online():
            return
        size = 0
        try:
            for batch in self._batches:
                self.topic.append(own_batch(batch), self._clock.now_ms())
                size += len(batch)
                if size >= self._bytes_per_tick:
                    self._call_soon(partial(self._forward, intent))
                    return
        except OutOfFiles as failure:
            return self._failed(failure)
        except StorageFailure as failure:
            return self.inbox.go_offline(failure)
        except RequestError as error:
            if error.kind is ErrorKind.NOT_LEADER:
                return self._refused(error)
            if self._is_online():  # It was not the topic's partition.
                self.inbox.go_offline(StorageFailure(f"a record to be forwarded cannot be read: {error}"))
            return
        assert self.topic.log.log_end_offset == intent.end_offset, "an intent was not carried out as it was noted"
        self.topic.when_committed(intent.end_offset, partial(self._release, intent))
        self._follower.advance()
        self._append_between_intents()
        self._runner.submit(NextIntent(), self._carry_out)

    def _append_between_intents(self) -> None:
        waiting, self._between_intents = self._between_intents, []
        for append, answer in waiting:
            try:
                append()
            except RequestError as error:
                answer(error)
            else:
                answer(None)

    def _refused(self, error: RequestError) -> None:
        """End the forwarder: a partition refuses its records."""
        if self._is_online() and isinstance(self.inbox.role, Leader):
            self._failed(error)

    def _release(self, intent: Intent, error: RequestError | None) -> None:
        if error is None:
            self.machine.release(intent)

    def _is_online(self) -> bool:
        return not self._is_stopped and self.inbox.offline_reason is None and self.topic.offline_reason is None


def _answer_failure(answer: Callable[[RequestError | None], None], error: RequestError | None) -> None:
    if error is not None:
        answer(error)
