"""The state machine of one partition as a queue: the state of each subscription's messages.

Hard state, changed by `apply` only: a `Progress` for each subscription, and the cancelled messages. Soft state: a
`Deliveries` for each subscription, built from the hard state and the topic's log; `advance` scans the log as it grows.
The contract is in `conveyor.kernel.state_machine`. Reading messages changes no state, because log records never change.

`agenda` lists the queues that have something to do.

The machine takes part in transactions: a message that is acknowledged in one is pending until the transaction ends.

Invariants: a message has at most one lease; a settled message is not leased again, unless the subscription seeks or
redrives it; an unsettled message is eventually leased again.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any
from uuid import UUID

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import ProducerIdentity
from conveyor.kernel.range_set import RangeSet
from conveyor.kernel.state_machine import LogRecord, Outcome, Reply, Token
from conveyor.log.record_source import MessageSource, StillPacked
from conveyor.queues.agenda import Agenda
from conveyor.queues.delivery.guarantees import LeaseRegister
from conveyor.queues.delivery.memory_budget import MemoryBudget
from conveyor.queues.delivery.subscription_queue import Decision, SubscriptionQueue
from conveyor.queues.messages.scan import BatchScan
from conveyor.queues.queue_commands import (
    Acknowledge,
    AcknowledgeInTransaction,
    Cancel,
    DropDeadLetters,
    Extend,
    ForgetSubscription,
    LeaseMessages,
    MoveToDeadLetters,
    NackMessages,
    PutSubscription,
    QueueCommand,
    Redeliver,
    Reject,
    Release,
    SeekSubscription,
    SubscriptionCommand,
    SubscriptionProbe,
)
from conveyor.queues.refusals import no_message, subscription_gone
from conveyor.queues.subscription.policy import Subscription
from conveyor.queues.subscription.queue_records import (
    PARTITION_KEY,
    Kind,
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
_SCANNED_AT_ONCE = 4_000
"""The runs and timers of messages, counted for each queue that takes them, after which a scan pauses."""
_EXPIRED_AT_ONCE = 2_000
"""The deadlines of messages and leases after which the others wait, also those of the other subscriptions."""


class QueueMachine:
    """The queues of one partition; see the module's docstring.

    incarnation: differs from that of every earlier machine, so that their leases do not count as its own.
    fraction: returns a random number in [0, 1), for the jitter of retries.
    acks: the broker's budget for remembered acks.
    """

    def __init__(
        self,
        source: MessageSource,
        incarnation: int,
        fraction: Callable[[], float],
        probe: Callable[[UUID], SubscriptionProbe],
        acks: MemoryBudget,
    ) -> None:
        self._source = source
        self._incarnation = incarnation
        self._fraction = fraction
        self._probe = probe
        self._acks = acks
        self.cancelled = RangeSet()
        """Cancelled messages, which no subscription delivers. Hard state."""
        self._progress: dict[UUID, Progress] = {}
        self._subscriptions: dict[UUID, Subscription] = {}
        self._queues: dict[UUID, SubscriptionQueue] = {}
        self.agenda = Agenda()
        self.work_count = 0
        """The work of scans and passed deadlines so far, as about the number of messages with timers."""
        self._forgotten_below_offset = 0
        self._snapshot_ms = 0
        """The time of the last snapshot that was applied: its records do not tell when anything was settled."""

    def apply(self, record: LogRecord) -> None:
        assert record.key is not None
        assert record.value is not None
        kind = Kind(record.value[0])
        settled_ms = 0 if record.timestamp_ms == self._snapshot_ms else record.timestamp_ms
        if kind is Kind.RESET:
            self._progress.clear()
            self.cancelled.clear()
            self._snapshot_ms = record.timestamp_ms
        elif kind is Kind.CANCELLED:
            self._apply_cancelled(record.value, settled_ms)
        elif kind is Kind.CUT:
            self._apply_cut(read_offset(record.value))
        elif kind is Kind.FORGOTTEN:
            self._progress.pop(UUID(bytes=record.key), None)
        else:
            progress = self._progress.setdefault(UUID(bytes=record.key), Progress())
            progress.apply(kind, record.value, settled_ms)
            if kind is Kind.STARTED:
                self._apply_started(UUID(bytes=record.key), progress)

    def resolve(self, producer: ProducerIdentity, commits: bool, now_ms: int) -> None:
        """See `StateMachine.resolve`."""
        for subscription, progress in self._progress.items():
            offsets = progress.resolve(producer.producer_id, now_ms, commits=commits)
            queue = self._queues.get(subscription)
            if offsets and queue is not None:
                queue.resolved(offsets, now_ms, commits=commits)
                self.agenda.update(queue)

    def loaded(self, now_ms: int) -> None:
        """Called once all records are applied. `set_subscriptions` then sets the existing subscriptions."""

    def reaches_beyond(self, offset: int) -> bool:
        """Return whether there is state about messages from an offset on. If the log has others there, a CUT is due."""
        return bool(self.cancelled.count_from(offset)) or any(
            progress.reaches_beyond(offset) for progress in self._progress.values()
        )

    def snapshot(self) -> list[LogRecord]:
        """Return records that rebuild the hard state, regardless of earlier records."""
        records = [reset(), *ranges_records(PARTITION_KEY, Kind.CANCELLED, self.cancelled)]
        for subscription, progress in self._progress.items():
            records += progress.records(subscription)
        return records

    def clock_set(self, by_ms: int) -> None:
        """See `StateMachine.clock_set`. Leases and backoffs shift; due and expiry times of messages follow the wall
        clock.
        """
        for queue in self._queues.values():
            queue.deliveries.clock_set(by_ms)
            self.agenda.update(queue)

    def next_deadline_ms(self) -> int | None:
        return self.agenda.deadlines.first_ms()

    def expire(self, now_ms: int) -> Outcome:
        records: list[LogRecord] = []
        queues: list[SubscriptionQueue] = []
        limit_count = self.work_count + _EXPIRED_AT_ONCE
        while self.work_count < limit_count and (subscription := self.agenda.deadlines.pop_due(now_ms)) is not None:
            queue = self._queues[subscription]
            queues.append(queue)
            before_count = queue.deliveries.work_count
            try:
                records += queue.expire(now_ms)
            except StillPacked as packed:
                self.agenda.wait_for(packed, queue)
            self.work_count += queue.deliveries.work_count - before_count
        for queue in queues:  # Each is asked once: it learns of its decisions when their records are applied.
            self.agenda.update(queue)
        return Outcome(tuple(records))

    def handle(self, command: QueueCommand[object], token: Token, now_ms: int) -> Outcome:
        """See `StateMachine.handle`. Raises StorageFailure if a message cannot be read: nothing has changed, and the
        caller can repeat the command.
        """
        match command:
            case PutSubscription():
                self._put(command.subscription)
                return Outcome(replies=(Reply(token, None),))
            case ForgetSubscription():
                return Outcome(self._forget(command.subscription), (Reply(token, None),))
            case Cancel():
                return self._cancel(command, token, now_ms)
            case SeekSubscription():
                return self._seek(command, token)
            case SubscriptionCommand():
                return self._handle_one(command, token, now_ms)
            case _:
                raise AssertionError(f"{command} is not a command of a queue")

    def set_subscriptions(self, subscriptions: Mapping[UUID, Subscription]) -> None:
        """Set the existing subscriptions, before the first command. Those with progress resume."""
        self._subscriptions = dict(subscriptions)
        for subscription in subscriptions.values():
            if subscription.id in self._progress:
                self._open(subscription)

    def unknown_subscriptions(self, subscriptions: Collection[UUID]) -> list[UUID]:
        """Return subscriptions with state here that are not among the given ones: they were deleted while the
        machine was not loaded.
        """
        existing = self._progress.keys() | self._subscriptions.keys()
        return [subscription for subscription in existing if subscription not in subscriptions]

    def queue(self, subscription: UUID) -> SubscriptionQueue | None:
        """Return a subscription's queue, or None if it has none."""
        return self._queues.get(subscription)

    @property
    def has_queues(self) -> bool:
        """Whether any subscription has begun here."""
        return bool(self._queues)

    def advance(self, stable_offset: int, now_ms: int, limit_bytes: int = MAX_UNPACKED_BYTES) -> bool:
        """Scan the log further, below the last stable offset. Returns whether the scan has reached it.

        limit_bytes: see `MessageSource.open`. After StillPacked, call again once the source has the batch.
        Raises StorageFailure.
        """
        self.agenda.rise_to(stable_offset, self._queues.values())
        self._forget_below(min(self._source.log_start_offset, stable_offset))
        behind = self.agenda.behind()
        if behind:
            furthest = max(queue.deliveries.scanned_offset for queue in behind)
            slow = [queue for queue in behind if queue.deliveries.scanned_offset < furthest]
            first = [queue for queue in behind if queue.deliveries.scanned_offset == furthest]
            self._scan(first, now_ms, limit_bytes)
            if slow:  # A queue that scans the whole log must not delay the others.
                self._scan(slow, now_ms, limit_bytes)
        return not self.agenda.behind()

    def close(self) -> None:
        """Release the broker's budgets. The machine must not be used afterwards."""
        for queue in self._queues.values():
            queue.close()
        self._source.leave()

    def _forget_below(self, log_start_offset: int) -> None:
        if log_start_offset <= self._forgotten_below_offset:
            return
        self._forgotten_below_offset = log_start_offset
        for queue in self._queues.values():
            queue.deliveries.take((), log_start_offset, 0)
            queue.progress.forget_below(log_start_offset)
            self.agenda.update(queue)
        self.cancelled.remove(0, log_start_offset)

    def _scan(self, queues: list[SubscriptionQueue], now_ms: int, limit_bytes: int) -> None:
        try:
            self._scan_batches(queues, self.agenda.stable_offset, now_ms, limit_bytes)
        finally:  # StillPacked may end the scan after some batches were added.
            for queue in queues:
                self.agenda.update(queue)

    def _scan_batches(self, queues: list[SubscriptionQueue], stable_offset: int, now_ms: int, limit_bytes: int) -> None:
        position = min(queue.deliveries.scanned_offset for queue in queues)
        has_batches, limit_count = False, self.work_count + _SCANNED_AT_ONCE
        for header, place, batch in self._source.batches(position, stable_offset, SCAN_BYTES):
            scan = BatchScan(self._source, header, place, batch, limit_bytes)
            has_batches = True
            self.work_count += scan.work_count
            for queue in queues:
                deliveries = queue.deliveries
                if deliveries.scanned_offset < header.next_offset:
                    before_count = scan.work_count + deliveries.work_count
                    runs, next_offset = scan.runs(queue.subscription.policy.fair_by, deliveries.scanned_offset)
                    deliveries.take(runs, next_offset, now_ms)
                    self.work_count += len(runs) + scan.work_count + deliveries.work_count - before_count
                    if self.work_count >= limit_count:
                        return
            if any(queue.deliveries.scanned_offset < header.next_offset for queue in queues):
                return  # The next call scans the rest of the batch.
        if not has_batches:  # Compaction has removed everything below the last stable offset.
            for queue in queues:
                queue.deliveries.take((), stable_offset, now_ms)

    def retain_from_offset(self) -> int | None:
        """Return the lowest offset that the log must keep: of unscanned, withheld and dead-lettering messages."""
        needed: list[int] = []
        for deliveries in (queue.deliveries for queue in self._queues.values()):
            if deliveries.scanned_offset < self.agenda.stable_offset:
                needed.append(deliveries.scanned_offset)
            needed_offset = deliveries.retain_from_offset()
            if needed_offset is not None:
                needed.append(needed_offset)
        return min(needed, default=None)

    def settled_offset(self) -> int:
        """Return the offset below which every subscription has settled every message; 0 without subscriptions."""
        return min((queue.progress.start_offset for queue in self._queues.values()), default=0)

    def _apply_started(self, subscription: UUID, progress: Progress) -> None:
        for start, end in self.cancelled:
            progress.settle(start, end)
        known_subscription = self._subscriptions.get(subscription)
        queue = self._queues.get(subscription)
        if queue is not None:
            queue.restart()
            self.agenda.update(queue)
        elif known_subscription is not None:
            self._open(known_subscription)

    def _apply_cut(self, offset: int) -> None:
        self.cancelled.remove(offset, BEYOND)
        for progress in self._progress.values():
            progress.cut(offset)

    def _apply_cancelled(self, value: bytes, at_ms: int) -> None:
        for start, end in read_ranges(value):
            self.cancelled.add(start, end)
            for progress in self._progress.values():
                progress.settle(start, end, at_ms)

    def _seek(self, command: SeekSubscription, token: Token) -> Outcome:
        if command.subscription not in self._subscriptions:
            return Outcome(replies=(Reply(token, subscription_gone()),))
        queue = self._queues.get(command.subscription)
        if command.begins and queue is not None:
            return Outcome(replies=(Reply(token, 0),))
        before = 0 if queue is None else queue.progress.unsettled_count(min(command.offset, self.agenda.stable_offset))
        return Outcome((started(command.subscription, command.offset),), (Reply(token, before),))

    def _cancel(self, command: Cancel, token: Token, now_ms: int) -> Outcome:
        """Cancel a delayed message that is not due yet. Raises StorageFailure."""
        message = self._source.get(command.offset) if command.offset < self.agenda.stable_offset else None
        refused = None if message is not None else no_message(command.offset)
        if message is not None and read_attributes(message.headers, message.timestamp_ms).due_ms <= now_ms:
            if command.offset in self.cancelled:  # Before it was due.
                return Outcome(replies=(Reply(token, None),))
            refused = RequestError(ErrorKind.MESSAGE_NOT_DELAYED, "the message is due and can no longer be cancelled")
        if refused is not None:
            return Outcome(replies=(Reply(token, refused),))
        for queue in self._queues.values():
            queue.cancelled(command.offset)
            self.agenda.update(queue)
        record = ranges_record(PARTITION_KEY, Kind.CANCELLED, [(command.offset, command.offset + 1)])
        return Outcome((record,), (Reply(token, None),))

    def _open(self, subscription: Subscription) -> None:
        queue = self._queues[subscription.id] = SubscriptionQueue(
            subscription,
            self._progress[subscription.id],
            self._source,
            self._probe(subscription.id),
            LeaseRegister(self._incarnation, self._acks),
            self._fraction,
        )
        queue.progress.forget_below(self._forgotten_below_offset)
        self.agenda.update(queue)

    def _put(self, subscription: Subscription) -> None:
        """Change the policy of an open queue. A new subscription waits for its first `SeekSubscription`."""
        self._subscriptions[subscription.id] = subscription
        queue = self._queues.get(subscription.id)
        if queue is not None and queue.subscription != subscription:
            queue.subscription = subscription
            self.agenda.update(queue)

    def _forget(self, subscription: UUID) -> tuple[LogRecord, ...]:
        self._subscriptions.pop(subscription, None)
        queue = self._queues.pop(subscription, None)
        if queue is not None:
            queue.close()
        self.agenda.remove(subscription)
        return (forgotten(subscription),) if subscription in self._progress else ()

    def _handle_one(self, command: SubscriptionCommand[object], token: Token, now_ms: int) -> Outcome:
        queue = self._queues.get(command.subscription)
        if queue is None:
            return Outcome(replies=(Reply(token, subscription_gone()),))
        try:
            reply, records = _VERBS[type(command)](queue, command, now_ms)
        finally:
            self.agenda.update(queue)
        at_once = not records and _is_soft(queue, command)
        producer = command.producer if isinstance(command, AcknowledgeInTransaction) else None
        return Outcome(tuple(records), (Reply(token, reply),), at_once=at_once, producer=producer)


_VERBS: dict[type, Callable[[SubscriptionQueue, Any, int], Decision]] = {
    Acknowledge: SubscriptionQueue.acknowledge,
    AcknowledgeInTransaction: SubscriptionQueue.acknowledge_in_transaction,
    DropDeadLetters: lambda queue, command, _: (None, queue.deliveries.dead_lettering.dropped(command)),
    Extend: SubscriptionQueue.extend,
    LeaseMessages: SubscriptionQueue.lease,
    MoveToDeadLetters: lambda queue, command, _: (None, queue.deliveries.dead_lettering.arrived(command)),
    NackMessages: SubscriptionQueue.retry,
    Redeliver: SubscriptionQueue.redeliver,
    Reject: SubscriptionQueue.reject,
    Release: SubscriptionQueue.release,
}


def _is_soft(queue: SubscriptionQueue, command: SubscriptionCommand[object]) -> bool:
    """Return whether a reply without records reveals nothing that a crash may undo, such as an earlier acknowledgement.

    With key order, a lease reveals that earlier messages of the key are settled.
    """
    is_lease = isinstance(command, LeaseMessages) and queue.subscription.policy.ordering != "key"
    return is_lease or isinstance(command, Extend | Release)
