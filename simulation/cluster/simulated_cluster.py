"""The brokers of a story on one loop: one tree of metadata with a session for each, one network, one machine for each.

One broker alone has the tree embedded in its process, and no network.

Invariants, by the names that failures report:

    SingleLeaderPerEpoch    two brokers never lead a partition in the same leader epoch
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from random import Random
from uuid import UUID

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.metadata.broker_session import BROKER_EPOCH_PATH
from conveyor.broker.queues.pushing.push_client import OpenPushClient, no_push_client
from conveyor.cluster.image import ClusterImage
from conveyor.kernel.ids import NodeId, TopicId
from conveyor.settings.tree import from_sources
from conveyor.testing.memory_disk import MemoryDisk
from simulation.cluster.access_watch import AccessWatch
from simulation.cluster.bound_watch import BoundWatch
from simulation.cluster.machines import ClusterMachine, LoneMachine, Machine, Surroundings
from simulation.cluster.observed_tree import ObservedTree
from simulation.cluster.partition_watch import PartitionWatch
from simulation.cluster.peer_network import PeerSwitch
from simulation.cluster.replica_ledger import Loss, ReplicaLedger
from simulation.cluster.simulated_keys import SimulatedKeys
from simulation.doors.client_door import ClientSide
from simulation.doors.client_network import ClientNetwork
from simulation.ledger import InvariantBroken, LogLedger
from simulation.simulated_broker import SimulatedBroker
from simulation.simulated_clock import SimulatedClock
from simulation.story_rules import StoryRules
from simulation.troubles import OWN_DEFAULTS, PUSH
from simulation.virtual_loop import VirtualLoop

_OWN_DEFAULTS: Sequence[Mapping[str, object]] = (
    {"topics.min_insync_replicas": 1},
    {"topics.flush_policy": "os"},
    {"topics.unclean_leader_election_enable": True},
)
"""In the files of the brokers. The cluster has those of the first one that has started."""


class LeaderLedger:
    """The process that has led each partition in each leader epoch, by topic id, partition and epoch.

    is_alone: the only broker of its cluster goes on in an epoch after a clean stop; it is seen when it acknowledges.
    """

    def __init__(self, *, is_alone: bool) -> None:
        self._is_alone = is_alone
        self._leaders: dict[tuple[UUID, int, int], tuple[int, int]] = {}
        self._crashed: set[tuple[int, int]] = set()

    def of(self, topic_id: UUID, partition: int, epoch: int) -> NodeId | None:
        """Return the broker that has led a partition in an epoch, if it was seen."""
        process = self._leaders.get((topic_id, partition, epoch))
        return None if process is None else NodeId(process[0])

    def note_crash(self, process: tuple[int, int]) -> None:
        """Note that a process did not stop cleanly."""
        self._crashed.add(process)

    def note(self, topic_id: UUID, partition: int, epoch: int, process: tuple[int, int]) -> None:
        """Check and note that a process leads. process: the broker's id and the number of its start."""
        before = self._leaders.get((topic_id, partition, epoch), process)
        if before != process and not (self._is_alone and before not in self._crashed):
            raise InvariantBroken(
                "SingleLeaderPerEpoch",
                f"partition {partition} of {topic_id}: broker {process[0]}, start {process[1]}, leads in epoch {epoch},"
                f" as did broker {before[0]}, start {before[1]}",
            )
        self._leaders[topic_id, partition, epoch] = process


class BrokerEpochs:
    """Reports one broker's acknowledgements to the ledgers of all brokers. See `AcknowledgedEpochs`."""

    def __init__(self, cluster: "SimulatedCluster", node_id: NodeId) -> None:
        self._cluster = cluster
        self._node_id = node_id

    def note_crash(self, incarnation: int) -> None:
        self._cluster.leaders.note_crash((self._node_id, incarnation))

    def acknowledge(self, topic_id: UUID, partition: int, epoch: int, incarnation: int, *, is_new: bool) -> None:
        is_alone = len(self._cluster.brokers) == 1
        if is_new or not is_alone:  # A lone broker keeps its epoch if its last start has appended nothing.
            self._cluster.leaders.note(topic_id, partition, epoch, (self._node_id, incarnation))
        broker = self._cluster.brokers[self._node_id].node
        topic = self._cluster.tree.image.topic_by_id(TopicId(topic_id))
        leader = None if broker is None or topic is None else broker.partitions.table.get(topic.name, partition)
        if leader is not None:
            self._cluster.replicas.acknowledged(self._node_id, leader)


