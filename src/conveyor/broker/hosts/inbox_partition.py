"""The inbox of one partition, and its forwarder: the only one who appends to the partition while there is an inbox.

    the inbox's high watermark rises -> scan what is new
    something is due -> note the intent in the inbox -> (on the disk) -> append its records to the topic -> the next

One intent is under way at a time; what falls due meanwhile goes with the next. Nothing is forwarded while the disk has
little room. When either partition goes offline, or too many files are open, the forwarder stops where it is: the next
one finds in the two logs what has been done.
"""

import logging
from collections.abc import Callable, Iterator
from functools import partial

from conveyor.broker.partitions.disk_room import DiskRoom
from conveyor.delay.forwarding import RECORDS_AT_ONCE, Forwarding
from conveyor.delay.forwarding_batches import batches_of
from conveyor.delay.forwarding_history import ForwardingHistory
from conveyor.delay.forwarding_records import Cancelled, Intent, Note, decode_notes, encode_note
from conveyor.delay.forwarding_scan import DueRun, scan_due
from conveyor.kernel.errors import ErrorKind, OutOfFiles, RequestError, StorageFailure
from conveyor.kernel.ports import Clock
from conveyor.log.cache_share import CacheShare
from conveyor.log.record_source import SMALL_BYTES, MessageSource, StillPacked, takes_long_to_look_at
from conveyor.records.batch import COMPRESSION_MASK, CONTROL, BatchHeader, iterate_batches
from conveyor.records.compression import MAX_UNPACKED_BYTES
from conveyor.records.message import Message
from conveyor.records.message_attributes import read_attributes
from conveyor.records.record import UnreadableBatch
from conveyor.replication.partition import Partition, Waiter

log = logging.getLogger(__name__)

CallSoon = Callable[[Callable[[], None]], object]
Scan = Callable[[], list[DueRun] | StorageFailure]
OffLoop = Callable[[Scan, Callable[[list[DueRun] | StorageFailure], None]], None]
"""Takes what to run on a thread, and what to call with its result on the event loop."""

_READ_BYTES = 1 << 20
_SCANNED_BYTES = 128 << 10
_FORWARDED_BYTES = 256 << 10
_PACKED_AT_ONCE = 8
_READ_AGAIN_MS = 1_000


