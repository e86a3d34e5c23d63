"""Several brokers on one loop: one tree of metadata with a session for each, one network, one machine for each."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import copy_context
from functools import partial
from random import Random
from uuid import UUID

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.metadata.broker_session import BROKER_EPOCH_PATH
from conveyor.cluster.image import NO_EPOCH, NO_LEADER, ClusterImage
from conveyor.kernel.errors import RequestError
from conveyor.kernel.ids import LeaderEpoch, NodeId, TopicId
from conveyor.kernel.peers import PeerNetwork
from conveyor.settings.tree import from_sources
from conveyor.testing.memory_disk import MemoryDisk
from simulation.cluster.bound_watch import BoundWatch
from simulation.cluster.cluster_store import ClusterStore
from simulation.cluster.observed_tree import ObservedTree
from simulation.cluster.partition_watch import PartitionWatch
from simulation.cluster.replica_ledger import Loss, ReplicaLedger
from simulation.cluster.terms import Terms
from simulation.cluster.troubles import OWN_DEFAULTS
from simulation.ledger import InvariantBroken, LogLedger, Place
from simulation.peer_network import PeerSwitch, host_of
from simulation.simulated_broker import Disconnected, SimulatedBroker
from simulation.simulated_clock import SimulatedClock
from simulation.virtual_loop import VirtualLoop

SESSION_TIMEOUT_MS = 2_000
_OWN_DEFAULTS: Sequence[Mapping[str, object]] = (
    {"topics.min_insync_replicas": 1},
    {"topics.flush_policy": "os"},
    {"topics.unclean_leader_election_enable": True},
)
"""In the files of the brokers. The cluster has those of the first one that has started."""
_PAUSE_S = 0.2


class ClusterMachine:
    """The connections of one machine. See `Surroundings` in `simulated_broker`.

    lost_power: called when the machine loses its power. host: by default that of the broker.
    """

    def __init__(
        self,
        node_id: NodeId,
        loop: VirtualLoop,
        seed: int,
        switch: PeerSwitch,
        tree: ObservedTree,
        terms: Terms,
        lost_power: Callable[[], None],
        host: str = "",
    ) -> None:
        self.host = host or host_of(node_id)
        self._node_id = node_id
        self._loop = loop
        self._chance = Random(f"{seed} store {host or node_id}")
        self._switch = switch
        self._tree = tree
        self._terms = terms
        self._lost_power = lost_power
        self._context = copy_context()
        self.store = self._new_session()

    def enter(self) -> PeerNetwork:
        self.store = self._new_session()
        return self._switch.join(self._node_id, self.host)

    def leave(self, *, has_power: bool) -> None:
        if not has_power:
            self._switch.lose_power(self._node_id)
            self._lost_power()
        self.store.abandon()

    def pause(self) -> None:
        self.store.lose_contact("paused")

    def resume(self) -> None:
        self.store.regain_contact("paused")

    def _new_session(self) -> ClusterStore:
        return self._context.copy().run(
            ClusterStore,
            self._loop,
            self._chance,
            self._tree,
            SESSION_TIMEOUT_MS,
            longest_hop_s=self._terms.store_delay_ms / 1000,
            longest_watch_s=self._terms.watch_delay_ms / 1000,
        )


class LeaderLedger:
    """The process that has led each partition in each leader epoch, by topic id, partition and epoch."""

    def __init__(self) -> None:
        self._leaders: dict[tuple[UUID, int, int], tuple[int, int]] = {}

    def of(self, topic_id: UUID, partition: int, epoch: int) -> NodeId | None:
        """Return the broker that has led a partition in an epoch, if it was seen."""
        process = self._leaders.get((topic_id, partition, epoch))
        return None if process is None else NodeId(process[0])

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
    """Reports one broker's acknowledgements to the ledgers of all brokers. See `AcknowledgedEpochs`."""

    def __init__(self, cluster: "SimulatedCluster", node_id: NodeId) -> None:
        self._cluster = cluster
        self._node_id = node_id

    def note_crash(self, incarnation: int) -> None:
        """Nothing to note: every start has its own epochs."""

    def acknowledge(self, topic_id: UUID, partition: int, epoch: int, incarnation: int) -> None:
        self._cluster.leaders.note(topic_id, partition, epoch, (self._node_id, incarnation))
        broker = self._cluster.brokers[self._node_id].node
        topic = self._cluster.tree.image.topic_by_id(TopicId(topic_id))
        leader = None if broker is None or topic is None else broker.partitions.table.get(topic.name, partition)
        if leader is not None:
            self._cluster.replicas.acknowledged(self._node_id, leader)


