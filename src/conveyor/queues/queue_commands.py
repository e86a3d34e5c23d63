"""The commands of a queue machine, which owns one partition, and their replies."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

import msgspec

from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import ProducerIdentity
from conveyor.kernel.state_machine import Answer_co, Command
from conveyor.queues.delivery.ack_delays import AckDelays
from conveyor.queues.messages.dead_copies import Copy
from conveyor.queues.subscription.policy import MAX_IN_FLIGHT_PER_KEY, Subscription
from conveyor.records.message import Message

MAX_REASON_CHARACTERS = 200
"""Of a rejection: each of its dead letters stores the reason, in up to four bytes a character."""


class QueueCommand(Command[Answer_co], frozen=True):
    """A command of a queue machine."""


class SubscriptionCommand(QueueCommand[Answer_co], frozen=True, kw_only=True):
    """A command for one subscription."""

    subscription: UUID


class LeasedMessage(NamedTuple):
    """A leased message, as queue clients see it. ack_id: identifies the lease.

    first_delivered_ms: when the message was first leased, or a later time if the leader has forgotten that: the first
    failure of a delivery, or this delivery.
    """

    ack_id: str
    message: Message
    delivery_count: int
    expires_ms: int
    first_delivered_ms: int = 0


class Target(NamedTuple):
    """One message to settle. lease: (incarnation, number) of the lease; None for the message's current lease."""

    offset: int
    lease: tuple[int, int] | None = None


Settled = tuple[RequestError | None, ...]


class PutSubscription(QueueCommand[None], frozen=True, kw_only=True):
    """Create a subscription, which its first `SeekSubscription` starts, or change its policy. Replies None."""

    subscription: Subscription


class ForgetSubscription(QueueCommand[None], frozen=True, kw_only=True):
    """Delete a subscription's state. Replies None."""

    subscription: UUID


class SeekSubscription(SubscriptionCommand[int], frozen=True, kw_only=True):
    """Set a subscription's start: messages below the offset count as settled, all others as new.

    Replies the number of messages that this settles. begins: the subscription is new, so this changes nothing once it
    has a start, because its messages may be settled already.
    """

    offset: int
    begins: bool = False

    @property
    def is_repeatable(self) -> bool:
        """Messages may have been acknowledged since the first seek."""
        return self.begins


class LeaseMessages(SubscriptionCommand[list[LeasedMessage]], frozen=True, kw_only=True):
    """Lease up to `count` messages. Replies them in delivery order.

    visibility_ms: the visibility timeout.
    max_bytes: messages that exceed it are not leased, except a single one if `at_least_one`.
    lowest_priority: messages below this priority are not leased. max_per_key: the most messages of one key with key
    order, if the policy permits as many. caller, client_id: see `Consumer`.
    """

    count: int
    max_bytes: int
    visibility_ms: int
    at_least_one: bool = True
    max_per_key: int = MAX_IN_FLIGHT_PER_KEY
    lowest_priority: int = 0
    caller: Caller | None = None
    client_id: str = ""


class SettleMessages(SubscriptionCommand[Settled], frozen=True, kw_only=True):
    """A command that settles messages or changes their leases. Replies one RequestError or None per target, in
    order.
    """

    targets: tuple[Target, ...]

    @property
    def is_repeatable(self) -> bool:
        """Without its name, the lease may be that of another consumer by now."""
        return all(target.lease is not None for target in self.targets)


class Acknowledge(SettleMessages, frozen=True, kw_only=True):
    """Acknowledge messages.

    accepts_late: whether the ack of a lease that has expired settles its message. It does if the lease is the last one
    that the leader has granted of the message, and the message is not on its way to the dead-letter topic. With
    exactly-once delivery it never does.
    """

    accepts_late: bool = False

    @property
    def is_repeatable(self) -> bool:
        """An acknowledged message is leased again only after a seek, which takes the first ack back."""
        return True


class AcknowledgeInTransaction(SettleMessages, frozen=True, kw_only=True):
    """Acknowledge messages in a producer's transaction: they are settled once it commits. All of them or none."""

    producer: ProducerIdentity

    @property
    def is_repeatable(self) -> bool:
        """A pending message is not leased again, unless the transaction is aborted, which fences the producer."""
        return True


