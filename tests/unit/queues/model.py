"""A subscription modelled as a plain dict of messages, for comparison with the machine in a property test."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import ProducerIdentity
from conveyor.queues.delivery.backoff import retry_delay_ms
from conveyor.queues.messages.dead_copies import Copy, CopyLog
from conveyor.queues.queue_commands import LeasedMessage, Target
from conveyor.queues.queue_machine import QueueMachine
from conveyor.queues.subscription.policy import Policy
from conveyor.queues.subscription.subscription_progress import Progress
from tests.unit.queues import stage

COPY_LOGS = [CopyLog(UUID(int=1), 0), CopyLog(UUID(int=1), 1), CopyLog(UUID(int=2), 0)]
Hard = tuple[bool, bool, bool, bool, bool, int, int, Copy | None, ProducerIdentity | None]
"""The hard state of one message: whether it is cancelled, settled, a dead letter, dead-lettering, to be redelivered
from the dead letters; its failed deliveries; its next due time; the position of its copy; the producer for which it is
pending.
"""


@dataclass(slots=True)
class Known:
    """One message: its attributes and its state. wanted: the filter's result, `yes`, `no` or `fail`."""

    offset: int
    key: bytes | None
    priority: int
    due_ms: int
    expires_ms: int
    wanted: str
    group: str
    settled: bool = False
    dead: bool = False
    dead_lettering: bool = False
    cancelled: bool = False
    restored: bool = False
    deliveries: int = 0
    retry_ms: int = 0
    lease: LeasedMessage | None = None
    came_back: bool = False
    copy: Copy | None = None
    pending: ProducerIdentity | None = None
    expired: tuple[int, int] | None = None
    """The last lease, if it has expired and the message was not leased again."""
    failed_before: int = 0
    """The failed deliveries before the message was settled."""

    @property
    def hard(self) -> Hard:
        is_waiting = self.deliveries > 0 and not self.dead_lettering
        flags = self.cancelled, self.settled, self.dead, self.dead_lettering, self.restored
        copy = self.copy if self.dead else None
        return *flags, self.deliveries, self.retry_ms if is_waiting else 0, copy, self.pending

    @property
    def is_open(self) -> bool:
        return not self.settled and not self.dead_lettering

    def is_due(self, now_ms: int) -> bool:
        return (self.retry_ms if self.deliveries else self.due_ms) <= now_ms

    def is_expired(self, now_ms: int) -> bool:
        return 0 < self.expires_ms <= now_ms and not self.restored

    def settle(self) -> None:
        self.failed_before = self.deliveries
        self.settled, self.dead_lettering, self.restored, self.deliveries, self.lease = True, False, False, 0, None
        self.pending = self.expired = None


