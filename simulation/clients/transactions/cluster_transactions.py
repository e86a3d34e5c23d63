"""The transactions of a story: their clients and readers, and their checks once all faults have ended."""

import asyncio

from conveyor.cluster.image import TRANSACTIONS_TOPIC, ClusterImage
from conveyor.cluster.topic_change import ConfigChange, Operation
from conveyor.kernel.errors import RequestError
from conveyor.kernel.ids import TopicPartition
from conveyor.replication.transactions import last_stable_offset
from conveyor.transactions.transaction_value import TransactionState
from simulation.clients.transactions.committed_reader import CommittedReader, read_to_the_end
from simulation.clients.transactions.transaction_promises import TransactionPromises
from simulation.clients.transactions.transactional_client import (
    COORDINATOR,
    PHASES,
    PLACES,
    POSITIONS,
    TIMEOUTS_MS,
    TransactionalClient,
)
from simulation.cluster.cluster_checks import check_logs
from simulation.cluster.fault_counts import FaultCounts
from simulation.cluster.simulated_cluster import SimulatedCluster
from simulation.doors.client_door import ClientDoor
from simulation.doors.client_network import Disconnected
from simulation.doors.kafka_requests import TOPIC_RESOURCE, change_config, find_coordinator
from simulation.faults.ambushes import Ambushes
from simulation.ledger import Place

TRANSACTION_EVENTS = frozenset(f"coordinator moved {phase}" for phase in PHASES)
"""The events that a sweep must have met."""

_IDS = {"mover-1": "shared", "mover-2": "shared", "mover-3": "own", "deserter": "deserter"}
_DECIDED_WITHIN_S = 30.0 + TIMEOUTS_MS[1] / 1000
_RETRY_S = 0.5
_TRANSACTIONAL = 1
"""The type of the keys of transactional ids (FindCoordinator)."""


class ClusterTransactions:
    """See the module's docstring. clients: by the name of the actor."""

    def __init__(self, cluster: SimulatedCluster, ambushes: Ambushes, counts: FaultCounts) -> None:
        self._cluster = cluster
        self._ambushes = ambushes
        self._counts = counts
        self._promises = promises = TransactionPromises(self._is_excused)
        self._movers = {
            name: TransactionalClient(name, transactional_id, cluster, promises, self._noticed)
            for name, transactional_id in _IDS.items()
        }
        self.clients = self._movers | {"auditor": CommittedReader(PLACES, promises)}
        cluster.tree.observe(self._stored)

    async def prepare(self, door: ClientDoor, replicas: int) -> None:
        """Create the topic of the coordinator, which has so many replicas."""
        await find_coordinator(door.any(), _TRANSACTIONAL, _IDS["mover-1"])
        if replicas == 1:  # Otherwise the coordinator would wait for a second one.
            alone = ConfigChange(name="min.insync.replicas", operation=Operation.SET, value="1")
            await change_config(door.any(), (TOPIC_RESOURCE, TRANSACTIONS_TOPIC), alone)

    async def check_the_end(self, door: ClientDoor) -> None:
        """Check that everything is decided, and what it came to. All brokers run."""
        await self._check_decided()
        contents: dict[Place, list[tuple[int, bytes]]] = {}
        for place in PLACES:
            contents[place] = sorted((await self._read(door, place)).items())
            check_logs(self._cluster.nodes, *place)
        self._promises.check_end(contents)

    async def _check_decided(self) -> None:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _DECIDED_WITHIN_S
        while undecided := self._undecided():
            if loop.time() > deadline_s or self._is_excused():
                return self._promises.broken("StableOffsetRises", f"after {_DECIDED_WITHIN_S} s: {undecided}")
            await asyncio.sleep(_RETRY_S)

    def _undecided(self) -> list[str]:
        """Return what is not stable, by partition, and the transactions that are not complete."""
        found = []
        for node in self._cluster.nodes:
            states = node.coordinators.transactions.state_counts()
            found += [
                f"{count} {state.kafka_name}"
                for state, count in states.items()
                if count and not (state.is_complete or state is TransactionState.EMPTY)
            ]
            for place in (POSITIONS, *PLACES):
                partition = node.partitions.table.get(*place)
                if partition is not None and partition.leader_term is not None:
                    stable, end = last_stable_offset(partition), partition.log.log_end_offset
                    found += [f"{place} is stable to {stable} of {end}"] if stable < end else []
        return found

    async def _read(self, door: ClientDoor, place: Place) -> dict[int, bytes]:
        while True:
            try:
                return await read_to_the_end(await door.leader(place), place, self._promises)
            except (Disconnected, RequestError):
                await asyncio.sleep(_RETRY_S)

    def _is_excused(self) -> bool:
        return any(
            self._cluster.replicas.is_excused(TopicPartition(*place)) for place in (COORDINATOR, POSITIONS, *PLACES)
        )

    def _noticed(self, kind: str, place: Place) -> None:
        """Let an ambush strike at the coordinator, or at the leader of a partition of the transaction."""
        image = self._cluster.tree.image
        coordinator, other = (image.partition(*at) for at in (COORDINATOR, place))
        if coordinator is not None and other is not None:
            self._ambushes.notice(kind, coordinator.leader, other.leader)

    def _stored(self, old: ClusterImage, new: ClusterImage) -> None:
        """Count in which states of transactions their coordinator moves."""
        before, after = old.partition(*COORDINATOR), new.partition(*COORDINATOR)
        if before is None or after is None or before.leader_epoch == after.leader_epoch:
            return
        for mover in self._movers.values():
            self._counts.note(f"coordinator moved {mover.phase}")
