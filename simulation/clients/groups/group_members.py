"""Members of groups. Each lives in the background between the steps that let it join, leave and die.

    join           join the group, unless it is a member
    leave          leave it
    die            be silent from now on: the coordinator finds out when the session ends
    commit_late    send a commit of the last generation again, as a member that was away does

A member reads the committed offset of a partition when it gets it, and commits rising numbers while it owns it. The
classic protocol and the consumer protocol (KIP-848) differ in how a member comes by its partitions.
"""

import asyncio
from collections.abc import Collection
from contextlib import suppress
from random import Random
from typing import Protocol
from uuid import UUID

from conveyor.kernel.errors import ERRORS, RequestError
from simulation.clients.groups.group_promises import GroupPromises
from simulation.doors.client_door import BrokerDoor, ClientDoor
from simulation.doors.client_network import Disconnected
from simulation.doors.kafka_groups import (
    JoinedGroup,
    MemberIdGiven,
    consumer_heartbeat,
    heartbeat,
    join_group,
    leave_group,
    sync_group,
)
from simulation.doors.kafka_requests import commit_offset, committed_offset, find_coordinator, show_topic
from simulation.story_schedule import Step
from simulation.story_topics import PARTITIONS
from simulation.troubles import SHARED_TOPIC

_GROUP = 0
"""The type of the keys of groups (FindCoordinator)."""
TIMEOUT_MS = 1_500
"""Of sessions, and of the rebalances that a member misses."""

_BEAT_S = 0.3
_REMEMBERED = 20
_PAUSES_S = (0.05, 0.2, 0.5)
_NO_REPLY = (Disconnected, RequestError)


class _Membership(Protocol):
    """One stay in a group."""

    generation: int
    owned: frozenset[int]

    async def beat(self, coordinator: BrokerDoor) -> None:
        """Join, or stay. Raises Disconnected and RequestError."""
        ...

    async def leave(self, coordinator: BrokerDoor) -> None: ...

    @property
    def identity(self) -> tuple[str, int]:
        """The member id, and the generation or epoch."""
        ...


class GroupMember:
    """See the module's docstring. number: of the member."""

    def __init__(self, number: int, promises: GroupPromises, *, is_classic: bool) -> None:
        self._number = number
        self._promises = promises
        self._is_classic = is_classic
        self._chance = Random(number)
        self._life: asyncio.Task[None] | None = None
        self._stay: _Membership | None = None
        self._past: list[tuple[tuple[str, int], int]] = []
        """The identities that the member has had, each with a partition that it owned."""
        self._lives = 0

    async def execute(self, step: Step, door: ClientDoor) -> None:
        if step.action == "join":
            if self._life is None or self._life.done():
                self._chance = Random(step.number)
                self._life = asyncio.ensure_future(self._live(door))
        elif step.action == "leave":
            await self._leave(door)
        elif step.action == "die":
            self.die()
        else:
            with suppress(*_NO_REPLY):
                await self._commit_late(door)

    def die(self) -> None:
        """Do nothing more."""
        if self._life is not None:
            if self._life.done() and not self._life.cancelled():
                self._life.result()
            self._life.cancel()
        if self._stay is not None:
            self._promises.give_up(self._stay.identity[0])
        self._life = self._stay = None

    def check(self) -> None:
        """Raise what has ended the member, if anything has."""
        if self._life is not None and self._life.done() and not self._life.cancelled():
            self._life.result()

    async def _leave(self, door: ClientDoor) -> None:
        stay = self._stay
        self.die()
        if stay is not None:
            with suppress(*_NO_REPLY):
                await stay.leave(await self._coordinator(door))

    async def _live(self, door: ClientDoor) -> None:
        self._lives += 1
        while True:
            try:
                await self._stay_once(door)
            except _NO_REPLY:
                await asyncio.sleep(self._chance.choice(_PAUSES_S))

    async def _stay_once(self, door: ClientDoor) -> None:
        """Join, and stay until the coordinator refuses the member."""
        stay: _Membership
        if self._is_classic:
            stay = _Classic(self._promises)
        else:
            topic_id = (await show_topic(door.any(), SHARED_TOPIC)).topic_id
            stay = _Consumer(f"member-{self._number}-{self._lives}", topic_id, self._promises)
        self._stay = stay
        try:
            await self._stay_in(stay, door)
        finally:
            self._promises.give_up(stay.identity[0])

    async def _stay_in(self, stay: _Membership, door: ClientDoor) -> None:
        known: frozenset[int] = frozenset()
        while True:
            try:
                known = await self._take_turn(await self._coordinator(door), stay, known)
            except MemberIdGiven:
                continue
            except Disconnected:
                await asyncio.sleep(self._chance.choice(_PAUSES_S))
            except RequestError as error:
                if not ERRORS[error.kind].retriable:
                    raise
                await asyncio.sleep(self._chance.choice(_PAUSES_S))

    async def _take_turn(self, coordinator: BrokerDoor, stay: _Membership, known: frozenset[int]) -> frozenset[int]:
        """Send one heartbeat, and commit something. known: the partitions that the member has begun with.

        Returns those that it owns now.
        """
        before = stay.generation
        await stay.beat(coordinator)
        begun = frozenset() if self._is_classic and stay.generation != before else known
        for partition in sorted(stay.owned - begun):
            await self._begin(coordinator, stay, partition)
        if stay.owned:
            self._past = [*self._past[-_REMEMBERED:], (stay.identity, min(stay.owned))]
            await self._commit(coordinator, stay.identity, self._chance.choice(sorted(stay.owned)))
        await asyncio.sleep(_BEAT_S)
        return stay.owned

    async def _begin(self, coordinator: BrokerDoor, stay: _Membership, partition: int) -> None:
        generation, known = stay.generation, self._promises.known(partition)
        found = await committed_offset(coordinator, self._promises.group, (SHARED_TOPIC, partition))
        self._promises.check(partition, known, found, generation)

    async def _commit(self, coordinator: BrokerDoor, identity: tuple[str, int], partition: int) -> None:
        promises, generation = self._promises, identity[1]
        was_stale, number = promises.is_stale(partition, generation), promises.attempt(partition, generation)
        try:
            await commit_offset(coordinator, promises.group, (SHARED_TOPIC, partition), number, identity)
        except RequestError as error:
            if not ERRORS[error.kind].retriable:
                promises.refuse(partition, number, was_stale=was_stale)
            raise
        promises.confirm(partition, number, was_stale=was_stale)

    async def _commit_late(self, door: ClientDoor) -> None:
        if self._past:
            identity, partition = self._chance.choice(self._past)
            await self._commit(await self._coordinator(door), identity, partition)

    async def _coordinator(self, door: ClientDoor) -> BrokerDoor:
        return door.broker(await find_coordinator(door.any(), _GROUP, self._promises.group))


