"""Several brokers on one loop: one tree of metadata with a session for each, one network, one machine for each."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from random import Random
from uuid import UUID

from conveyor.broker.broker_node import BrokerNode
from conveyor.cluster.image import NO_EPOCH, NO_LEADER
from conveyor.kernel.errors import RequestError
from conveyor.kernel.ids import LeaderEpoch, NodeId
from conveyor.kernel.peers import PeerNetwork
from conveyor.replication.roles import Leader
from conveyor.testing.memory_store import MemoryTree
from conveyor.testing.simulation.cluster.cluster_store import ClusterStore
from conveyor.testing.simulation.ledger import InvariantBroken, Place
from conveyor.testing.simulation.peer_network import PeerSwitch
from conveyor.testing.simulation.simulated_broker import Disconnected, SimulatedBroker
from conveyor.testing.simulation.simulated_clock import SimulatedClock
from conveyor.testing.simulation.virtual_loop import VirtualLoop

SESSION_TIMEOUT_MS = 2_000
_PAUSE_S = 0.2


class ClusterMachine:
    """The connections of one machine. See `Surroundings` in `simulated_broker`."""

    def __init__(self, node_id: NodeId, loop: VirtualLoop, seed: int, switch: PeerSwitch, tree: MemoryTree) -> None:
        self.host = f"broker-{node_id}.example"
        self.http_url = f"http://{self.host}:8080"
        self._node_id = node_id
        self._loop = loop
        self._chance = Random(f"{seed} store {node_id}")
        self._switch = switch
        self._tree = tree
        self.store = self._new_session()

    def enter(self) -> PeerNetwork:
        self.store = self._new_session()
        return self._switch.join(self._node_id)

    def leave(self, *, has_power: bool) -> None:
        if not has_power:
            self._switch.lose_power(self._node_id)
        self.store.abandon()

    def pause(self) -> None:
        self.store.lose_contact("paused")

    def resume(self) -> None:
        self.store.regain_contact("paused")

    def _new_session(self) -> ClusterStore:
        return ClusterStore(self._loop, self._chance, self._tree, SESSION_TIMEOUT_MS)


class LeaderLedger:
    """The process that has led each partition in each leader epoch, by topic id, partition and epoch."""

    def __init__(self) -> None:
        self._leaders: dict[tuple[UUID, int, int], tuple[int, int]] = {}

    def note(self, topic_id: UUID, partition: int, epoch: int, process: tuple[int, int]) -> None:
        """Check and note that a process leads. process: the broker's id and the number of its start."""
        before = self._leaders.setdefault((topic_id, partition, epoch), process)
        if before != process:
            raise InvariantBroken(
                "SingleLeaderPerEpoch",
                f"partition {partition} of {topic_id}: broker {process[0]}, start {process[1]}, leads in epoch {epoch},"
                f" as did broker {before[0]}, start {before[1]}",
            )


class BrokerEpochs:
    """Reports one broker's acknowledgements to the ledger of all brokers. See `AcknowledgedEpochs`."""

    def __init__(self, ledger: LeaderLedger, node_id: int) -> None:
        self._ledger = ledger
        self._node_id = node_id

    def note_crash(self, incarnation: int) -> None:
        """Nothing to note: every start has its own epochs."""

    def acknowledge(self, topic_id: UUID, partition: int, epoch: int, incarnation: int) -> None:
        self._ledger.note(topic_id, partition, epoch, (self._node_id, incarnation))


class SimulatedCluster:
    """See the module's docstring. It is also the door of its clients; see `actors`."""

    def __init__(self, loop: VirtualLoop, seed: int, settings: dict[str, object], node_ids: Iterable[int]) -> None:
        self.clock = SimulatedClock(loop)
        """The clock of the clients."""
        self.switch = PeerSwitch(loop, Random(f"{seed} peers"))
        self.tree = MemoryTree()
        self.leaders = LeaderLedger()
        self.machines: dict[NodeId, ClusterMachine] = {}
        self.brokers: dict[NodeId, SimulatedBroker] = {}
        self._chance = Random(f"{seed} clients")
        self._newest: dict[Place, tuple[LeaderEpoch, NodeId]] = {}
        self._locks: dict[NodeId, asyncio.Lock] = {}
        for number in node_ids:
            node_id = NodeId(number)
            machine = self.machines[node_id] = ClusterMachine(node_id, loop, seed, self.switch, self.tree)
            own = settings | {"broker.node_id": number, "broker.metadata": "zookeeper://store.example:2181"}
            broker = self.brokers[node_id] = SimulatedBroker(loop, f"{seed} broker {number}", own, machine)
            broker.epochs = BrokerEpochs(self.leaders, number)
            self._locks[node_id] = asyncio.Lock()

    @property
    def bugs(self) -> list[BaseException]:
        return [bug for broker in self.brokers.values() for bug in broker.bugs]

    async def start(self) -> None:
        """Start all brokers that do not run. Returns once they serve."""
        await asyncio.gather(*(self.ensure_started(node_id) for node_id in self.brokers))

    async def ensure_started(self, node_id: NodeId) -> None:
        async with self.control(node_id) as broker:
            if not broker.is_running:
                await broker.start()

    @asynccontextmanager
    async def control(self, node_id: NodeId) -> AsyncIterator[SimulatedBroker]:
        """Start, stop or break a broker: one at a time does."""
        async with self._locks[node_id]:
            yield self.brokers[node_id]

    async def any(self) -> SimulatedBroker:
        """Return a broker as clients find one: it may be dead."""
        return self._chance.choice(list(self.brokers.values()))

    async def leader(self, place: Place) -> SimulatedBroker:
        """Return the leader of a partition by the newest image that clients have seen; if it shows none, any broker.

        As Kafka's clients do, they never go back to an earlier leader epoch.
        """
        asked = await self.any()
        try:
            epoch, node_id = await asked.ask(lambda inside: _leader_of(inside, place))
        except (Disconnected, RequestError):
            await asyncio.sleep(_PAUSE_S)
        else:
            self._newest[place] = max(self._newest.get(place, (NO_EPOCH, NO_LEADER)), (epoch, node_id))
        _, node_id = self._newest.get(place, (NO_EPOCH, NO_LEADER))
        return self.brokers.get(node_id, asked)

    def note_leaders(self) -> None:
        """Note which process leads which partition at this moment."""
        for node_id, broker in self.brokers.items():
            if broker.node is not None:
                for topic_id, number, epoch in _led_partitions(broker.node):
                    self.leaders.note(topic_id, number, epoch, (node_id, broker.starts))

    def heal(self) -> None:
        """End all faults of disks, of the network and of the store, and let paused processes continue."""
        self.switch.heal()
        for node_id, broker in self.brokers.items():
            broker.disk.heal()
            broker.resume()
            self.machines[node_id].store.heal()
            self.machines[node_id].store.regain_contact("cut")


async def _leader_of(inside: BrokerNode, place: Place) -> tuple[LeaderEpoch, NodeId]:
    topic = inside.metadata.image.topics.get(place[0])
    if topic is None:
        return NO_EPOCH, NO_LEADER
    partition = topic.partitions[place[1]]
    return partition.leader_epoch, partition.leader


def _led_partitions(inside: BrokerNode) -> Iterator[tuple[UUID, int, int]]:
    """Yield the topic id, the number and the epoch of each partition that a broker leads."""
    topics = inside.metadata.image.topics
    for partition in inside.partitions:
        identity = partition.identity
        if identity.topic in topics and isinstance(partition.role, Leader) and not partition.role.is_read_only:
            yield topics[identity.topic].topic_id, identity.partition, partition.role.epoch