class SimulatedCluster:
    """See the module's docstring. clients: makes the connections of each client.

    logs: what the clients know about the partitions. note: counts an event by its name.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        seed: int,
        rules: StoryRules,
        settings: dict[str, object],
        logs: LogLedger,
        note: Callable[[str], None],
    ) -> None:
        self._rules, self._settings = rules, settings
        self.open_push_client: OpenPushClient = no_push_client
        """Opens the client of a process for push targets."""
        self.tree = ObservedTree()
        self.switch = PeerSwitch(loop, Random(f"{seed} peers"))
        network = ClientNetwork(loop, Random(f"{seed} client network"))
        self._shared = Surroundings(
            loop=loop, seed=seed, rules=rules, tree=self.tree, switch=self.switch, clients=network
        )
        self.replicas = ReplicaLedger(logs, from_sources(settings), note)
        self.tree.observe(self._stored)
        self.leaders = LeaderLedger(is_alone=rules.is_alone)
        self.broken: list[BaseException] = []
        """The failures that faults have found."""
        self.machines: dict[NodeId, Machine] = {}
        self.brokers: dict[NodeId, SimulatedBroker] = {}
        self.clients = ClientSide(network, self.brokers, Random(f"{seed} clients"), SimulatedClock(loop))
        self.partitions = PartitionWatch(self.brokers, self.replicas, note)
        self._bounds = BoundWatch(self.replicas.has_lost)
        self._access = AccessWatch(loop.time, rules)
        self._locks: dict[NodeId, asyncio.Lock] = {}
        for node_id in map(NodeId, rules.node_ids):
            lost = partial(self._lose, node_id, is_wiped=False)
            machine: Machine = LoneMachine(self._shared, lost)
            if not rules.is_alone:
                machine = ClusterMachine(node_id, self._shared, lost)
            self.machines[node_id] = machine
            self.brokers[node_id] = self._broker(node_id, machine, f"broker {node_id}")
            self._locks[node_id] = asyncio.Lock()

    @property
    def clock(self) -> SimulatedClock:
        """The clock of the clients."""
        return self.clients.clock

    @property
    def bugs(self) -> list[BaseException]:
        of_brokers = [bug for broker in self.brokers.values() for bug in broker.bugs]
        watches = (self.replicas, self.partitions, self._bounds, self._access)
        return [*self.broken, *(broken for watch in watches for broken in watch.broken), *of_brokers]

    @property
    def nodes(self) -> list[BrokerNode]:
        """The brokers inside of all processes, for checks that take no time."""
        return [broker.node for broker in self.brokers.values() if broker.node is not None]

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

    @asynccontextmanager
    async def control_all(self) -> AsyncIterator[list[SimulatedBroker]]:
        """Start, stop or break all brokers, once no other fault of a broker is in progress."""
        async with AsyncExitStack() as stack:
            yield [await stack.enter_async_context(self.control(node_id)) for node_id in self.brokers]

    def latest_at(self, steady_ms: int) -> int:
        """Return the latest time that the wall clock of any broker had shown at a moment of steady time."""
        return max(broker.clock.latest_at(steady_ms) for broker in self.brokers.values())

    def is_sound(self, node_id: NodeId, others: Collection[NodeId]) -> bool:
        """Return whether a broker serves, its disk works, and it reaches the store and these other brokers."""
        return (
            self.brokers[node_id].is_sound
            and self.machines[node_id].store.is_sound
            and not any(self.switch.is_cut(node_id, other) or self.switch.is_cut(other, node_id) for other in others)
        )

    def is_away(self, node_id: NodeId) -> bool:
        """Return whether the others must soon do without a broker: it is dead, paused or out of contact with the store,
        or its disk does not answer.
        """
        broker = self.brokers[node_id]
        is_reachable = broker.is_running and self.machines[node_id].is_reachable
        return not is_reachable or broker.is_paused or broker.is_hanging

    def wipe(self, node_id: NodeId) -> None:
        """Replace a broker's machine by one with an empty disk."""
        self._lose(node_id, is_wiped=True)
        self.brokers[node_id].wipe()

    def lose_refused(self, node_id: NodeId) -> None:
        """Note that the next start of a broker misses what its disk has failed to sync."""
        self.replicas.lose(self.loss(node_id), (), is_wiped=False)

    def replace_disk(self, node_id: NodeId, disk: MemoryDisk, *, has_power: bool) -> None:
        """Kill a broker, and give another disk to its machine. has_power: the machine goes on."""
        self._lose(node_id, is_wiped=True)
        self.brokers[node_id].replace_disk(disk, has_power=has_power)

    def clone(self, node_id: NodeId, number: int, *, is_elsewhere: bool) -> SimulatedBroker:
        """Return a broker with a copy of what this one has on its disk. number: of the clone. is_elsewhere: on another
        machine.
        """
        host = f"clone-{number}-of-{node_id}.example"
        machine = ClusterMachine(node_id, self._shared, lambda: None, host)
        original, clone = self.brokers[node_id], self._broker(node_id, machine, host)
        clone.disk = original.disk.process_crash()
        if not is_elsewhere:
            clone.machine, clone.boots = original.machine, original.boots
        return clone

    def look(self) -> None:
        """Note which process leads which partition at this moment, and what all replicas hold."""
        self._check_replicas()
        for node_id, broker in self.brokers.items():
            self._access.look(node_id, broker.node, is_sound=self.is_sound(node_id, ()))
            if broker.node is not None:
                self.partitions.look(broker, broker.node)
                for topic_id, number, epoch in () if self._rules.is_alone else _led_partitions(broker.node):
                    self.leaders.note(topic_id, number, epoch, (node_id, broker.starts))

    def _broker(self, node_id: NodeId, machine: Machine, name: str) -> SimulatedBroker:
        """name: distinguishes what is random about it, and its boots, from other brokers."""
        own = self._settings | {"broker.node_id": node_id}
        if not self._rules.is_alone:
            own["broker.metadata"] = "zookeeper://store.example:2181"
        if OWN_DEFAULTS in self._rules.troubles:
            own |= _OWN_DEFAULTS[node_id % len(_OWN_DEFAULTS)]
        shared = self._shared
        broker = SimulatedBroker(shared.loop, f"{shared.seed} {name}", own, machine, BrokerEpochs(self, node_id))
        if PUSH in self._rules.troubles:
            broker.open_push_client = lambda: self.open_push_client()
            broker.secret_keys = None if self._rules.is_alone else SimulatedKeys()
        return broker

    def _stored(self, old: ClusterImage, new: ClusterImage) -> None:
        self.replicas.stored(old, new)
        self.partitions.stored(new)
        self._access.stored(old, new)
        self._check_replicas()

    def _check_replicas(self) -> None:
        """A loss counts until the ledger learns that brokers know of it."""
        for node_id, broker in self.brokers.items():
            self._bounds.look(node_id, broker, self.tree.image)
        self.replicas.check(self.nodes)

    def loss(self, node_id: NodeId) -> Loss:
        """Return what a broker that dies now has lost, until it registers again."""
        newest = self.tree.nodes.get(BROKER_EPOCH_PATH)
        return Loss(node_id, 0 if newest is None else newest.version)

    def _lose(self, node_id: NodeId, *, is_wiped: bool) -> None:
        node = self.brokers[node_id].node or self.brokers[node_id].last_node
        partitions = () if node is None else node.partitions.table
        unflushed = [partition.identity for partition in partitions if partition.log.topic.flush_policy == "os"]
        self.replicas.lose(self.loss(node_id), unflushed, is_wiped=is_wiped)

    def heal(self) -> None:
        """End all faults of disks, clocks, of the network and of the store, and let paused processes continue."""
        self.switch.heal()
        for node_id, broker in self.brokers.items():
            broker.disk.faults.heal()
            broker.hang_threads(0.0)
            broker.resume()
            if broker.clock.error_ms:
                broker.set_wall_clock(-broker.clock.error_ms)
            self.machines[node_id].heal()


def _led_partitions(inside: BrokerNode) -> Iterator[tuple[UUID, int, int]]:
    """Yield the topic id, the number and the epoch of each partition that a broker leads."""
    topics = inside.metadata.image.topics
    for partition in inside.partitions.table:
        identity, term = partition.identity, partition.leader_term
        if identity.topic in topics and term is not None and not term.role.is_read_only:
            yield topics[identity.topic].topic_id, identity.partition, term.epoch
