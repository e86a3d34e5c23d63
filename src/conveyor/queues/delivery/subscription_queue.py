"""One subscription in one partition: leases its messages and settles them. Methods change soft state only.

Every decision that must survive is in the records that a method returns. The caller appends them, and `Progress`
applies them in the same loop tick.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count

from conveyor.kernel.errors import RequestError, StorageFailure
from conveyor.kernel.ids import ProducerIdentity
from conveyor.kernel.range_set import ranges_of
from conveyor.kernel.state_machine import LogRecord
from conveyor.log.record_source import MessageSource, StillPacked
from conveyor.queues.delivery.available import Popped
from conveyor.queues.delivery.backoff import retry_delay_ms
from conveyor.queues.delivery.deliveries import MAX_INDEXED, Deliveries, HeldLease, published_ms_of
from conveyor.queues.delivery.findings import Findings
from conveyor.queues.delivery.remembered_acks import RememberedAcks
from conveyor.queues.delivery.selection import Fate, MessageSelection
from conveyor.queues.messages.dead_copies import Copy, copied_ranges
from conveyor.queues.messages.scan import NO_GROUP, group_of
from conveyor.queues.queue_commands import (
    LeasedMessage,
    LeasedMessages,
    LeaseMessages,
    QueueProbe,
    Settled,
    Target,
)
from conveyor.queues.refusals import lease_lost, lease_unnamed, no_message
from conveyor.queues.subscription.policy import Policy, Subscription, delivery_order
from conveyor.queues.subscription.queue_records import (
    Attempt,
    Kind,
    copied_records,
    dead_lettering,
    failed,
    pending_records,
    settlement_records,
)
from conveyor.queues.subscription.subscription_progress import Progress
from conveyor.records.message import Message
from conveyor.records.message_attributes import DEFAULT_PRIORITY, PLAIN, MessageAttributes, read_attributes

log = logging.getLogger(__name__)

_EXAMINED_AT_ONCE = 2_000
_ENDED_AT_ONCE = 5_000
_OVERDUE_AT_ONCE = 500
_MAX_WAITING = 100_000


class Queue:
    """The queue of one subscription in one partition; see the module's docstring."""

    def __init__(
        self,
        subscription: Subscription,
        progress: Progress,
        source: MessageSource,
        probe: QueueProbe,
        incarnation: int,
        fraction: Callable[[], float],
        acks: RememberedAcks,
        max_indexed: int = MAX_INDEXED,
    ) -> None:
        self.deliveries = Deliveries(subscription.policy, progress, max_indexed)
        self.progress = progress
        self._subscription = subscription
        self._source = source
        self._probe = probe
        self._incarnation = incarnation
        self._fraction = fraction
        self._max_indexed = max_indexed
        self._numbers = count(1)
        self._acks = acks
        self.selection = MessageSelection(subscription, progress, probe)
        self._configure(subscription)

    @property
    def subscription(self) -> Subscription:
        return self._subscription

    @subscription.setter
    def subscription(self, subscription: Subscription) -> None:
        before, had_fault = self._subscription.policy, self.selection.fault is not None
        self._subscription = subscription
        self.selection.use(subscription)
        self._configure(subscription)
        if had_fault or delivery_order(before) != delivery_order(subscription.policy):
            self.restart()

    @property
    def has_messages(self) -> bool:
        """Whether `lease` would find a message to examine."""
        policy, deliveries = self._policy, self.deliveries
        is_open = not policy.paused and self.selection.fault is None and self._held_count < policy.max_in_flight
        return is_open and bool(deliveries.available.count) and not self._must_wait

    def restart(self) -> None:
        """Scan the log again from the subscription's start offset. All current leases are lost."""
        self.deliveries = Deliveries(self._subscription.policy, self.progress, self._max_indexed)

    def close(self) -> None:
        """Release this queue's share of the broker's budgets."""
        self._acks.clear()

    def next_deadline_ms(self) -> int | None:
        return self.deliveries.next_deadline_ms()

    def lease(self, command: LeaseMessages, now_ms: int) -> tuple[LeasedMessages, list[LogRecord]]:
        """Lease the next messages. Raises StorageFailure; StillPacked if the next batch has to be decompressed off
        the loop first.
        """
        self._block_keys_of_pending()
        findings = Findings(self.selection.filter)
        room = self._policy.max_in_flight - self._held_count
        wanted = 0 if self._policy.paused else min(command.count, room)
        examined = 0
        while len(findings.leased) < wanted and examined < _EXAMINED_AT_ONCE and findings.has_budget(command.max_bytes):
            limit = 1 if self.deliveries.keys is not None else wanted - len(findings.leased)
            popped = None if self._must_wait else self.deliveries.available.pop(now_ms, command.lowest_priority, limit)
            if popped is None:
                break
            examined += popped.end - popped.start
            if not self._examine_all(popped, command, now_ms, findings):
                break
        self._probe.leased += len(findings.leased)
        return LeasedMessages(tuple(findings.leased)), findings.all_records(self._subscription.id)

    def acknowledge(self, targets: Sequence[Target], now_ms: int) -> tuple[Settled, list[LogRecord]]:
        """Settle messages as done. A repeated ack succeeds; with exactly-once delivery, only by the same lease."""
        results: list[RequestError | None] = []
        done: dict[int, None] = {}
        for target in targets:
            error = self._check_ack(target)
            if error is None and not self.progress.is_settled(target.offset):
                done[target.offset] = None
                if self._policy.delivery == "exactly_once" and target.lease is not None:
                    self._acks.add(target.offset, target.lease[1])  # A client that lost the response repeats the ack.
            results.append(error)
        leases = list(map(self.deliveries.leases.pop, done))
        self._probe.ack_delays.observe(map(published_ms_of, leases), now_ms)
        self._probe.acknowledged += len(done)
        if self.deliveries.keys is not None:
            for offset in done:
                self._release_next_of_key(offset)
        return tuple(results), settlement_records(self._subscription.id, Kind.SETTLED, done)

    def acknowledge_in_transaction(
        self, targets: Sequence[Target], producer: ProducerIdentity
    ) -> tuple[Settled, list[LogRecord]]:
        """Make leased messages pending in a producer's transaction, unless any of them is refused. A repeated ack
        succeeds.
        """
        results: list[RequestError | None] = []
        done: dict[int, None] = {}
        for target in targets:
            is_repeated = self.progress.pending.producer_of(target.offset) == producer
            lease = None if is_repeated else self._lease_of(target)
            if isinstance(lease, HeldLease):
                done[target.offset] = None
            results.append(lease if isinstance(lease, RequestError) else None)
        if not done or any(results):
            return tuple(results), []
        for offset in done:
            self.deliveries.pending[offset] = self.deliveries.leases.pop(offset)
        return tuple(results), pending_records(self._subscription.id, producer, ranges_of(done))

    def resolved(self, offsets: Iterable[int], now_ms: int, *, commits: bool) -> None:
        """The transaction that has acknowledged messages has ended. After an abort, their leases have ended, too."""
        published_ms: list[int] = []
        for offset in offsets:
            lease = self.deliveries.end_pending(offset)
            if commits:
                self._probe.acknowledged += 1
                if lease is not None:
                    published_ms.append(lease.published_ms)
                    if self._policy.delivery == "exactly_once":
                        self._acks.add(offset, lease.number)
                self._release_next_of_key(offset)
            elif lease is not None:
                self.deliveries.lease(offset, lease._replace(number=next(self._numbers), ends_ms=0))
        self._probe.ack_delays.observe(published_ms, now_ms)

    def retry(self, targets: Sequence[Target], delay_ms: int | None, now_ms: int) -> tuple[Settled, list[LogRecord]]:
        """Nack messages: schedule the next delivery, or dead-letter those that have reached the delivery limit."""
        results, leases = self._take_leases(targets)
        self._probe.retried += len(leases)
        return results, self._fail(leases, now_ms, delay_ms)

    def extend(self, targets: Sequence[Target], visibility_ms: int, now_ms: int) -> tuple[Settled, list[LogRecord]]:
        """Change the end of leases."""
        results: list[RequestError | None] = []
        for target in targets:
            lease = self._lease_of(target)
            if isinstance(lease, HeldLease):
                self.deliveries.lease(target.offset, lease._replace(ends_ms=now_ms + visibility_ms))
            results.append(lease if isinstance(lease, RequestError) else None)
        return tuple(results), []

    def reject(self, targets: Sequence[Target], reason: str, now_ms: int) -> tuple[Settled, list[LogRecord]]:
        """Dead-letter messages without further retries."""
        results, leases = self._take_leases(targets)
        records = [self._dead_letter(offset, lease.delivery_count, reason, now_ms) for offset, lease in leases]
        return results, records

    def release(self, targets: Sequence[Target]) -> None:
        """Undo leases as if they had not been granted."""
        _, leases = self._take_leases(targets)
        for offset, lease in leases:
            self.deliveries.available.push(offset, lease.priority, 0, lease.group)

    def move_to_dead_letters(self, offsets: Iterable[int], copies: Mapping[int, Copy]) -> list[LogRecord]:
        """Settle messages that are still dead-lettering."""
        moved = [offset for offset in offsets if self.deliveries.dead_lettering.pop(offset, None) is not None]
        self._probe.dead_lettered += len(moved)
        copied = copied_ranges({offset: copies[offset] for offset in moved if offset in copies})
        uncopied = [offset for offset in moved if offset not in copies]
        records = settlement_records(self._subscription.id, Kind.DEAD, uncopied)
        return records + copied_records(self._subscription.id, copied)

    def redeliver(self, offsets: Iterable[int], now_ms: int) -> tuple[tuple[int, ...], list[LogRecord]]:
        """Deliver dead letters again. Returns the offsets whose records no longer exist. Raises StorageFailure."""
        messages = {offset: self._source.get(offset) for offset in offsets if offset in self.progress.dead}
        restored = [message for message in messages.values() if message is not None]
        for message in restored:
            if message.offset in self.deliveries.expired_in_place:
                self.deliveries.expired_in_place.discard(message.offset)
            elif message.offset < self.deliveries.scanned_offset:
                self._put_back(message, now_ms)
        missing = tuple(offset for offset, message in messages.items() if message is None)
        return missing, settlement_records(self._subscription.id, Kind.RESTORED, [found.offset for found in restored])

    def drop_dead_letters(self, offsets: Iterable[int]) -> list[LogRecord]:
        dead = [offset for offset in offsets if offset in self.progress.dead]
        return settlement_records(self._subscription.id, Kind.DROPPED, dead)

    def cancelled(self, offset: int) -> None:
        """Remove a withheld message that was cancelled for all subscriptions."""
        if not self.progress.is_settled(offset):
            self.deliveries.cancel(offset)
            self._release_next_of_key(offset)

    def expire(self, now_ms: int) -> list[LogRecord]:
        """Handle passed deadlines: withheld messages that are due, expired messages, ended leases. After StillPacked,
        call again once the source has the batch.
        """
        for offset, priority, due_ms in self.deliveries.pop_due(now_ms, _ENDED_AT_ONCE):
            try:
                group = self._group_at(offset)
            except StillPacked:
                self.deliveries.withhold(offset, due_ms, priority)
                raise
            self.deliveries.available.push(offset, priority, due_ms, group)
        records = self._expire_overdue(now_ms)
        ended = self.deliveries.pop_ended(now_ms, _ENDED_AT_ONCE)
        self._probe.expired += len(ended)
        return records + self._fail(ended, now_ms, 0) if ended else records

    def _expire_overdue(self, now_ms: int) -> list[LogRecord]:
        """Expire messages past their time to live, even if no consumer leases."""
        findings = Findings(self.selection.filter)
        overdue = self.deliveries.pop_overdue(now_ms, _OVERDUE_AT_ONCE)
        while findings.has_budget() and (offset := next(overdue, None)) is not None:
            if self.progress.is_settled(offset) or offset in self.deliveries.dead_lettering:
                continue
            if self.selection.fault is not None:  # Without a valid filter the message stays unsettled.
                continue
            try:
                message = self._source.get(offset)
            except StillPacked:
                self.deliveries.expire_at(offset, 0)  # Ahead of the others, while the cache has its batch.
                if not findings:
                    raise
                break
            except StorageFailure:  # A lease of the message reports the failure.
                continue
            if message is None:
                findings.settled.append(offset)
            elif self._is_wanted(message, read_attributes(message.headers, message.timestamp_ms), now_ms, findings):
                continue
            elif offset in self.deliveries.dead_lettering:
                self.deliveries.expired_in_place.add(offset)
            self._release_next_of_key(offset)
        return findings.all_records(self._subscription.id)

    @property
    def _policy(self) -> Policy:
        return self._subscription.policy

    @property
    def _held_count(self) -> int:
        return len(self.deliveries.leases) + len(self.progress.pending)

    @property
    def _must_wait(self) -> bool:
        """Whether so many messages wait behind others of their key that only returned messages may be leased."""
        keys = self.deliveries.keys
        is_full = keys is not None and keys.waiting_count >= _MAX_WAITING
        return is_full and not self.deliveries.available.has_returned

    def _configure(self, subscription: Subscription) -> None:
        self.deliveries.policy = subscription.policy
        if subscription.policy.delivery != "exactly_once":
            self._acks.clear()

    def _examine_all(self, popped: Popped, command: LeaseMessages, now_ms: int, findings: Findings) -> bool:
        """Examine adjacent messages and return the rest to `available`. Returns whether to continue. Raises
        StorageFailure.
        """
        reached = popped.start
        ends_ms = now_ms + command.visibility_ms
        try:
            while reached < popped.end and findings.has_budget(command.max_bytes):
                self._examine(reached, popped, ends_ms, now_ms, findings)
                reached += 1
        except StorageFailure:
            if not findings:
                raise
            return False
        finally:
            for offset in range(reached, popped.end):
                self.deliveries.available.push(offset, popped.priority, now_ms, popped.group)
        return True

    def _examine(self, offset: int, popped: Popped, ends_ms: int, now_ms: int, findings: Findings) -> None:
        if self.progress.is_settled(offset) or offset in self.deliveries.dead_lettering:
            self.deliveries.expired_in_place.discard(offset)
            return self._release_next_of_key(offset)
        message = self._source.get(offset)
        if message is None:
            findings.settled.append(offset)
            return self._release_next_of_key(offset)
        if offset in self.progress.pending:
            return self._hold_pending(message, popped)
        attributes = read_attributes(message.headers, message.timestamp_ms) if message.headers else PLAIN
        if attributes.unreadable and offset not in self.progress.attempts:
            self.selection.count_unreadable(message, attributes.unreadable)
        is_selected = message.headers or self.selection.filter is not None
        if is_selected and not self._is_wanted(message, attributes, now_ms, findings):
            return self._release_next_of_key(offset)
        if self.deliveries.keys is not None:
            if not self.deliveries.keys.admit(offset, message.key):
                return
            attempt = self.progress.attempts.get(offset)
            due_ms = attributes.due_ms if attempt is None else attempt.due_ms
            if due_ms > now_ms:
                return self.deliveries.withhold(offset, due_ms, popped.priority)
        self._lease(message, popped, ends_ms, findings)

    def _block_keys_of_pending(self) -> None:
        """With key order, let messages wait behind those that were pending when these deliveries began. Raises
        StorageFailure.
        """
        keys = self.deliveries.keys
        if keys is None or self.deliveries.has_blocked_pending_keys:
            return
        for offset in self.progress.pending:
            message = self._source.get(offset)
            if message is not None and not keys.is_behind(offset, message.key):
                keys.admit(offset, message.key)
        self.deliveries.has_blocked_pending_keys = True

    def _hold_pending(self, message: Message, popped: Popped) -> None:
        """Keep a message that a transaction had acknowledged when these deliveries began."""
        offset = message.offset
        if self.deliveries.keys is not None and not self.deliveries.keys.admit(offset, message.key):
            return
        count = self.progress.deliveries_of(offset) + 1
        self.deliveries.pending[offset] = HeldLease(
            next(self._numbers), 0, count, popped.priority, popped.group, message.timestamp_ms
        )

    def _is_wanted(self, message: Message, attributes: MessageAttributes, now_ms: int, findings: Findings) -> bool:
        """Return whether to deliver a message. If not, `findings` gets its settlement."""
        offset = message.offset
        fate, reason = self.selection.verdict(message, attributes, now_ms)
        match fate:
            case Fate.SKIP:
                findings.settled.append(offset)
            case Fate.EXPIRE:
                findings.expired.append(offset)
            case Fate.DEAD_LETTER:
                findings.records.append(self._dead_letter(offset, self.progress.deliveries_of(offset), reason, now_ms))
        return fate is Fate.DELIVER

    def _lease(self, message: Message, popped: Popped, ends_ms: int, findings: Findings) -> None:
        offset, number = message.offset, next(self._numbers)
        delivery_count = self.progress.deliveries_of(offset) + 1
        if self._policy.delivery == "at_most_once":
            findings.settled.append(offset)
            self._release_next_of_key(offset)
        else:
            if message.timestamp_ms != findings.published_ms:
                findings.published_ms = message.timestamp_ms
            lease = HeldLease(number, ends_ms, delivery_count, popped.priority, popped.group, findings.published_ms)
            self.deliveries.lease(offset, lease)
        findings.bytes += message.weight_bytes
        findings.leased.append(LeasedMessage(message, self._incarnation, number, ends_ms, delivery_count))

    def _check_ack(self, target: Target) -> RequestError | None:
        if target.offset in self.deliveries.leases or not self.progress.is_settled(target.offset):
            lease = self._lease_of(target)
            return lease if isinstance(lease, RequestError) else None
        if target.offset in self.progress.dead:
            return lease_lost("the message is a dead letter: redrive or drop it")
        if self._policy.delivery != "exactly_once":
            return None
        if target.lease is None:
            return lease_unnamed()
        if target.lease == (self._incarnation, self._acks.lease_number(target.offset)):
            return None
        return lease_lost("the message was settled by another lease, or by one that a restarted broker has forgotten")

    def _lease_of(self, target: Target) -> HeldLease | RequestError:
        """Return the lease of a target. With exactly-once delivery, a message id does not identify a lease."""
        if target.lease is None and self._policy.delivery == "exactly_once":
            return lease_unnamed()
        lease = self.deliveries.leases.get(target.offset)
        if lease is None:
            is_new = target.lease is None and target.offset >= self.deliveries.scanned_offset
            if is_new and self._source.get(target.offset) is None:
                return no_message(target.offset)
            if self.progress.is_settled(target.offset):
                return lease_lost("the message is settled already")
            if target.offset in self.progress.pending:
                return lease_lost("an open transaction has acknowledged the message")
            if target.lease is None:
                return lease_lost("the message is not leased: its lease has ended, or it was never leased")
            return lease_lost("the lease has ended: the message will be delivered again")
        if target.lease is not None and target.lease != (self._incarnation, lease.number):
            return lease_lost("the lease has ended, and the message was leased again")
        return lease

    def _take_leases(self, targets: Sequence[Target]) -> tuple[Settled, list[tuple[int, HeldLease]]]:
        """Remove the valid leases of the targets. A message that is targeted twice counts once."""
        leases_or_errors = [self._lease_of(target) for target in targets]
        leases = {
            target.offset: lease
            for target, lease in zip(targets, leases_or_errors, strict=True)
            if isinstance(lease, HeldLease)
        }
        for offset in leases:
            del self.deliveries.leases[offset]
        errors = tuple(entry if isinstance(entry, RequestError) else None for entry in leases_or_errors)
        return errors, list(leases.items())

    def _fail(self, leases: Iterable[tuple[int, HeldLease]], now_ms: int, delay_ms: int | None) -> list[LogRecord]:
        attempts: list[tuple[int, Attempt]] = []
        records: list[LogRecord] = []
        for offset, lease in leases:
            limit = self._policy.max_deliveries
            if limit and lease.delivery_count >= limit:
                reason = f"delivered {lease.delivery_count} times"
                records.append(self._dead_letter(offset, lease.delivery_count, reason, now_ms))
                continue
            wait_ms = delay_ms
            if wait_ms is None:
                wait_ms = retry_delay_ms(self._policy.retry, lease.delivery_count, self._fraction())
            attempt = Attempt(
                lease.delivery_count, self.progress.first_failure_ms(offset, now_ms), now_ms, now_ms + wait_ms
            )
            attempts.append((offset, attempt))
            self.deliveries.retry(offset, attempt, lease.priority, lease.group, now_ms)
        return [failed(self._subscription.id, attempts), *records] if attempts else records

    def _dead_letter(self, offset: int, deliveries: int, reason: str, now_ms: int) -> LogRecord:
        attempt = Attempt(deliveries, self.progress.first_failure_ms(offset, now_ms), now_ms, now_ms, reason)
        self.deliveries.dead_lettering[offset] = attempt
        self._release_next_of_key(offset)
        return dead_lettering(self._subscription.id, offset, attempt)

    def _put_back(self, message: Message, now_ms: int) -> None:
        attributes = read_attributes(message.headers, message.timestamp_ms)
        group = group_of(message, self._policy.fair_by)
        if self.deliveries.keys is not None:
            self.deliveries.available.push(message.offset, DEFAULT_PRIORITY, 0)
        else:
            attempt = Attempt(0, now_ms, now_ms, attributes.due_ms)
            self.deliveries.retry(message.offset, attempt, attributes.priority, group, now_ms)

    def _group_at(self, offset: int) -> str:
        if self._policy.fair_by is None:
            return NO_GROUP
        try:
            message = self._source.get(offset)
        except StillPacked:
            raise
        except StorageFailure:  # An unreadable message needs no fairness group.
            return NO_GROUP
        return NO_GROUP if message is None else group_of(message, self._policy.fair_by)

    def _release_next_of_key(self, offset: int) -> None:
        if self.deliveries.keys is not None:
            following = self.deliveries.keys.settled(offset)
            if following is not None:
                self.deliveries.available.push(following, DEFAULT_PRIORITY, 0)