class InboxPartition:
    """See the module's docstring. Made by `load_inbox`."""

    def __init__(
        self,
        topic: Partition,
        inbox: Partition,
        machine: Forwarding,
        source: MessageSource,
        clock: Clock,
        loaded_offset: int,
        bytes_per_turn: int,
    ) -> None:
        self.topic = topic
        self.machine = machine
        self._inbox = inbox
        self._source = source
        self._clock = clock
        self._loaded_offset = loaded_offset
        self._bytes_per_turn = bytes_per_turn
        self._intent: Intent | None = None
        self._batches: Iterator[bytes] = iter(())
        self._is_scanning = False
        self._is_stopped = False
        self._cancel_alarm: Callable[[], None] | None = None
        self._alarm_ms: int | None = None
        self._kept_from = (0, 0, 0)

    def scan(self, limit_offset: int, max_bytes: int, now_ms: int, limit_bytes: int = MAX_UNPACKED_BYTES) -> bool:
        """Look through some more of the inbox. Returns whether that was all.

        limit_bytes: StillPacked is raised for a batch that unpacks to more, and some compressed batches are enough for
        one call. Raises StorageFailure.
        """
        machine = self.machine
        offset = machine.scanned_offset
        if offset >= limit_offset or machine.is_full:
            return True
        is_new = offset >= self._loaded_offset
        packed_count = 0
        for header, place, batch in self._source.batches(offset, limit_offset, max_bytes):
            known = not is_new and machine.has_forwarded(header.base_offset, header.next_offset)
            try:
                if not known and limit_bytes < MAX_UNPACKED_BYTES and takes_long_to_look_at(header):
                    raise StillPacked(header, place)
                runs = [] if known else scan_due(header, batch, limit_bytes)
            except UnreadableBatch:
                raise StillPacked(header, place) from None
            self._take(header, runs, now_ms)
            packed_count += bool(header.attributes & COMPRESSION_MASK)
            if packed_count == _PACKED_AT_ONCE and limit_bytes < MAX_UNPACKED_BYTES:
                break
        return machine.scanned_offset >= limit_offset

    def _take(self, header: BatchHeader, runs: list[DueRun], now_ms: int) -> None:
        is_new = header.base_offset >= self._loaded_offset
        self.machine.take(
            runs,
            header.next_offset,
            now_ms=now_ms if is_new else 0,
            honours_delay=not is_new or self.topic.log.topic.delay_enable,
        )
        if not is_new and self.machine.scanned_offset >= self._loaded_offset:
            self.machine.forget_history()

    def start(
        self,
        call_soon: CallSoon,
        off_loop: OffLoop,
        cache: CacheShare,
        room: DiskRoom,
        stopped: Callable[[OutOfFiles], None],
    ) -> None:
        """Forward from now on, on the event loop. stopped: called if the forwarder cannot go on; then make another."""
        self._call_soon = call_soon
        self._off_loop = off_loop
        self._source.join(cache)
        self._room = room
        self._stopped = stopped
        self._inbox.queue = self
        self._watch()
        self._advance()

    def resume(self) -> None:
        """There is room on the disk again."""
        self._forward_next()

    def stop(self) -> None:
        """Forward nothing more. What is noted and not done is for the next start."""
        self._is_stopped = True
        self._batches = iter(())
        self._inbox.unwatch(self._rose)
        self._source.leave()
        if self._cancel_alarm is not None:
            self._cancel_alarm()

    def cancel(self, offset: int, cancelled: Waiter) -> None:
        """Never forward a record; call back when that is safe.

        Raises RequestError: UNKNOWN_MESSAGE, MESSAGE_NOT_DELAYED, PARTITION_OFFLINE.
        """
        message = self.find(offset)
        if message is None:
            raise RequestError(ErrorKind.UNKNOWN_MESSAGE, f"no message waits at offset {offset} of the inbox")
        due_ms = read_attributes(message.headers, message.timestamp_ms).due_ms
        self._note(self.machine.handle(Cancelled(offset), due_ms, self._clock.now_ms()))
        self._inbox.when_committed(self._inbox.log.log_end_offset, cancelled)

    def waiting(self, offset: int) -> Message | None:
        """A record that is not forwarded yet, nor cancelled."""
        message = self.find(offset)
        if message is None:
            return None
        due_ms = read_attributes(message.headers, message.timestamp_ms).due_ms
        return message if self.machine.is_waiting(offset, due_ms, self._clock.now_ms()) else None

    def find(self, offset: int) -> Message | None:
        """A record that was put into the inbox, whatever has become of it."""
        self._inbox.check_online()
        try:
            return self._source.get(offset) if offset < self._inbox.high_watermark else None
        except StorageFailure as failure:
            raise self._inbox.failed_read(failure) from failure

    def held_from(self) -> int:
        return self.machine.held_from()

    def settled_offset(self) -> int:
        """What may be deleted: forwarded, and so long ago that no id in it is needed to tell duplicates."""
        now_ms, held = self._clock.now_ms(), self.machine.held_from()
        since_ms, offset, settled = self._kept_from
        if now_ms - since_ms >= self._inbox.log.topic.dedup_window_ms:
            settled = offset
            self._kept_from = (now_ms, held, settled)
        return settled

    def _watch(self) -> None:
        if self._inbox.offline_reason is None and not self._is_stopped:
            self._inbox.watch(self._rose)

    def _rose(self) -> None:
        self._watch()
        self._advance()

    def _advance(self) -> None:
        """Scan what is new, a part in each turn, and forward what is due."""
        if not self._is_online() or self._is_scanning:
            return
        try:
            is_done = self.scan(self._inbox.high_watermark, _SCANNED_BYTES, self._clock.now_ms(), SMALL_BYTES)
        except StillPacked as packed:
            self._is_scanning = True
            self._off_loop(partial(_scan_off_loop, packed), partial(self._scanned, packed.header))
            return self._forward_next()
        except StorageFailure as failure:
            return self._fail(failure)
        if not is_done:
            self._is_scanning = True
            self._call_soon(self._advance_more)
        self._forward_next()

    def _scanned(self, header: BatchHeader, runs: list[DueRun] | StorageFailure) -> None:
        """A batch was unpacked on a thread."""
        if not self._is_online():
            return
        if isinstance(runs, StorageFailure):
            self._inbox.failed_read(runs)
            self._clock.call_later(_READ_AGAIN_MS, self._advance_more)
            return
        self._take(header, runs, self._clock.now_ms())
        self._advance_more()

    def _advance_more(self) -> None:
        self._is_scanning = False
        self._advance()

    def _forward_next(self) -> None:
        """Begin with the next intent, if none is under way and something is due."""
        if self._intent is not None or not self._is_online() or self._room.is_low:
            return
        intent = self.machine.expire(self._clock.now_ms(), self.topic.log.log_end_offset)
        if intent is None:
            return self._set_alarm()
        self._intent = intent
        try:
            self._note(intent)
        except RequestError:
            return
        self._inbox.when_committed(self._inbox.log.log_end_offset, self._begin)

    def _note(self, note: Note) -> None:
        now_ms = self._clock.now_ms()
        self._inbox.append(encode_note(note, now_ms), now_ms, is_own=True)
        self.machine.apply(note)

    def _begin(self, error: RequestError | None) -> None:
        """The intent is on the disk: carry it out."""
        if error is not None or self._intent is None or not self._is_online():
            return
        assert self.topic.log.log_end_offset == self._intent.topic_offset, "somebody else has appended to the topic"
        self._batches = batches_of(self._intent, self._source, self._inbox.high_watermark, self.topic.log.topic)
        self._forward_more()

    def _forward_more(self) -> None:
        intent, size = self._intent, 0
        if intent is None or not self._is_online():
            return
        try:
            for batch in self._batches:
                self.topic.append(batch, self._clock.now_ms(), is_own=True)
                size += len(batch)
                if size >= self._bytes_per_turn:
                    self._call_soon(self._forward_more)
                    return
        except StorageFailure as failure:
            return self._fail(failure)
        except RequestError as error:
            if self._is_online():  # It was not the topic's partition that said so.
                self._inbox.go_offline(StorageFailure(f"what was meant to be forwarded cannot be read: {error}"))
            return
        assert self.topic.log.log_end_offset == intent.end_offset, "an intent was not carried out as it was noted"
        self._intent = None
        self.topic.when_committed(intent.end_offset, lambda error: self._release(intent, error))
        self._advance()

    def _release(self, intent: Intent, error: RequestError | None) -> None:
        if error is None:
            self.machine.release(intent)

    def _fail(self, failure: StorageFailure) -> None:
        """The inbox cannot be read: for now, or at all."""
        if isinstance(failure, OutOfFiles):
            self.stop()
            self._stopped(failure)
        else:
            self._inbox.go_offline(failure)

    def _is_online(self) -> bool:
        return not self._is_stopped and self._inbox.offline_reason is None and self.topic.offline_reason is None

    def _set_alarm(self) -> None:
        deadline = self.machine.next_deadline_ms()
        if deadline == self._alarm_ms:
            return
        if self._cancel_alarm is not None:
            self._cancel_alarm()
        self._alarm_ms = deadline
        self._cancel_alarm = None if deadline is None else self._clock.call_at(deadline, self._on_alarm)

    def _on_alarm(self) -> None:
        self._alarm_ms = self._cancel_alarm = None
        self._forward_next()


