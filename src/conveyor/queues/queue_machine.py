"""The state machine of one partition as a queue: what each subscription of its topic has done with its messages.

Hard state, changed by `apply` only: a `Progress` for each subscription, and the messages that were cancelled. Soft
state: a `Deliveries` for each, made from these and from the topic's own log, which `advance` goes through as it grows.
See `conveyor.kernel.state_machine` for the contract. Reading messages is no change: what is in a log never changes.

A command for one subscription costs the same however many there are: after each change of a queue, `_look_at` notes
when it is due, and whether it lags behind the log or has dead letters to move.

Invariants: a message is leased to one at most; what is settled is not leased again, unless somebody seeks or redrives;
what is not settled is leased again, sooner or later.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice
from uuid import UUID

from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.range_set import RangeSet
from conveyor.kernel.state_machine import LogRecord, Outcome, Reply, Token
from conveyor.log.record_source import MessageSource, StillPacked
from conveyor.queues.delivery.deliveries import MAX_INDEXED, Deliveries
from conveyor.queues.delivery.memory_budget import MemoryBudget
from conveyor.queues.delivery.remembered_acks import RememberedAcks
from conveyor.queues.delivery.subscription_queue import Queue
from conveyor.queues.delivery.timetable import Timetable
from conveyor.queues.messages.scan import BatchScan
from conveyor.queues.queue_commands import (
    Acknowledge,
    Cancel,
    CutBack,
    DropDeadLetters,
    Extend,
    ForgetSubscription,
    LeaseMessages,
    MoveToDeadLetters,
    OneSubscriptionCommand,
    PutSubscription,
    QueueCommand,
    QueueProbe,
    Redeliver,
    Reject,
    Release,
    Retry,
    Seek,
)
from conveyor.queues.refusals import no_message, subscription_gone, unreadable
from conveyor.queues.subscription.policy import Subscription
from conveyor.queues.subscription.queue_records import (
    PARTITION_KEY,
    Attempt,
    Kind,
    cut,
    forgotten,
    ranges_record,
    ranges_records,
    read_offset,
    read_ranges,
    reset,
    started,
)
from conveyor.queues.subscription.subscription_progress import BEYOND, Progress
from conveyor.records.compression import MAX_UNPACKED_BYTES
from conveyor.records.message_attributes import read_attributes

SCAN_BYTES = 1 << 18


class QueueMachine:
    """See the module's docstring.

    incarnation: differs from that of every machine before it, so that their leases are not taken for its own.
    fraction: a random number in [0, 1), for the jitter of retries. acks: the broker's budget for
    remembered acks. max_indexed: see `deliveries.MAX_INDEXED`.
    """

    def __init__(
        self,
        source: MessageSource,
        incarnation: int,
        fraction: Callable[[], float],
        probe: Callable[[UUID], QueueProbe],
        acks: MemoryBudget,
        max_indexed: int = MAX_INDEXED,
    ) -> None:
        self._source = source
        self._incarnation = incarnation
        self._fraction = fraction
        self._probe = probe
        self._acks = acks
        self._max_indexed = max_indexed
        self.cancelled = RangeSet()
        """Messages that nobody shall see. Hard state."""
        self._progress: dict[UUID, Progress] = {}
        self._subscriptions: dict[UUID, Subscription] = {}
        self._queues: dict[UUID, Queue] = {}
        self._timetable = Timetable()
        self._lagging: dict[UUID, Queue] = {}
        self._dooming: dict[UUID, Queue] = {}
        self._changed: set[UUID] = set()
        self._high_watermark = 0
        self._let_go_offset = 0

    def apply(self, record: LogRecord) -> None:
        assert record.key is not None
        assert record.value is not None
        kind = Kind(record.value[0])
        if kind is Kind.RESET:
            self._progress.clear()
            self.cancelled.clear()
        elif kind is Kind.CANCELLED:
            self._apply_cancelled(record.value)
        elif kind is Kind.CUT:
            self._apply_cut(read_offset(record.value))
        elif kind is Kind.FORGOTTEN:
            self._progress.pop(UUID(bytes=record.key), None)
        else:
            progress = self._progress.setdefault(UUID(bytes=record.key), Progress())
            progress.apply(kind, record.value)
            if kind is Kind.STARTED:
                self._apply_started(UUID(bytes=record.key), progress)

    def loaded(self, now_ms: int) -> None:
        """All records are applied; `know` says which of these subscriptions there still are."""

    def reaches_beyond(self, offset: int) -> bool:
        """Whether anything is known of messages from an offset on: a `CutBack` is due if the log ends there.

        A topic with `flush.policy=os` may lose in a power cut what its subscriptions have settled already.
        """
        every = self._progress.values()
        return bool(self.cancelled.count_from(offset)) or any(each.reaches_beyond(offset) for each in every)

    def snapshot(self) -> list[LogRecord]:
        """Records that make the hard state from nothing, whatever was before them."""
        records = [reset(), *ranges_records(PARTITION_KEY, Kind.CANCELLED, self.cancelled)]
        for subscription, progress in self._progress.items():
            records += progress.records(subscription)
        return records

    def clock_set(self, by_ms: int) -> None:
        """See `StateMachine.clock_set`: leases and backoffs move; times that messages ask for are of the wall clock."""
        for queue in self._queues.values():
            queue.deliveries.clock_set(by_ms)
            self._look_at(queue)

    def next_deadline_ms(self) -> int | None:
        return self._timetable.first_ms()

    def expire(self, now_ms: int) -> Outcome:
        records: list[LogRecord] = []
        for subscription in self._timetable.pop_due(now_ms):
            queue = self._queues[subscription]
            records += queue.expire(now_ms)
            self._look_at(queue)
        return Outcome(tuple(records))

    def handle(self, command: QueueCommand, token: Token, now_ms: int) -> Outcome:
        match command:
            case PutSubscription():
                self._put(command.subscription)
                return Outcome(replies=(Reply(token, None),))
            case ForgetSubscription():
                return Outcome(self._forget(command.subscription), (Reply(token, None),))
            case CutBack():
                return Outcome((cut(command.offset),), (Reply(token, None),))
            case Cancel():
                return self._cancel(command, token, now_ms)
            case Seek():
                return self._seek(command, token)
            case _:
                queue = self._queues.get(command.subscription)
                if queue is None:
                    return Outcome(replies=(Reply(token, subscription_gone()),))
                try:
                    return self._handle_one(queue, command, token, now_ms)
                except StillPacked:  # Nothing has changed: the command can be handed in again.
                    raise
                except StorageFailure as failure:
                    return Outcome(replies=(Reply(token, unreadable(failure)),))
                finally:
                    self._look_at(queue)

    def know(self, subscriptions: Mapping[UUID, Subscription]) -> None:
        """Before the first command: which subscriptions there are. Those with progress go on from there."""
        self._subscriptions = dict(subscriptions)
        for each in subscriptions.values():
            if each.id in self._progress:
                self._open(each)

    def strays(self, subscriptions: Collection[UUID]) -> list[UUID]:
        """What is known here of other subscriptions than these: they were deleted while the machine was not loaded."""
        return [each for each in self._progress.keys() | self._subscriptions.keys() if each not in subscriptions]

    def queue(self, subscription: UUID) -> Queue | None:
        """What a subscription is doing here; None if it is not known."""
        return self._queues.get(subscription)

    def advance(self, high_watermark: int, now_ms: int, limit_bytes: int = MAX_UNPACKED_BYTES) -> bool:
        """Look through some more of the log, below an offset. Returns whether all of it is known now.

        limit_bytes: see `MessageSource.open`; after StillPacked call again when the source has taken the batch.
        Raises StorageFailure.
        """
        if high_watermark > self._high_watermark:
            self._high_watermark = high_watermark
            self._lagging |= self._queues
        self._let_go_below(min(self._source.log_start_offset, high_watermark))
        behind = self._behind()
        if behind:
            furthest = max(each.deliveries.scanned_offset for each in behind)
            slow = [each for each in behind if each.deliveries.scanned_offset < furthest]
            first = [each for each in behind if each.deliveries.scanned_offset == furthest]
            self._scan(first, high_watermark, now_ms, limit_bytes)
            if slow:  # A queue that goes through the whole log delays no other.
                self._scan(slow, high_watermark, now_ms, limit_bytes)
        return self.is_caught_up

    def close(self) -> None:
        """Give back what counts against the broker's budgets: the machine is used no more."""
        for queue in self._queues.values():
            queue.close()
        self._source.leave()

    @property
    def is_caught_up(self) -> bool:
        """Whether `advance` has nothing more to look through for now, as far as is known here."""
        return not self._behind()

    def _behind(self) -> list[Queue]:
        return [each for each in self._lagging.values() if not each.deliveries.is_full]

    def _let_go_below(self, log_start_offset: int) -> None:
        if log_start_offset <= self._let_go_offset:
            return
        self._let_go_offset = log_start_offset
        for queue in self._queues.values():
            queue.deliveries.skip_to(log_start_offset)
            queue.progress.forget_below(log_start_offset)
            self._look_at(queue)
        self.cancelled.remove(0, log_start_offset)

    def _look_at(self, queue: Queue) -> None:
        """Note what has become of a queue: when it has to be looked at next, and what it is waiting for."""
        identity, deliveries = queue.subscription.id, queue.deliveries
        self._changed.add(identity)
        self._timetable.set(identity, deliveries.next_deadline_ms())
        if deliveries.scanned_offset < self._high_watermark:
            self._lagging[identity] = queue
        else:
            self._lagging.pop(identity, None)
        if deliveries.doomed:
            self._dooming[identity] = queue
        else:
            self._dooming.pop(identity, None)

    def _scan(self, queues: list[Queue], high_watermark: int, now_ms: int, limit_bytes: int) -> None:
        try:
            self._scan_batches([queue.deliveries for queue in queues], high_watermark, now_ms, limit_bytes)
        finally:  # A batch that is still packed ends the scan after others were taken.
            for queue in queues:
                self._look_at(queue)

    def _scan_batches(self, behind: list[Deliveries], high_watermark: int, now_ms: int, limit_bytes: int) -> None:
        position = min(each.scanned_offset for each in behind)
        has_found = False
        for header, place, batch in self._source.batches(position, high_watermark, SCAN_BYTES):
            scan = BatchScan(self._source, header, place, batch, limit_bytes)
            has_found = True
            for each in behind:
                if each.scanned_offset < header.next_offset:
                    each.take(*scan.runs(each.policy.fair_by, each.scanned_offset), now_ms)
            if any(each.scanned_offset < header.next_offset for each in behind):
                return  # The rest of the batch comes next.
        if not has_found:  # Compaction has left nothing up to there.
            for each in behind:
                each.take((), high_watermark, now_ms)

    def held_from(self) -> int | None:
        """The lowest offset of all that some subscription withholds, or may withhold, and of what is on its way to a
        dead-letter topic: the log must keep it."""
        every = [each.deliveries for each in self._queues.values()]
        held = [each.scanned_offset for each in every if each.scanned_offset < self._high_watermark]
        held += [offset for each in every if (offset := each.first_withheld_offset()) is not None]
        held += [min(each.doomed) for each in every if each.doomed]
        return min(held, default=None)

    def settled_offset(self) -> int:
        """Everything below it is settled by every subscription; 0 if there is none."""
        return min((each.progress.start_offset for each in self._queues.values()), default=0)

    def _apply_started(self, subscription: UUID, progress: Progress) -> None:
        for start, end in self.cancelled:
            progress.settle(start, end)
        known = self._subscriptions.get(subscription)
        queue = self._queues.get(subscription)
        if queue is not None:
            queue.restart()
            self._look_at(queue)
        elif known is not None:
            self._open(known)

    def _apply_cut(self, offset: int) -> None:
        self.cancelled.remove(offset, BEYOND)
        for progress in self._progress.values():
            progress.cut(offset)

    def _apply_cancelled(self, value: bytes) -> None:
        for start, end in read_ranges(value):
            self.cancelled.add(start, end)
            for progress in self._progress.values():
                progress.settle(start, end)

    def _seek(self, command: Seek, token: Token) -> Outcome:
        """Also what begins a subscription."""
        if command.subscription not in self._subscriptions:
            return Outcome(replies=(Reply(token, subscription_gone()),))
        queue = self._queues.get(command.subscription)
        before = 0 if queue is None else queue.progress.unsettled_count(min(command.offset, self._high_watermark))
        return Outcome((started(command.subscription, command.offset),), (Reply(token, before),))

    def _cancel(self, command: Cancel, token: Token, now_ms: int) -> Outcome:
        """A delayed message that is not due yet."""
        try:
            message = self._source.get(command.offset) if command.offset < self._high_watermark else None
        except StorageFailure as failure:
            return Outcome(replies=(Reply(token, unreadable(failure)),))
        if message is None:
            refused = no_message(command.offset)
            return Outcome(replies=(Reply(token, refused),))
        if read_attributes(message.headers, message.timestamp_ms).due_ms <= now_ms:
            refused = RequestError(ErrorKind.MESSAGE_NOT_DELAYED, "the message is due: it cannot be cancelled any more")
            return Outcome(replies=(Reply(token, refused),))
        for queue in self._queues.values():
            queue.cancelled(command.offset)
            self._look_at(queue)
        record = ranges_record(PARTITION_KEY, Kind.CANCELLED, [(command.offset, command.offset + 1)])
        return Outcome((record,), (Reply(token, None),))

    def _open(self, subscription: Subscription) -> None:
        queue = self._queues[subscription.id] = Queue(
            subscription,
            self._progress[subscription.id],
            self._source,
            self._probe(subscription.id),
            self._incarnation,
            self._fraction,
            RememberedAcks(self._acks),
            self._max_indexed,
        )
        queue.progress.forget_below(self._let_go_offset)
        self._look_at(queue)

    def _put(self, subscription: Subscription) -> None:
        """A queue that is open goes on with another policy; a new one waits for its first `Seek`."""
        self._subscriptions[subscription.id] = subscription
        queue = self._queues.get(subscription.id)
        if queue is not None and queue.subscription != subscription:
            queue.subscription = subscription
            self._look_at(queue)

    def _forget(self, subscription: UUID) -> tuple[LogRecord, ...]:
        self._subscriptions.pop(subscription, None)
        queue = self._queues.pop(subscription, None)
        if queue is not None:
            queue.close()
        self._timetable.set(subscription, None)
        self._lagging.pop(subscription, None)
        self._dooming.pop(subscription, None)
        return (forgotten(subscription),) if subscription in self._progress else ()

    def _handle_one(self, queue: Queue, command: OneSubscriptionCommand, token: Token, now_ms: int) -> Outcome:
        reply: object = None
        records: list[LogRecord] = []
        match command:
            case LeaseMessages():
                reply, records = queue.lease(command, now_ms)
            case Acknowledge():
                reply, records = queue.acknowledge(command.targets)
            case Retry():
                reply, records = queue.retry(command.targets, command.delay_ms, now_ms)
            case Extend():
                reply, records = queue.extend(command.targets, command.visibility_ms, now_ms)
            case Reject():
                reply, records = queue.reject(command.targets, command.reason, now_ms)
            case Release():
                queue.release(command.targets)
            case MoveToDeadLetters():
                records = queue.move_to_dead_letters(command.offsets, command.copies)
            case Redeliver():
                reply, records = queue.redeliver(command.offsets, now_ms)
            case DropDeadLetters():
                records = queue.drop_dead_letters(command.offsets)
        return Outcome(tuple(records), (Reply(token, reply),), at_once=not records and _is_soft(queue, command))

    def with_doomed(self) -> list[Subscription]:
        """Subscriptions that have messages on their way to the dead-letter topic."""
        return [each.subscription for each in self._dooming.values()]

    def take_changed(self) -> set[UUID]:
        """Subscriptions that may have messages which they had not when this was last asked."""
        changed, self._changed = self._changed, set()
        return changed

    def doomed(self, subscription: UUID, limit: int) -> list[tuple[int, Attempt]]:
        """Some of the messages of a subscription that are to go to the dead-letter topic."""
        queue = self._queues.get(subscription)
        return [] if queue is None else list(islice(queue.deliveries.doomed.items(), limit))

    def postpone(self, subscription: UUID, offsets: Iterable[int]) -> None:
        """Let the others that are to go to the dead-letter topic go before these."""
        queue = self._queues.get(subscription)
        doomed = {} if queue is None else queue.deliveries.doomed
        for offset in offsets:
            if offset in doomed:
                doomed[offset] = doomed.pop(offset)


def _is_soft(queue: Queue, command: OneSubscriptionCommand) -> bool:
    """Whether a reply without records tells of nothing that a crash may undo, such as an earlier acknowledgement.

    With key order a lease tells that those before it are settled.
    """
    is_lease = isinstance(command, LeaseMessages) and queue.subscription.policy.ordering != "key"
    return is_lease or isinstance(command, Extend | Release)