class QueueModel:
    """See the module's docstring."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.messages: dict[int, Known] = {}
        self.remembered: dict[int, tuple[int, int] | None] = {}
        self.pending_leases: dict[int, tuple[int, int] | None] = {}
        self.fraction = 0.5

    def __iter__(self) -> Iterator[Known]:
        return iter(self.messages.values())

    @property
    def leased(self) -> list[Known]:
        return [message for message in self if message.lease is not None]

    def copy(self) -> "dict[int, Known]":
        return {offset: replace(message) for offset, message in self.messages.items()}

    def hard(self) -> dict[int, Hard]:
        return {message.offset: message.hard for message in self}

    def lease_refused(self, target: Target) -> ErrorKind | None:
        """Return why a lease cannot be changed; None if it can be."""
        if target.lease is None and self.policy.delivery == "exactly_once":
            return ErrorKind.INVALID_ACK_ID
        known = self.messages.get(target.offset)
        if known is None and target.lease is None:
            return ErrorKind.UNKNOWN_MESSAGE
        lease = None if known is None else known.lease
        if lease is None or target.lease not in (None, stage.target(lease).lease):
            return ErrorKind.LEASE_LOST
        return None

    def acknowledge(self, targets: Sequence[Target], accepts_late: bool = False) -> list[ErrorKind | None]:
        results = [self._acknowledgement_refused(target, accepts_late) for target in targets]
        for target, refused in zip(targets, results, strict=True):
            known = self.messages.get(target.offset)
            if refused is None and known is not None and not known.settled:
                known.settle()
        for target, refused in zip(targets, results, strict=True):
            if refused is None and target.lease is not None and self.policy.delivery == "exactly_once":
                self.remembered[target.offset] = target.lease
        return results

    def acknowledge_in_transaction(
        self, targets: Sequence[Target], producer: ProducerIdentity
    ) -> list[ErrorKind | None]:
        repeated = {message.offset for message in self if message.pending == producer}
        results = [None if target.offset in repeated else self.lease_refused(target) for target in targets]
        for target in () if any(results) else targets:
            known = self.messages[target.offset]
            if known.lease is not None:
                self.pending_leases[target.offset] = stage.target(known.lease).lease
            known.lease, known.pending = None, producer
        return results

    def end_transaction(self, producer: ProducerIdentity, *, commits: bool) -> list[Known]:
        """Returns the messages that were pending."""
        ended = [message for message in self if message.pending == producer]
        for message in ended:
            message.pending = None
            lease = self.pending_leases.pop(message.offset, None)
            if commits:
                message.settle()
            if commits and lease is not None and self.policy.delivery == "exactly_once":
                self.remembered[message.offset] = lease
        return ended

    def _acknowledgement_refused(self, target: Target, accepts_late: bool) -> ErrorKind | None:
        known = self.messages.get(target.offset)
        is_late = known is not None and known.expired is not None and known.expired == target.lease
        if accepts_late and is_late and self.policy.delivery != "exactly_once":
            return None
        if known is None or not known.settled:
            return self.lease_refused(target)
        if known.dead:
            return ErrorKind.LEASE_LOST
        if self.policy.delivery != "exactly_once":
            return None
        if target.lease is None:
            return ErrorKind.INVALID_ACK_ID
        return None if self.remembered.get(target.offset) == target.lease else ErrorKind.LEASE_LOST

    def held(self, targets: Sequence[Target]) -> tuple[list[ErrorKind | None], list[Known]]:
        """Return the answer for each target, and the messages with valid leases."""
        results = [self.lease_refused(target) for target in targets]
        offsets = {target.offset for target, refused in zip(targets, results, strict=True) if refused is None}
        return results, [self.messages[offset] for offset in sorted(offsets)]

    def fail(self, known: Known, now_ms: int, delay_ms: int | None) -> None:
        assert known.lease is not None
        known.deliveries = known.lease.delivery_count
        known.lease = None
        limit = self.policy.max_deliveries
        if limit and known.deliveries >= limit:
            known.dead_lettering = True
            return
        if delay_ms is None:
            delay_ms = retry_delay_ms(self.policy.retry, known.deliveries, self.fraction)
        known.retry_ms = now_ms + delay_ms

    def reject(self, known: Known) -> None:
        assert known.lease is not None
        known.deliveries = known.lease.delivery_count
        known.lease, known.dead_lettering = None, True

    def pass_time(self, before_ms: int, now_ms: int) -> None:
        for message in self.leased:
            assert message.lease is not None
            lease = message.lease
            if lease.expires_ms <= now_ms:
                self.fail(message, max(lease.expires_ms, before_ms), 0)
                message.expired = None if message.dead_lettering else stage.target(lease).lease

    def seek(self, offset: int) -> int:
        """Seek. Returns the number of messages that this settles."""
        unsettled = sum(not message.settled for message in self if message.offset < offset)
        for message in self:
            dead = message.dead
            message.settle()
            if message.offset < offset:
                message.dead = dead
            else:
                message.dead, message.settled = False, message.cancelled
        self.forget_leases()
        return unsettled

    def forget_leases(self) -> None:
        """Lose the soft state: leases, and the order of returned messages."""
        self.pending_leases = {}
        for message in self:
            message.lease, message.came_back, message.expired = None, False, None

    def has_settled_rightly(self, known: Known, now_ms: int) -> bool:
        """Return whether a search may have settled this message: it has expired, or the filter rejects it."""
        if known.is_expired(now_ms) and self.policy.on_expiry == "drop":
            return True
        return self._is_filtered(known, "skip")

    def has_dead_lettered_rightly(self, known: Known, now_ms: int) -> bool:
        if known.is_expired(now_ms) and self.policy.on_expiry == "drop":
            return False
        if known.wanted == "fail" and self._is_filtered(known, "dead_letter"):
            return True
        return known.is_expired(now_ms) and not self._is_filtered(known, "skip")

    def may_lease(self, known: Known, now_ms: int) -> bool:
        """Return whether a message may be leased, apart from key order and delivery order."""
        is_held = known.lease is not None or known.pending is not None
        is_free = known.is_open and not is_held and known.is_due(now_ms) and not known.is_expired(now_ms)
        return is_free and not self._is_filtered(known, "skip") and not self._is_filtered(known, "dead_letter")

    def _is_filtered(self, known: Known, on_error: str) -> bool:
        if self.policy.filter is None or known.deliveries or known.wanted == "yes":
            return False
        return known.wanted == "no" or self.policy.on_filter_error == on_error

    def is_first_of_key(self, known: Known, together: Collection[int] = ()) -> bool:
        """Return whether a message is the next one of its key, behind those that were leased together with it. A
        returned message may be behind a later one.
        """
        if self.policy.ordering != "key" or known.key is None:
            return True
        others = [other for other in self if other.key == known.key and other.is_open and other is not known]
        batch = [other for other in others if other.offset in together]
        others = [other for other in others if other.offset not in together]
        if any(other.lease is not None or other.pending is not None for other in others):
            return False
        if batch and len(batch) >= self.policy.max_in_flight_per_key:
            return False
        return any(message.came_back for message in (known, *others, *batch)) or (
            all(message.offset > known.offset for message in others)
            and all(message.offset < known.offset for message in batch)
        )


def hard_of(machine: QueueMachine, progress: Progress, offset: int) -> Hard:
    """Return the hard state of a message in the machine."""
    attempt = progress.attempts.get(offset)
    is_dead_lettering = attempt is not None and attempt.dead_letter_reason is not None
    return (
        offset in machine.cancelled,
        progress.is_settled(offset),
        offset in progress.dead,
        is_dead_lettering,
        offset in progress.restored,
        0 if attempt is None else attempt.deliveries,
        0 if attempt is None or is_dead_lettering else attempt.due_ms,
        copy_of(progress, offset),
        progress.pending.producer_of(offset),
    )


def copy_of(progress: Progress, offset: int) -> Copy | None:
    """Return the position of a dead letter's copy."""
    found = [copied for copied in progress.copies.ranges() if copied.start <= offset < copied.end]
    assert len(found) < 2
    return Copy(found[0].log, found[0].copy_offset + offset - found[0].start) if found else None


def kinds(results: object) -> list[ErrorKind | None]:
    assert isinstance(results, tuple)
    return [result.kind if isinstance(result, RequestError) else None for result in results]