class _Classic:
    """A member of the classic protocol: the leader of a generation assigns the partitions."""

    def __init__(self, promises: GroupPromises) -> None:
        self.generation = -1
        self.owned: frozenset[int] = frozenset()
        self._promises = promises
        self._joined: JoinedGroup | None = None
        self._member_id = ""

    @property
    def identity(self) -> tuple[str, int]:
        return self._member_id, self.generation

    async def beat(self, coordinator: BrokerDoor) -> None:
        if self._joined is not None:
            try:
                sent_s = asyncio.get_running_loop().time()
                await heartbeat(coordinator, self._promises.group, self._joined)
                return self._promises.heard(self._member_id, sent_s)
            except RequestError as error:
                if ERRORS[error.kind].retriable:
                    raise
            self._joined = None
        self.owned = frozenset()
        self._promises.give_up(self._member_id)
        group, loop = self._promises.group, asyncio.get_running_loop()
        try:
            joined = await join_group(coordinator, group, self._member_id, TIMEOUT_MS, TIMEOUT_MS)
        except MemberIdGiven as given:
            self._member_id = given.member_id
            raise
        self._member_id, self.generation = joined.member_id, joined.generation
        assignments, sent_s = _in_turn(joined.member_ids) if joined.is_leader else {}, loop.time()
        self.owned = await sync_group(coordinator, group, joined, assignments)
        self._joined = joined
        self._promises.own(self.generation, self._member_id, self.owned, sent_s, loop.time())

    async def leave(self, coordinator: BrokerDoor) -> None:
        await leave_group(coordinator, self._promises.group, self._member_id)


class _Consumer:
    """A member of the consumer protocol: the coordinator assigns the partitions, and fences members by their epochs."""

    def __init__(self, member_id: str, topic_id: UUID, promises: GroupPromises) -> None:
        self.generation = 0
        self.owned: frozenset[int] = frozenset()
        self._member_id = member_id
        self._topic = (SHARED_TOPIC, topic_id)
        self._promises = promises

    @property
    def identity(self) -> tuple[str, int]:
        return self._member_id, self.generation

    async def beat(self, coordinator: BrokerDoor) -> None:
        group, loop = self._promises.group, asyncio.get_running_loop()
        sent_s = loop.time()
        beat = await consumer_heartbeat(coordinator, group, self.identity, self._topic, self.owned, TIMEOUT_MS)
        self.generation = beat.epoch
        if beat.partitions is not None:
            self.owned = beat.partitions
        self._promises.own(self.generation, self._member_id, self.owned, sent_s, loop.time())

    async def leave(self, coordinator: BrokerDoor) -> None:
        left = (self._member_id, -1)
        await consumer_heartbeat(coordinator, self._promises.group, left, self._topic, (), TIMEOUT_MS)


def _in_turn(member_ids: Collection[str]) -> dict[str, list[int]]:
    """Assign the partitions to the members in turn."""
    members = list(member_ids)
    return {member: list(range(PARTITIONS))[place :: len(members)] for place, member in enumerate(members)}