class SimulatedCluster:
    """See the module's docstring. It is also the door of its clients; see `actors`.

    logs: what the clients know about the partitions. note: counts an event by its name.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        seed: int,
        terms: Terms,
        settings: dict[str, object],
        node_ids: Iterable[int],
        logs: LogLedger,
        note: Callable[[str], None],
    ) -> None:
        self.clock = SimulatedClock(loop)
        """The clock of the clients."""
        self._loop, self._seed, self._terms, self._settings = loop, seed, terms, settings
        self.switch = PeerSwitch(loop, Random(f"{seed} peers"))
        self.tree = ObservedTree()
        self.replicas = ReplicaLedger(logs, from_sources(settings), note)
        self.tree.observe(self._stored)
        self.leaders = LeaderLedger()
        self.broken: list[BaseException] = []
        """What faults have found."""
        self.machines: dict[NodeId, ClusterMachine] = {}
        self.brokers: dict[NodeId, SimulatedBroker] = {}
        self.partitions = PartitionWatch(self.brokers, self.replicas, note)
        self._bounds = BoundWatch(self.replicas.has_lost)
        self._chance = Random(f"{seed} clients")
        self._newest: dict[Place, tuple[LeaderEpoch, NodeId]] = {}
        self._locks: dict[NodeId, asyncio.Lock] = {}
        for number in node_ids:
            node_id = NodeId(number)
            lost = partial(self._lose, node_id, is_wiped=False)
            machine = self.machines[node_id] = ClusterMachine(node_id, loop, seed, self.switch, self.tree, terms, lost)
            broker = self.brokers[node_id] = self._broker(node_id, machine, f"broker {number}")
            broker.epochs = BrokerEpochs(self, node_id)
            self._locks[node_id] = asyncio.Lock()

    @property
    def bugs(self) -> list[BaseException]:
        of_brokers = [bug for broker in self.brokers.values() for bug in broker.bugs]
        return self.broken + self.replicas.broken + self.partitions.broken + self._bounds.broken + of_brokers

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

    async def any(self) -> SimulatedBroker:
        """Return a broker as clients find one: it may be dead."""
        return self._chance.choice(list(self.brokers.values()))

    async def leader(self, place: Place, asked: SimulatedBroker | None = None) -> SimulatedBroker:
        """Return the leader of a partition by the newest image that clients have seen; if it shows none, any broker.

        As Kafka's clients do, they never go back to an earlier leader epoch. asked: the broker that a client asks, as
        they do not ask one that gives no answer again before the others; any broker if it is None.
        """
        asked = asked or await self.any()
        try:
            epoch, node_id = await asked.ask(lambda inside: _leader_of(inside, place))
        except (Disconnected, RequestError):
            await asyncio.sleep(_PAUSE_S)
        else:
            self._newest[place] = max(self._newest.get(place, (NO_EPOCH, NO_LEADER)), (epoch, node_id))
        _, node_id = self._newest.get(place, (NO_EPOCH, NO_LEADER))
        return self.brokers.get(node_id, asked)

    def newest_epoch(self, place: Place) -> LeaderEpoch:
        """Return the newest leader epoch of a partition that clients have seen."""
        return self._newest.get(place, (NO_EPOCH, NO_LEADER))[0]

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
        is_reachable = broker.is_running and self.machines[node_id].store.is_reachable
        return not is_reachable or broker.is_paused or broker.is_hanging

    def wipe(self, node_id: NodeId) -> None:
        """Replace a broker's machine by one with an empty disk."""
        self._lose(node_id, is_wiped=True)
        self.brokers[node_id].wipe()

    def replace_disk(self, node_id: NodeId, disk: MemoryDisk, *, has_power: bool) -> None:
        """Kill a broker, and give another disk to its machine. has_power: the machine goes on."""
        self._lose(node_id, is_wiped=True)
        self.brokers[node_id].replace_disk(disk, has_power=has_power)

    def clone(self, node_id: NodeId, number: int, *, is_elsewhere: bool) -> SimulatedBroker:
        """Return a broker with a copy of what this one has on its disk. number: of the clone. is_elsewhere: on another
        machine.
        """
        host = f"clone-{number}-of-{node_id}.example"
        terms = self._terms
        machine = ClusterMachine(node_id, self._loop, self._seed, self.switch, self.tree, terms, lambda: None, host)
        original, clone = self.brokers[node_id], self._broker(node_id, machine, host)
        clone.disk = original.disk.process_crash()
        if not is_elsewhere:
            clone.machine, clone.boots = original.machine, original.boots
        return clone

    def look(self) -> None:
        """Note which process leads which partition at this moment, and what all replicas hold."""
        self._check_replicas()
        for node_id, broker in self.brokers.items():
            if broker.node is not None:
                self.partitions.look(broker, broker.node)
                for topic_id, number, epoch in _led_partitions(broker.node):
                    self.leaders.note(topic_id, number, epoch, (node_id, broker.starts))

    def _broker(self, node_id: NodeId, machine: ClusterMachine, name: str) -> SimulatedBroker:
        """name: distinguishes what is random about it, and its boots, from other brokers."""
        own = self._settings | {"broker.node_id": node_id, "broker.metadata": "zookeeper://store.example:2181"}
        if OWN_DEFAULTS in self._terms.troubles:
            own |= _OWN_DEFAULTS[node_id % len(_OWN_DEFAULTS)]
        return SimulatedBroker(self._loop, f"{self._seed} {name}", own, machine)

    def _stored(self, old: ClusterImage, new: ClusterImage) -> None:
        self.replicas.stored(old, new)
        self.partitions.stored(new)
        self._check_replicas()

    def _check_replicas(self) -> None:
        """What has been lost counts until the ledger learns that brokers know of it."""
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
            broker.disk.heal()
            broker.hang_threads(0.0)
            broker.resume()
            if broker.clock.error_ms:
                broker.set_wall_clock(-broker.clock.error_ms)
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
    for partition in inside.partitions.table:
        identity, term = partition.identity, partition.leader_term
        if identity.topic in topics and term is not None and not term.role.is_read_only:
            yield topics[identity.topic].topic_id, identity.partition, term.epoch
