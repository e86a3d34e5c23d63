"""Random stories of three brokers that share a metadata log: lost connections, sessions and replies, pauses, crashes.

Invariants: images with the same number are the same in all brokers. An acknowledged change is in every later image. In
no image does a fenced broker lead. When all faults are over, all brokers are registered and have the same image.
"""

import asyncio
from collections.abc import Callable
from random import Random
from uuid import UUID

import pytest

from conveyor.cluster.changes import topic_put
from conveyor.cluster.image import ClusterImage, PartitionImage, TopicImage
from conveyor.kernel.errors import RequestError
from conveyor.kernel.ids import LeaderEpoch, NodeId, TopicId
from conveyor.kernel.ports import SessionState
from conveyor.testing.memory_store import MemoryStore
from tests.unit.broker.metadata.members import Cluster, Member, quiet
from tests.unit.broker.metadata.proposals import groups, put

STEPS = 150
NODES = (1, 2, 3)


class Story:
    """One cluster, and what its members have observed and acknowledged."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.chance = Random(seed)
        self.members: dict[int, Member] = {}
        self.images: dict[int, ClusterImage] = {}
        self.acknowledged: list[str] = []
        self.proposals: list[asyncio.Task[None]] = []
        self.killed: list[MemoryStore] = []
        """The sessions of killed brokers that have not ended yet."""

    async def start(self, node_id: int) -> None:
        member = self.cluster.make(node_id)
        member.metadata.listen(self.observe)
        self.members[node_id] = member
        await member.start()

    def observe(self, _: ClusterImage, image: ClusterImage) -> None:
        known = self.images.setdefault(image.seq, image)
        assert image == known, f"image {image.seq} differs"
        for topic in image.topics.values():
            leaders = {partition.leader for partition in topic.partitions} & image.brokers.keys()
            assert not [node for node in leaders if image.brokers[node].is_fenced]

    async def step(self, number: int) -> None:
        member = self.members[self.chance.choice(NODES)]
        action: Callable[[Member, int], object] = self.chance.choice(
            [self.propose, self.propose, self.cut, self.heal, self.expire, self.hold, self.lose_replies, self.advance]
        )
        action(member, number)
        if self.chance.random() < 0.03:
            await self.crash(member)
        for _ in range(self.chance.randrange(30)):
            await asyncio.sleep(0)

    def propose(self, member: Member, number: int) -> None:
        async def attempt() -> None:
            try:
                await put(member.metadata, str(number))
            except RequestError:
                return
            self.acknowledged.append(str(number))

        self.proposals.append(asyncio.ensure_future(attempt()))

    def cut(self, member: Member, _: int) -> None:
        if member.store.session_state is SessionState.CONNECTED:
            member.store.cut()

    def expire(self, member: Member, number: int) -> None:
        self.cut(member, number)
        if member.store.session_state is SessionState.SUSPENDED:
            member.store.expire()

    def hold(self, member: Member, _: int) -> None:
        member.store.hold_commits()

    def lose_replies(self, member: Member, number: int) -> None:
        member.store.loses_reply = lambda operation: (len(operation.path) + number) % 2 == 0

    def heal(self, member: Member, _: int) -> None:
        member.store.release_commits()
        member.store.loses_reply = lambda _: False
        if member.store.session_state is not SessionState.CONNECTED:
            member.store.reconnect()

    def advance(self, member: Member, _: int) -> None:
        member.clock.advance(seconds=self.chance.choice([0.1, 0.5, 2]))

    async def crash(self, member: Member) -> None:
        """Kill a broker and start it again with the same data, before or after the end of its session."""
        member.store.release_commits()
        await self.cluster.kill(member)
        if self.chance.random() < 0.5:
            member.store.expire()
        else:
            self.killed.append(member.store)
        self.heal_all()
        await self.start(member.node_id)

    def heal_all(self) -> None:
        for member in self.cluster.members:
            self.heal(member, 0)

    async def end(self) -> None:
        for store in self.killed:
            store.expire()
        self.heal_all()
        await quiet()
        members = list(self.members.values())
        for _ in range(200):
            if self.is_settled():
                break
            for member in members:
                member.clock.advance(seconds=0.2)
            await quiet()
        assert self.is_settled(), [(member.image.seq, member.is_registered) for member in members]
        await asyncio.gather(*self.proposals)
        assert set(self.acknowledged) <= set(groups(members[0].image))
        assert sum(member.metadata.term is not None for member in members) == 1

    def is_settled(self) -> bool:
        members = list(self.members.values())
        return all(member.is_registered for member in members) and len({member.image.seq for member in members}) == 1


def topic() -> TopicImage:
    """Six partitions, with different leaders."""
    orders = [(1, 2, 3), (2, 3, 1), (3, 1, 2)] * 2
    partitions = tuple(
        PartitionImage(leader=NodeId(order[0]), leader_epoch=LeaderEpoch(0), replicas=nodes, isr=nodes)
        for order in orders
        for nodes in [tuple(map(NodeId, order))]
    )
    return TopicImage(name="t", topic_id=TopicId(UUID(int=1)), partitions=partitions)


@pytest.mark.parametrize("seed", range(30))
async def test_story(cluster: Cluster, seed: int) -> None:
    story = Story(cluster, seed)
    for node_id in NODES:
        await story.start(node_id)
    await quiet()
    await story.members[1].metadata.propose(lambda _: [topic_put(topic())])
    for number in range(STEPS):
        await story.step(number)
    await story.end()