class ChangeLeases(SettleMessages, frozen=True, kw_only=True):
    """A command that ends leases, or changes their ends.

    accepts_late: whether a lease that has ended stands for the current one of its message. Without a current one the
    command succeeds and has no effect, unless the message is settled. With exactly-once delivery it never does.
    """

    accepts_late: bool = False

    @property
    def is_repeatable(self) -> bool:
        return not self.accepts_late and super().is_repeatable


class NackMessages(ChangeLeases, frozen=True, kw_only=True):
    """Report failed deliveries. delay_ms: the time until the next delivery; None for the subscription's backoff."""

    delay_ms: int | None


class Extend(ChangeLeases, frozen=True, kw_only=True):
    """Change the visibility timeout of leases, counted from now."""

    visibility_ms: int


class Reject(SettleMessages, frozen=True, kw_only=True):
    """Move messages to the dead-letter topic without further retries. Raises RequestError (INVALID_REQUEST)."""

    reason: str

    def __post_init__(self) -> None:
        length = len(self.reason)
        if length > MAX_REASON_CHARACTERS:
            message = f"a reason of {length} characters: use at most {MAX_REASON_CHARACTERS}"
            raise RequestError(ErrorKind.INVALID_REQUEST, message)


class Release(SubscriptionCommand[None], frozen=True, kw_only=True):
    """Undo leases whose response reached no client, as if they had not been granted. Replies None.

    delay_ms: the time until the messages may be leased again.
    """

    targets: tuple[Target, ...]
    delay_ms: int = 0


class MoveToDeadLetters(SubscriptionCommand[None], frozen=True, kw_only=True):
    """Settle dead-lettered messages after they were copied to the dead-letter topic. Replies None.

    copies: the copies' positions. A message that could not be read has none.
    """

    offsets: tuple[int, ...]
    copies: Mapping[int, Copy] = msgspec.field(default_factory=dict)


class Redelivered(msgspec.Struct, frozen=True, array_like=True):
    """reached_count: how many offsets of the command were dealt with, the first ones. gone: those among them whose
    records no longer exist.
    """

    reached_count: int
    gone: list[int]


class Redeliver(SubscriptionCommand[Redelivered], frozen=True, kw_only=True):
    """Deliver dead letters again, as many as one loop tick may read, at least one. Ask again for the others."""

    offsets: tuple[int, ...]

    @property
    def is_repeatable(self) -> bool:
        """Messages may be dead letters once more."""
        return False


class DropDeadLetters(SubscriptionCommand[None], frozen=True, kw_only=True):
    """Drop dead letters. Replies None."""

    offsets: tuple[int, ...]


class Cancel(QueueCommand[None], frozen=True, kw_only=True):
    """Cancel a delayed message. Replies None, also if it is cancelled already, or RequestError."""

    offset: int


class SubscriptionCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Message counts of one subscription in one partition. pending: acknowledged in open transactions."""

    unsettled: int = 0
    available: int = 0
    in_flight: int = 0
    pending: int = 0
    withheld: int = 0
    dead: int = 0


class Consumer(msgspec.Struct, frozen=True):
    """The client that holds a lease. principal: who it is, as `User:alice`. client_id: what it calls itself; may be
    empty. address: of its host.
    """

    principal: str
    client_id: str
    address: str


class MessageState(msgspec.Struct, frozen=True):
    """A message's state in one subscription: `available`, `leased`, `pending`, `delayed`, `retrying`, `waiting` (behind
    another message of its key), `dying` (on its way to the dead-letter topic), `acknowledged`, `filtered`, `expired`,
    `dead`, `dropped` (it was a dead letter) or `cancelled`. delivery_count, settled_ms: of a settled message only while
    its settlement is among the last ones; see `RecentSettlements`. consumer: of a message that is leased or pending;
    None if its lease is not known any more.
    """

    state: str
    delivery_count: int | None = 0
    due_ms: int | None = None
    consumer: Consumer | None = None
    settled_ms: int | None = None


@dataclass(slots=True)
class SubscriptionProbe:
    """Counters of one subscription, summed over all partitions of this broker."""

    leased: int = 0
    acknowledged: int = 0
    retried: int = 0
    dead_lettered: int = 0
    expired: int = 0
    filtered: int = 0
    filter_errors: int = 0
    unreadable_headers: int = 0
    ack_delays: AckDelays = field(default_factory=AckDelays)
