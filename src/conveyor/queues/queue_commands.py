"""What the machine of one partition is asked, and what it answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from conveyor.kernel.errors import RequestError
from conveyor.queues.messages.dead_copies import Copy
from conveyor.queues.subscription.policy import Subscription
from conveyor.records.message import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class PutSubscription:
    """A subscription that is new, and begins with its first `Seek`, or that has another policy. Replies None."""

    subscription: Subscription


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetSubscription:
    """A subscription that is deleted. Replies None."""

    subscription: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Seek:
    """Begin a subscription at an offset: what is below counts as settled, what is above as new. Replies how many
    messages that settles."""

    subscription: UUID
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseMessages:
    """Hand out up to `count` messages, for a time. Replies LeasedMessages.

    max_bytes: none is added once their values are that large. lowest_priority: nothing below it.
    """

    subscription: UUID
    count: int
    max_bytes: int
    visibility_ms: int
    lowest_priority: int = 0


class Target(NamedTuple):
    """One message to settle. lease: (incarnation, number) of the lease that was given; None for the current one."""

    offset: int
    lease: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledge:
    """These are done. Replies one RequestError or None for each, in order; so do the next three."""

    subscription: UUID
    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """These failed. delay_ms: until the next delivery; None for the subscription's backoff."""

    subscription: UUID
    targets: tuple[Target, ...]
    delay_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Extend:
    """The leases of these end so long after now."""

    subscription: UUID
    targets: tuple[Target, ...]
    visibility_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """These go to the dead-letter topic at once."""

    subscription: UUID
    targets: tuple[Target, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Leases that reached nobody: as if they had never been given. Replies None."""

    subscription: UUID
    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveToDeadLetters:
    """Messages that are given up become dead letters. Replies None.

    copies: where the copies of most of them lie; there is none of the others, as they could not be read any more.
    """

    subscription: UUID
    offsets: tuple[int, ...]
    copies: Mapping[int, Copy] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Redeliver:
    """Dead letters that are to be delivered again. Replies those that cannot: their records are gone."""

    subscription: UUID
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DropDeadLetters:
    """Dead letters that are given up. Replies None."""

    subscription: UUID
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CutBack:
    """Before the first other command: the log has lost what lay from an offset on. Replies None."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """A delayed message that nobody shall see. Replies None, or RequestError."""

    offset: int


Settling = Acknowledge | Retry | Extend | Reject
OneSubscriptionCommand = Seek | LeaseMessages | Settling | Release | MoveToDeadLetters | Redeliver | DropDeadLetters
QueueCommand = PutSubscription | ForgetSubscription | CutBack | Cancel | OneSubscriptionCommand


class LeasedMessage(NamedTuple):
    """One message, and the lease on it. `incarnation` and `number` name the lease."""

    message: Message
    incarnation: int
    number: int
    ends_ms: int
    delivery_count: int


@dataclass(frozen=True, slots=True)
class LeasedMessages:
    """What was handed out, in the order in which it comes."""

    messages: tuple[LeasedMessage, ...] = ()


Settled = tuple[RequestError | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCounts:
    """Of one subscription in one partition. oldest_ms: the time of its oldest unsettled message."""

    unsettled: int = 0
    available: int = 0
    in_flight: int = 0
    withheld: int = 0
    dead: int = 0
    oldest_ms: int | None = None


@dataclass(frozen=True, slots=True)
class MessageState:
    """What one subscription has done with a message: `available`, `leased`, `delayed`, `retrying`, `waiting` (behind
    another of its key), `dying` (on its way to the dead letters), `acknowledged`, `expired`, `dead` or `cancelled`."""

    state: str
    delivery_count: int = 0
    due_ms: int | None = None


@dataclass(slots=True)
class QueueProbe:
    """Counters of one subscription, over all partitions of this broker."""

    leased: int = 0
    acknowledged: int = 0
    retried: int = 0
    dead_lettered: int = 0
    expired: int = 0
    filtered: int = 0
    filter_errors: int = 0
    unreadable_headers: int = 0
