"""Two brokers, 1 and 2, that share one image and are linked: broker 1 stores the changes of both.

Topic `t` has two partitions: broker 1 leads partition 0, and broker 2 partition 1.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple, TypeVar
from uuid import uuid4

from conveyor.adapters.compactor import ThreadCompactor
from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.broker_ports import BrokerPorts
from conveyor.cluster.changes import PartitionChanged, broker_registered
from conveyor.cluster.image import COMPANIONS, BrokerEndpoint, BrokerImage, ClusterImage, PartitionImage, companion
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.access.caller import PLAINTEXT
from conveyor.kernel.ids import LeaderEpoch, NodeId
from conveyor.kernel.peers import PeerIdentity
from conveyor.settings.tree import from_sources
from conveyor.testing import ManualClock
from tests.callers import CALLER
from tests.unit.broker.parts import NOW_MS, Storage
from tests.unit.broker.remote.linked_brokers import Cable

Answer = TypeVar("Answer")

ONE, TWO = NodeId(1), NodeId(2)


class TwoBrokers(NamedTuple):
    """See the module's docstring."""

    one: BrokerNode
    two: BrokerNode
    cable: Cable
    clock: ManualClock

    async def create(self, name: str, *leaders: NodeId, **config: str) -> None:
        """Create a topic with a partition for each leader. Both brokers serve it on return."""
        request = TopicRequest(name=name, assignment={n: (leader,) for n, leader in enumerate(leaders)}, config=config)
        await self.one.topics.create(CALLER, request)
        await self.settled()

    async def move(self, topic: str, number: int, leader: NodeId) -> None:
        """Make another broker lead a partition and its companions, whose logs it begins anew."""
        topics = self.one.metadata.image.topics
        before = topics[topic].partitions[number]
        state = PartitionImage(
            leader, LeaderEpoch(before.leader_epoch + 1), (leader,), (leader,), before.partition_epoch + 1
        )
        names = [name for name in (topic, *(companion(kind, topic) for kind in COMPANIONS)) if name in topics]
        changes = [PartitionChanged(topic=name, partition=number, state=state) for name in names]
        await self.one.metadata.propose(lambda _: changes)
        await self.settled()

    async def with_time(self, ask: Awaitable[Answer]) -> Answer:
        """Let time pass until there is an answer."""
        waiting = asyncio.ensure_future(ask)
        while not waiting.done():
            await asyncio.sleep(0.001)
            self.clock.advance(ms=50)
        return await waiting

    async def settled(self) -> None:
        for broker in (self.one, self.two):
            await broker.metadata.applied.settled(self.one.metadata.image.seq)


def registration(node_id: NodeId) -> BrokerImage:
    return BrokerImage(
        node_id=node_id, host=f"broker-{node_id}.example", port=9092, incarnation=f"start-{node_id}",
        peer_host=f"broker-{node_id}.example", peer_port=9190,
    )  # fmt: skip


@asynccontextmanager
async def two_brokers(settings: Mapping[str, object] | None = None) -> AsyncIterator[TwoBrokers]:
    """Run both brokers; a bug in one of their tasks fails the test."""
    bugs: list[BaseException] = []
    cable, clock = Cable(), ManualClock(NOW_MS)
    async with AsyncExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(2))
        nodes: list[BrokerNode] = []
        for node_id in (ONE, TWO):
            storage = Storage()
            ports = BrokerPorts(
                disk=storage.disk, store=storage.store, clock=clock, threads=threads, new_id=uuid4, failed=bugs.append,
                compactor=ThreadCompactor(storage.disk), peers=cable.plug(PeerIdentity(node_id, f"start-{node_id}")),
            )  # fmt: skip
            node = BrokerNode(from_sources({**(settings or {}), "broker.node_id": node_id}), ports)
            await node.start({PLAINTEXT: BrokerEndpoint(f"broker-{node_id}.example", 9092)})
            nodes.append(node)
        one, two = nodes
        _share_the_image(one, two)
        await one.metadata.propose(lambda _: [broker_registered(registration(node_id)) for node_id in (ONE, TWO)])
        both = TwoBrokers(one, two, cable, clock)
        await both.settled()
        await both.create("t", ONE, TWO)
        cable.unlink()
        yield both
        for node in nodes:
            await node.finish_requests()
        for node in nodes:
            await node.stop()
    assert not bugs


def _share_the_image(one: BrokerNode, two: BrokerNode) -> None:
    def observe(_: ClusterImage, new: ClusterImage) -> None:
        two.metadata._observe(new)

    one.metadata.listen(observe)
    two.metadata.propose = one.metadata.propose  # type: ignore[method-assign]
