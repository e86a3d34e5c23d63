"""The dead letters of a subscription in one partition, as the partition's leader lists them.

A broker asks for them page by page, so that neither it nor the leader does much in one turn of the loop, however many
dead letters there are.
"""

from collections.abc import Sequence
from typing import TypeVar
from uuid import UUID

import msgspec

from conveyor.broker.queues.queue_calls import QueuePlace, place_of
from conveyor.broker.remote.calls import Call
from conveyor.broker.remote.leader_calls import LeaderCalls
from conveyor.kernel.access.caller import Caller
from conveyor.queues.messages.dead_copies import CopiedRange
from conveyor.queues.subscription.policy import Subscription

Question = TypeVar("Question", bound="DeadHere")
Reply = TypeVar("Reply")

AT_ONCE = 500
"""The most dead letters that one call lists, finds or settles."""

Place = tuple[int, int]
"""A partition and an offset."""


class DeadHere(msgspec.Struct, frozen=True, array_like=True):
    """A question for the dead letters of a subscription in one partition."""

    place: QueuePlace
    subscription: str
    subscription_id: UUID


class ListDead(DeadHere, frozen=True, array_like=True):
    """Count the dead letters, and list the first `limit` of them from an offset on."""

    start: int
    limit: int


class DeadPage(msgspec.Struct, frozen=True, array_like=True):
    """count: of all dead letters in the partition. end: its last stable offset. offsets: of the listed ones."""

    count: int
    end: int
    offsets: list[int]


class FindDead(DeadHere, frozen=True, array_like=True):
    """Return those of some offsets that are dead letters."""

    offsets: Sequence[int]


class ListCopies(DeadHere, frozen=True, array_like=True):
    """Return the first `limit` ranges of copies in a topic from a place in it on, by partition and offset."""

    topic_id: UUID
    start: Place
    limit: int


class FindCopies(DeadHere, frozen=True, array_like=True):
    """Return the copies in a topic of those originals that are dead letters."""

    topic_id: UUID
    offsets: Sequence[int]


LIST_DEAD: Call[ListDead, DeadPage] = Call("queue.list_dead", ListDead, DeadPage, is_repeatable=True)
FIND_DEAD: Call[FindDead, list[int]] = Call("queue.find_dead", FindDead, list[int], is_repeatable=True)
LIST_COPIES: Call[ListCopies, list[CopiedRange]] = Call(
    "queue.list_copies", ListCopies, list[CopiedRange], is_repeatable=True
)
FIND_COPIES: Call[FindCopies, list[CopiedRange]] = Call(
    "queue.find_copies", FindCopies, list[CopiedRange], is_repeatable=True
)


class DeadQueue:
    """Asks the leader of partition `number`. Every method raises RequestError."""

    __slots__ = ("_caller", "_here", "_leaders", "_topic", "number")

    def __init__(self, leaders: LeaderCalls, caller: Caller, subscription: Subscription, number: int) -> None:
        self._leaders = leaders
        self._caller = caller
        self._topic = subscription.topic
        self._here = place_of(subscription, number), subscription.name, subscription.id
        self.number = number

    async def page(self, start: int = 0, limit: int = 0) -> DeadPage:
        """Return the number of dead letters, and up to `limit` of them from an offset on."""
        return await self._ask(LIST_DEAD, ListDead(*self._here, start, limit))

    async def find(self, offsets: Sequence[int]) -> list[int]:
        """Return those of at most AT_ONCE offsets that are dead letters."""
        return await self._ask(FIND_DEAD, FindDead(*self._here, offsets))

    async def copies_from(self, topic_id: UUID, start: Place, limit: int) -> list[CopiedRange]:
        """Return the next copies in a topic, in their order."""
        return await self._ask(LIST_COPIES, ListCopies(*self._here, topic_id, start, limit))

    async def copies_of(self, topic_id: UUID, offsets: Sequence[int]) -> list[CopiedRange]:
        """Return the copies in a topic of those among at most AT_ONCE originals that are dead letters."""
        return await self._ask(FIND_COPIES, FindCopies(*self._here, topic_id, offsets))

    async def _ask(self, call: Call[Question, Reply], question: Question) -> Reply:
        return await self._leaders.ask(self._caller, call, self._topic, self.number, question)
