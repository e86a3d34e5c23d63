"""One subscription in one partition: leases its messages and settles them. Methods change soft state only.

Every decision that must survive is in the records that a method returns. The caller appends them, and `Progress`
applies them in the same loop tick.

A lease has two steps. `acquire` leases adjacent messages that are available, and reads none of them. `materialise`
reads them and gives up those that the subscription does not want, or not now.
"""

from collections.abc import Callable, Iterable
from itertools import chain, starmap

import msgspec

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.range_set import ranges_of
from conveyor.kernel.state_machine import LogRecord
from conveyor.log.record_source import MessageSource, StillPacked
from conveyor.queues.delivery.ack_id import LeaseId, encode_ack_id
from conveyor.queues.delivery.available import Popped
from conveyor.queues.delivery.backoff import retry_delay_ms
from conveyor.queues.delivery.deliveries import Deliveries
from conveyor.queues.delivery.findings import Findings
from conveyor.queues.delivery.guarantees import LeaseRegister, guarantee_of
from conveyor.queues.delivery.held_leases import Lease, published_ms_of
from conveyor.queues.delivery.selection import MessageSelection
from conveyor.queues.delivery.target_leases import TargetLeases, divided
from conveyor.queues.messages.scan import NO_GROUP, group_of
from conveyor.queues.queue_commands import (
    Acknowledge,
    AcknowledgeInTransaction,
    Extend,
    LeasedMessage,
    LeaseMessages,
    NackMessages,
    Redeliver,
    Redelivered,
    Reject,
    Release,
    SubscriptionProbe,
)
from conveyor.queues.subscription.policy import Policy, Subscription, delivery_order
from conveyor.queues.subscription.queue_records import (
    Attempt,
    Kind,
    Range,
    failed,
    pending_records,
    settlement_records,
)
from conveyor.queues.subscription.subscription_progress import Progress
from conveyor.records.message import Message
from conveyor.records.message_attributes import DEFAULT_PRIORITY, PLAIN, MessageAttributes, read_attributes

_EXAMINED_AT_ONCE = 2_000
_EXPIRED_AT_ONCE = 500
"""The deadlines of each kind after which those of the other kinds have their turn."""
_FILTER_NS_OF_A_DEADLINE = 10_000
"""The filter's estimated time, a limit, that counts as one deadline."""
_READ_AT_ONCE_BYTES = 4 << 20
"""After this size of messages that are not delivered, a command reads no more."""
_READ_AGAIN_MS = 5_000
"""After this time an overdue message that could not be read is read again."""


Decision = tuple[object, list[LogRecord]]
"""The reply to a command, and the records that it depends on."""


class Acquired(msgspec.Struct, frozen=True):
    """The ranges of offsets that were leased together, of `examined_count` offsets that were available."""

    lease: Lease
    ranges: list[Range]
    examined_count: int


