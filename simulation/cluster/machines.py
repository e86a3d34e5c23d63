"""The machines of a story: what connects a broker's process to the metadata store, to other brokers and to clients."""

from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass
from random import Random

from conveyor.kernel.ids import NodeId
from conveyor.kernel.peers import PeerNetwork
from simulation.cluster.cluster_store import ClusterStore
from simulation.cluster.flaky_store import FlakyStore
from simulation.cluster.observed_tree import ObservedTree
from simulation.cluster.peer_network import PeerSwitch, host_of
from simulation.doors.client_network import ClientNetwork
from simulation.story_rules import StoryRules
from simulation.virtual_loop import VirtualLoop

SESSION_TIMEOUT_MS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The parts that all machines of a story share. switch: of the brokers. clients: the network of the clients."""

    loop: VirtualLoop
    seed: int
    rules: StoryRules
    tree: ObservedTree
    switch: PeerSwitch
    clients: ClientNetwork


class LoneMachine:
    """The machine of a broker that embeds its metadata. lost_power: called when the machine loses its power."""

    def __init__(self, shared: Surroundings, lost_power: Callable[[], None]) -> None:
        self.host = host_of(NodeId(1))
        self.clients = shared.clients
        self.store = FlakyStore(Random(f"{shared.seed} store"), tree=shared.tree)
        self._lost_power = lost_power

    is_reachable = True
    """The store is a part of the process."""

    @property
    def session(self) -> ClusterStore:
        raise AssertionError("a lone broker has no session with a metadata store")

    def enter(self) -> None:
        """There are no other brokers."""

    def leave(self, *, has_power: bool) -> None:
        """The embedded store outlives the process."""
        if not has_power:
            self._lost_power()

    def pause(self) -> None:
        """No other machine notices."""

    def resume(self) -> None:
        """No other machine notices."""

    def heal(self) -> None:
        """End all faults of the store."""
        self.store.heal()


class ClusterMachine:
    """The machine of a broker that has a session with the metadata store. host: by default that of the broker."""

    def __init__(self, node_id: NodeId, shared: Surroundings, lost_power: Callable[[], None], host: str = "") -> None:
        self.host = host or host_of(node_id)
        self.clients = shared.clients
        self._node_id = node_id
        self._shared = shared
        self._chance = Random(f"{shared.seed} store {host or node_id}")
        self._lost_power = lost_power
        self._context = copy_context()
        self.store = self._new_session()

    @property
    def is_reachable(self) -> bool:
        """True if the store hears of the broker."""
        return self.store.is_reachable

    @property
    def session(self) -> ClusterStore:
        """The session of the present process, or that of the last one."""
        return self.store

    def enter(self) -> PeerNetwork:
        self.store = self._new_session()
        return self._shared.switch.join(self._node_id, self.host)

    def leave(self, *, has_power: bool) -> None:
        if not has_power:
            self._shared.switch.lose_power(self._node_id)
            self._lost_power()
        self.store.abandon()

    def pause(self) -> None:
        self.store.lose_contact("paused")

    def resume(self) -> None:
        self.store.regain_contact("paused")

    def heal(self) -> None:
        """End all faults between the broker and the store."""
        self.store.heal()
        self.store.regain_contact("cut")

    def _new_session(self) -> ClusterStore:
        shared = self._shared
        return self._context.copy().run(
            ClusterStore,
            shared.loop,
            self._chance,
            shared.tree,
            SESSION_TIMEOUT_MS,
            longest_hop_s=shared.rules.store_delay_ms / 1000,
            longest_watch_s=shared.rules.watch_delay_ms / 1000,
        )


Machine = LoneMachine | ClusterMachine
