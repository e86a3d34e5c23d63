"""The delivery guarantees of a subscription: how often a message may be delivered, and which acks count."""

from collections import OrderedDict
from collections.abc import Mapping
from itertools import count
from typing import ClassVar

from conveyor.kernel.errors import RequestError
from conveyor.queues.delivery.held_leases import Lease
from conveyor.queues.delivery.memory_budget import MemoryBudget
from conveyor.queues.queue_commands import Target
from conveyor.queues.refusals import lease_lost, lease_unnamed
from conveyor.queues.subscription.policy import Policy


class LeaseRegister:
    """The identities of one queue's leases, and which of them acknowledged a message. incarnation: of the machine.

    All queues of a broker share one budget of remembered acks, about 170 bytes each.
    """

    def __init__(self, incarnation: int, budget: MemoryBudget) -> None:
        self.incarnation = incarnation
        self.numbers = count(1)
        """Numbers for new leases."""
        self._budget = budget
        self._acknowledged: OrderedDict[int, int] = OrderedDict()

    def remember(self, offset: int, number: int) -> None:
        """Store the number of the lease that acknowledged a message."""
        is_new = self._acknowledged.pop(offset, None) is None
        self._acknowledged[offset] = number
        if is_new:
            self._budget.add(self, 1)

    def has_acknowledged(self, offset: int, lease: tuple[int, int] | None) -> bool:
        """Return whether a lease is remembered as the one that acknowledged a message."""
        return lease == (self.incarnation, self._acknowledged.get(offset))

    def forget_acks(self) -> None:
        self._acknowledged.clear()
        self._budget.forget(self)

    def shed(self) -> int:
        """Drop the oldest ack."""
        self._acknowledged.popitem(last=False)
        return 1


class AtLeastOnce:
    """A message is delivered until it is acknowledged. A repeated ack succeeds.

    settles_at_once: a message is settled with its delivery, so that no lease remains.
    needs_lease: a message is settled by its lease only, because another consumer may hold the lease by now.
    """

    settles_at_once: ClassVar[bool] = False
    needs_lease: ClassVar[bool] = False

    def acknowledged(self, leases: Mapping[int, Lease]) -> None:
        """Messages are acknowledged by these leases."""

    def repeated(self, target: Target) -> RequestError | None:
        """Return the error for an ack of a message that is settled already."""
        return None


class AtMostOnce(AtLeastOnce):
    """A message is delivered once, or lost with the response."""

    settles_at_once = True


class ExactlyOnce(AtLeastOnce):
    """A client that lost the response to an ack may repeat it by the same lease while the ack is remembered. Later the
    repetition is refused, although the message stays settled.
    """

    needs_lease = True

    def __init__(self, register: LeaseRegister) -> None:
        self._register = register

    def acknowledged(self, leases: Mapping[int, Lease]) -> None:
        for offset, lease in leases.items():
            self._register.remember(offset, lease.number)

    def repeated(self, target: Target) -> RequestError | None:
        if target.lease is None:
            return lease_unnamed()
        if self._register.has_acknowledged(target.offset, target.lease):
            return None
        return lease_lost("the message was settled by another lease, or by one that a restarted broker has forgotten")


def guarantee_of(policy: Policy, register: LeaseRegister) -> AtLeastOnce:
    """Return the guarantee of a policy. Any but exactly-once delivery forgets the remembered acks."""
    if policy.delivery == "exactly_once":
        return ExactlyOnce(register)
    register.forget_acks()
    return AtMostOnce() if policy.delivery == "at_most_once" else AtLeastOnce()
