"""Finds the leases that a command names, and refuses those that have ended. Changes nothing."""

from collections.abc import Sequence

from conveyor.kernel.errors import RequestError
from conveyor.log.record_source import MessageSource
from conveyor.queues.delivery.deliveries import Deliveries
from conveyor.queues.delivery.guarantees import AtLeastOnce, LeaseRegister
from conveyor.queues.delivery.held_leases import Lease
from conveyor.queues.queue_commands import Acknowledge, ChangeLeases, Release, Settled, SettleMessages, Target
from conveyor.queues.refusals import lease_lost, lease_unnamed, no_message
from conveyor.queues.subscription.subscription_progress import Progress

FoundLease = Lease | RequestError | None
"""The lease of a target, or why there is none; None if the target needs none, because it succeeds already."""


class TargetLeases:
    """See the module's docstring. guarantee: of the subscription's current policy."""

    def __init__(
        self,
        deliveries: Deliveries,
        progress: Progress,
        source: MessageSource,
        register: LeaseRegister,
        guarantee: AtLeastOnce,
    ) -> None:
        self._deliveries = deliveries
        self._progress = progress
        self._source = source
        self._register = register
        self._guarantee = guarantee

    def of(self, command: SettleMessages | Release) -> tuple[Settled, dict[int, Lease]]:
        """Return the result for each target, and the valid leases."""
        accepts_late = isinstance(command, ChangeLeases) and command.accepts_late
        find = self._find_current if accepts_late else self.find
        return divided(command.targets, list(map(find, command.targets)))

    def to_acknowledge(self, command: Acknowledge) -> tuple[Settled, dict[int, Lease]]:
        """Return the result for each target of an ack, and the leases by which it settles messages."""
        find = self._find_to_acknowledge_late if command.accepts_late else self._find_to_acknowledge
        return divided(command.targets, list(map(find, command.targets)))

    def find(self, target: Target) -> Lease | RequestError:
        """Return the lease of a target, or why it has none."""
        if target.lease is None and self._guarantee.needs_lease:
            return lease_unnamed()
        lease = self._deliveries.leases.get(target.offset)
        if lease is None:
            if target.lease is None and target.offset >= self._source.log_end_offset:
                return no_message(target.offset)
            if self._progress.is_settled(target.offset):
                return lease_lost("the message is settled already")
            if target.offset in self._progress.pending:
                return lease_lost("an open transaction has acknowledged the message")
            if target.lease is None:
                return lease_lost("the message is not leased: its lease has ended, or it was never leased")
            return lease_lost("the lease has ended: the message will be delivered again")
        if target.lease is not None and target.lease != (self._register.incarnation, lease.number):
            return lease_lost("the lease has ended, and the message was leased again")
        return lease

    def _find_current(self, target: Target) -> FoundLease:
        """See `ChangeLeases.accepts_late`."""
        offset = target.offset
        if self._guarantee.needs_lease:
            return self.find(target)
        lease = self._deliveries.leases.get(offset)
        is_over = offset >= self._source.log_end_offset or self._progress.is_settled(offset)
        if lease is None and (is_over or offset in self._progress.pending):
            return self.find(target)
        return lease

    def _find_to_acknowledge(self, target: Target) -> FoundLease:
        """Return the lease of a target; None if the ack is repeated and succeeds."""
        offset = target.offset
        if offset in self._deliveries.leases or not self._progress.is_settled(offset):
            return self.find(target)
        if offset in self._progress.dead:
            return lease_lost("the message is a dead letter: redrive or drop it")
        return self._guarantee.repeated(target)

    def _find_to_acknowledge_late(self, target: Target) -> FoundLease:
        """See `Acknowledge.accepts_late`."""
        found = self._find_to_acknowledge(target)
        if not isinstance(found, RequestError) or target.lease is None or self._guarantee.needs_lease:
            return found
        lease = self._deliveries.ended.expired(target.offset)
        is_last = lease is not None and target.lease == (self._register.incarnation, lease.number)
        return lease if is_last and not self._progress.is_settled(target.offset) else found


def divided(targets: Sequence[Target], found: Sequence[FoundLease]) -> tuple[Settled, dict[int, Lease]]:
    """Return the result for each target, and the leases by offset. A message that is targeted twice counts once."""
    results: list[RequestError | None] = []
    leases: dict[int, Lease] = {}
    for target, lease in zip(targets, found, strict=True):
        if isinstance(lease, Lease):
            leases[target.offset] = lease
            results.append(None)
        else:
            results.append(lease)
    return tuple(results), leases