class SubscriptionQueue:
    """The queue of one subscription in one partition; see the module's docstring."""

    def __init__(
        self,
        subscription: Subscription,
        progress: Progress,
        source: MessageSource,
        probe: SubscriptionProbe,
        register: LeaseRegister,
        fraction: Callable[[], float],
    ) -> None:
        self.deliveries = Deliveries(subscription, progress, probe)
        self.progress = progress
        self._subscription = subscription
        self._source = source
        self._probe = probe
        self._register = register
        self._fraction = fraction
        self.selection = MessageSelection(subscription, progress, probe)
        self._guarantee = guarantee_of(subscription.policy, register)
        self._targets = self._target_leases()

    @property
    def subscription(self) -> Subscription:
        return self._subscription

    @subscription.setter
    def subscription(self, subscription: Subscription) -> None:
        before, had_fault = self._policy, self.selection.fault is not None
        self._subscription = subscription
        self.selection.use(subscription)
        self._guarantee = guarantee_of(subscription.policy, self._register)
        self._targets = self._target_leases()
        if had_fault or delivery_order(before) != delivery_order(subscription.policy):
            self.restart()

    @property
    def has_messages(self) -> bool:
        """Whether `lease` would find a message to examine."""
        deliveries = self.deliveries
        is_open = self.selection.fault is None and self._room > 0
        return is_open and bool(deliveries.available.count and deliveries.ordering.run_limit(deliveries.available, 1))

    def restart(self) -> None:
        """Scan the log again from the subscription's start offset. All current leases are lost."""
        self.deliveries = Deliveries(self._subscription, self.progress, self._probe)
        self._targets = self._target_leases()

    def close(self) -> None:
        """Release this queue's share of the broker's budgets."""
        self._register.forget_acks()

    def lease(self, command: LeaseMessages, now_ms: int) -> Decision:
        """Lease the next messages. Raises StorageFailure; StillPacked if the next batch has to be decompressed off
        the loop first.
        """
        self.deliveries.block_keys_of_pending(self._source)
        self.deliveries.ordering.begin_call(min(self._policy.max_in_flight_per_key, command.max_per_key))
        findings = Findings(self.selection.filter, command.max_bytes, at_least_one=command.at_least_one)
        wanted = min(command.count, self._room)
        examined = 0
        while len(findings.leased) < wanted and examined < _EXAMINED_AT_ONCE and findings.has_budget():
            acquired = self.acquire(command, wanted - len(findings.leased), now_ms)
            if acquired is None:
                break
            examined += acquired.examined_count
            if not self.materialise(acquired, now_ms, findings):
                break
        self._probe.leased += len(findings.leased)
        return findings.leased, findings.all_records(self._subscription.id)

    def acquire(self, command: LeaseMessages, count: int, now_ms: int) -> Acquired | None:
        """Lease the next adjacent messages, up to a count, without reading them. None if no message is available.

        Messages that were delivered before are acquired one at a time, so all have the lease's delivery count.
        """
        available, ordering = self.deliveries.available, self.deliveries.ordering
        following = ordering.following()
        popped: Popped | None
        if following is not None:
            popped = Popped(following, following + 1, DEFAULT_PRIORITY, NO_GROUP)
        else:
            limit = ordering.run_limit(available, count)
            popped = available.pop(now_ms, command.lowest_priority, limit) if limit else None
        if popped is None:
            return None
        start, end, priority, group = popped
        delivery_count, first_ms = 1, now_ms
        attempt = self.progress.attempts.get(start)
        if attempt is not None:
            delivery_count = attempt.deliveries + 1
            first_ms = self.deliveries.ended.first_delivered_ms(start) or attempt.first_failure_ms
        number, ends_ms = next(self._register.numbers), now_ms + command.visibility_ms
        lease = Lease(number, ends_ms, delivery_count, priority, group, 0, command.caller, command.client_id, first_ms)
        return Acquired(lease, self.deliveries.acquire(start, end, lease), end - start)

    def materialise(self, acquired: Acquired, now_ms: int, findings: Findings) -> bool:
        """Read acquired messages into `findings` while it has room. Messages that are not delivered lose
        their lease, and those that were not reached are available again. Returns whether to continue. Raises
        StorageFailure.
        """
        offsets = list(chain.from_iterable(starmap(range, acquired.ranges)))
        lease, leases, reached = acquired.lease, self.deliveries.leases, 0
        incarnation = self._register.incarnation
        try:
            for offset in offsets:
                found = self._source.get(offset)
                if not findings.has_room(found):
                    break
                reached += 1
                message = self._delivered(offset, found, now_ms, findings)
                if message is None:
                    continue
                if message.timestamp_ms != lease.published_ms:
                    lease = msgspec.structs.replace(lease, published_ms=message.timestamp_ms)
                leases[offset] = lease
                if lease.delivery_count > 1:
                    self.deliveries.ended.leased(offset)
                findings.bytes += findings.next_bytes
                lease_id = LeaseId(message.partition, offset, incarnation, lease.number)
                ack_id = encode_ack_id(self._subscription.id, lease_id)
                findings.leased.append(
                    LeasedMessage(ack_id, message, lease.delivery_count, lease.ends_ms, lease.first_delivered_ms)
                )
                if self._guarantee.settles_at_once:
                    findings.settled.append(offset)
                    self._give_up(offset)
        except StorageFailure:
            if not findings:
                raise
            return False
        finally:
            for offset in offsets[reached:]:
                del leases[offset]
                self.deliveries.available.push(offset, lease.priority, now_ms, lease.group)
        return True

    def acknowledge(self, command: Acknowledge, now_ms: int) -> Decision:
        """Settle messages as done. A repeated ack succeeds; with exactly-once delivery, only by the same lease."""
        results, leases = self._targets.to_acknowledge(command)
        for offset in leases:
            if self.deliveries.leases.pop(offset, None) is None:  # It had expired.
                self.deliveries.withheld.cancel(offset)
        self._probe.ack_delays.observe(map(published_ms_of, leases.values()), now_ms)
        self._probe.acknowledged += len(leases)
        self._guarantee.acknowledged(leases)
        self.deliveries.settled(leases)
        return results, settlement_records(self._subscription.id, Kind.SETTLED, leases)

    def acknowledge_in_transaction(self, command: AcknowledgeInTransaction, now_ms: int) -> Decision:
        """Make leased messages pending in a producer's transaction, unless any of them is refused. A repeated ack
        succeeds.
        """
        pending, producer = self.progress.pending, command.producer
        found = [
            None if pending.producer_of(target.offset) == producer else self._targets.find(target)
            for target in command.targets
        ]
        results, leases = divided(command.targets, found)
        if not leases or any(results):
            return results, []
        self._end(leases)
        self.deliveries.leases.pending.update(leases)
        return results, pending_records(self._subscription.id, producer, ranges_of(leases))

    def resolved(self, offsets: Iterable[int], now_ms: int, *, commits: bool) -> None:
        """The transaction that has acknowledged messages has ended. After an abort, their leases have ended, too."""
        published_ms: list[int] = []
        for offset in offsets:
            self.deliveries.expiries.end_pending(offset)
            lease = self.deliveries.leases.pending.pop(offset, None)  # None: still among those to be leased next.
            if commits:
                self._probe.acknowledged += 1
                if lease is not None:
                    published_ms.append(lease.published_ms)
                    self._guarantee.acknowledged({offset: lease})
                self.deliveries.settled((offset,))
            elif lease is None:
                self.deliveries.returned((offset,))
            else:
                number = next(self._register.numbers)
                ended = msgspec.structs.replace(lease, number=number, ends_ms=0)
                self.deliveries.leases.grant(offset, offset + 1, ended)
        self._probe.ack_delays.observe(published_ms, now_ms)

    def retry(self, command: NackMessages, now_ms: int) -> Decision:
        """Nack messages: schedule the next delivery, or dead-letter those that have reached the delivery limit."""
        results, leases = self._targets.of(command)
        self._end(leases)
        self._probe.retried += len(leases)
        return results, self._fail(leases.items(), now_ms, command.delay_ms, is_expired=False)

    def extend(self, command: Extend, now_ms: int) -> Decision:
        """Change the end of leases."""
        results, leases = self._targets.of(command)
        for offset, lease in leases.items():
            extended = msgspec.structs.replace(lease, ends_ms=now_ms + command.visibility_ms)
            self.deliveries.leases.grant(offset, offset + 1, extended)
        return results, []

    def reject(self, command: Reject, now_ms: int) -> Decision:
        """Dead-letter messages without further retries."""
        results, leases = self._targets.of(command)
        self._end(leases)
        return results, [
            self._dead_letter(offset, lease.delivery_count, command.reason, now_ms) for offset, lease in leases.items()
        ]

    def release(self, command: Release, now_ms: int) -> Decision:
        """Undo leases as if they had not been granted."""
        _, leases = self._targets.of(command)
        self._end(leases)
        for offset, lease in leases.items():
            if command.delay_ms:
                self.deliveries.withheld.hold_back(offset, now_ms, command.delay_ms, lease.priority)
            else:
                self.deliveries.available.push(offset, lease.priority, 0, lease.group)
        self.deliveries.returned(leases)
        return None, []

    def redeliver(self, command: Redeliver, now_ms: int) -> Decision:
        """Deliver the first dead letters again, until it has read enough. Raises StorageFailure if the first one cannot
        be read.
        """
        restored: set[int] = set()
        gone: list[int] = []
        reached_count = read_bytes = 0
        try:
            for offset in command.offsets:
                if read_bytes >= _READ_AT_ONCE_BYTES:
                    break
                if offset in self.progress.dead and offset not in restored:
                    message = self._source.get(offset)
                    if message is None:
                        gone.append(offset)
                    else:
                        attributes = read_attributes(message.headers, message.timestamp_ms)
                        self.deliveries.put_back(offset, attributes, group_of(message, self._policy.fair_by), now_ms)
                        restored.add(offset)
                        read_bytes += message.weight_bytes
                reached_count += 1
        except StorageFailure:
            if not reached_count:
                raise
        records = settlement_records(self._subscription.id, Kind.RESTORED, restored)
        return Redelivered(reached_count, gone), records

    def cancelled(self, offset: int) -> None:
        """Remove a withheld message that was cancelled for all subscriptions."""
        if not self.progress.is_settled(offset):
            self.deliveries.cancel(offset)

    def expire(self, now_ms: int) -> list[LogRecord]:
        """Handle passed deadlines: withheld messages that are due, expired messages, ended leases. After StillPacked,
        call again once the source has the batch. Returns records.
        """
        for offset, priority, due_ms in self.deliveries.pop_due(now_ms, _EXPIRED_AT_ONCE):
            try:
                group = self._group_at(offset)
            except StillPacked:
                self.deliveries.withheld.add(offset, due_ms, priority)
                raise
            self.deliveries.available.push(offset, priority, due_ms, group)
        overdue = self._expire_overdue(now_ms)
        records = overdue.all_records(self._subscription.id)
        ended = self.deliveries.leases.pop_ended(now_ms, _EXPIRED_AT_ONCE)
        self._probe.expired += len(ended)
        if ended:
            records += self._fail(ended, now_ms, 0, is_expired=True)
        return records

    def _expire_overdue(self, now_ms: int) -> Findings:
        """Expire messages past their time to live, even if no consumer leases."""
        findings = Findings(self.selection.filter)
        overdue = self.deliveries.expiries.pop_overdue(now_ms, _EXPIRED_AT_ONCE)
        while findings.has_budget() and (offset := next(overdue, None)) is not None:
            if offset in self.deliveries.dead_lettering:
                continue
            if self.selection.fault is not None:  # Without a valid filter the message stays unsettled.
                continue
            try:
                message = self._source.get(offset)
            except StillPacked:
                self.deliveries.expiries.add(offset, 0)  # Ahead of the others, while the cache has its batch.
                if not findings:
                    raise
                break
            except StorageFailure:  # A lease of the message reports the failure.
                self.deliveries.expiries.add(offset, now_ms + _READ_AGAIN_MS)
                continue
            if message is None:
                findings.settled.append(offset)
            elif self._is_wanted(message, read_attributes(message.headers, message.timestamp_ms), now_ms, findings):
                continue
            elif offset in self.deliveries.dead_lettering:
                self.deliveries.dead_lettering.expired_in_place.add(offset)
            self.deliveries.settled((offset,))
        self.deliveries.expiries.work_count += int(findings.filter_ns()) // _FILTER_NS_OF_A_DEADLINE
        return findings

    def _target_leases(self) -> TargetLeases:
        return TargetLeases(self.deliveries, self.progress, self._source, self._register, self._guarantee)

    @property
    def _policy(self) -> Policy:
        return self._subscription.policy

    @property
    def _room(self) -> int:
        """The number of messages that may be leased beside those in flight."""
        policy = self._policy
        return 0 if policy.paused else policy.max_in_flight - len(self.deliveries.leases) - len(self.progress.pending)

    def _delivered(self, offset: int, message: Message | None, now_ms: int, findings: Findings) -> Message | None:
        """Return an acquired message if it is delivered now."""
        if message is None:
            findings.settled.append(offset)
            self._give_up(offset)
            return None
        ordering, leases = self.deliveries.ordering, self.deliveries.leases
        if offset in self.progress.pending:  # A transaction had acknowledged it when these deliveries began.
            lease = leases.pop(offset)
            if ordering.admit(offset, message.key):
                leases.pending[offset] = msgspec.structs.replace(lease, ends_ms=0, published_ms=message.timestamp_ms)
            return None
        attributes = read_attributes(message.headers, message.timestamp_ms) if message.headers else PLAIN
        if attributes.unreadable and offset not in self.progress.attempts:
            self.selection.count_unreadable(message, attributes.unreadable)
        is_selected = message.headers or self.selection.filter is not None
        if is_selected and not self._is_wanted(message, attributes, now_ms, findings):
            self._give_up(offset)
            return None
        if not ordering.admit(offset, message.key):
            del leases[offset]
            return None
        if ordering.is_by_offset:
            attempt = self.progress.attempts.get(offset)
            due_ms = attributes.due_ms if attempt is None else attempt.due_ms
            if due_ms > now_ms:
                self.deliveries.withheld.add(offset, due_ms, leases.pop(offset).priority)
                self.deliveries.returned((offset,))
                return None
        return message

    def _give_up(self, offset: int) -> None:
        """End the lease of a message that is settled or on its way to the dead-letter topic."""
        del self.deliveries.leases[offset]
        self.deliveries.settled((offset,))

    def _is_wanted(self, message: Message, attributes: MessageAttributes, now_ms: int, findings: Findings) -> bool:
        """Return whether to deliver a message. If not, `findings` gets its settlement."""
        offset = message.offset
        verdict = self.selection.verdict(message, attributes, now_ms)
        if verdict is Kind.SETTLED:
            findings.settled.append(offset)
        elif verdict is Kind.EXPIRED:
            findings.expired.append(offset)
        elif isinstance(verdict, str):
            findings.records.append(self._dead_letter(offset, self.progress.deliveries_of(offset), verdict, now_ms))
        return verdict is None

    def _end(self, leases: Iterable[int]) -> None:
        for offset in leases:
            del self.deliveries.leases[offset]

    def _fail(
        self, leases: Iterable[tuple[int, Lease]], now_ms: int, delay_ms: int | None, *, is_expired: bool
    ) -> list[LogRecord]:
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
            self.deliveries.ended.add(offset, lease, is_expired=is_expired)
        self.deliveries.returned([offset for offset, _ in attempts])
        return [failed(self._subscription.id, attempts), *records] if attempts else records

    def _dead_letter(self, offset: int, deliveries: int, reason: str, now_ms: int) -> LogRecord:
        self.deliveries.settled((offset,))
        return self.deliveries.dead_lettering.add(offset, deliveries, reason, now_ms)

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