def _scan_off_loop(packed: StillPacked) -> list[DueRun] | StorageFailure:
    place = packed.place
    try:
        return scan_due(packed.header, place.file.read(place.position, place.length))
    except StorageFailure as failure:
        return failure


def load_inbox(
    topic: Partition,
    inbox: Partition,
    clock: Clock,
    *,
    records_at_once: int = RECORDS_AT_ONCE,
    bytes_per_turn: int = _FORWARDED_BYTES,
) -> InboxPartition:
    """Read an inbox from its start: the notes first, then what was not forwarded. Blocks. Raises StorageFailure.

    records_at_once: of one intent. bytes_per_turn: appended to the topic in one turn of the event loop, and the rest of
    the last batch.
    """
    limit = int(inbox.high_watermark)
    source = MessageSource(inbox.identity.topic, inbox.identity.partition, inbox.log)
    history = _read_notes(inbox, limit)
    machine = Forwarding(history, int(inbox.log.log_start_offset), int(topic.log.log_end_offset), records_at_once)
    loaded = InboxPartition(topic, inbox, machine, source, clock, limit, bytes_per_turn)
    while not loaded.scan(limit, _READ_BYTES, 0):
        pass
    return loaded


def _read_notes(inbox: Partition, limit_offset: int) -> ForwardingHistory:
    history = ForwardingHistory()
    offset = int(inbox.log.log_start_offset)
    while offset < limit_offset:
        found = inbox.log.read(offset, _READ_BYTES, limit_offset, at_least_one=True)
        if found is None:
            break
        content = found.file.read(found.position, found.length)
        for position, header in iterate_batches(content):
            if header.attributes & CONTROL:
                for note in decode_notes(content[position : position + header.size]):
                    history.apply(note)
            offset = header.next_offset
    return history
