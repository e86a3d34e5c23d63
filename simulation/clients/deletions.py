"""A client that deletes records, and the promises made to it.

Invariants, by the names that failures report:

    NoResurrectedRecords    records whose deletion was acknowledged stay deleted: no leader shows an earlier start of
                            the partition, and every in-sync or eligible replica has deleted them
"""

from contextlib import suppress

from conveyor.cluster.image import ClusterImage
from conveyor.kernel.errors import RequestError
from conveyor.kernel.ids import NodeId, TopicPartition
from simulation.cluster.fault_counts import FaultCounts
from simulation.cluster.simulated_cluster import SimulatedCluster
from simulation.doors.client_door import ClientDoor
from simulation.doors.client_network import Disconnected
from simulation.doors.kafka_requests import EARLIEST, delete_records, list_offset
from simulation.ledger import InvariantBroken, LogLedger, Place
from simulation.story_schedule import Step
from simulation.story_topics import LOG_TOPIC, PARTITIONS

_TIMEOUT_MS = 2_000
_NO_REPLY = (Disconnected, RequestError)


class RecordDeleter:
    """Deletes records of the plain topic, and looks for them. See the module's docstring."""

    def __init__(self, cluster: SimulatedCluster, ledger: LogLedger, counts: FaultCounts) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._counts = counts
        self._starts: dict[Place, int] = {}
        """The highest offset below which all records are deleted, of each partition."""
        cluster.tree.observe(self._stored)

    async def execute(self, step: Step, door: ClientDoor) -> None:
        place = (LOG_TOPIC, step.number % PARTITIONS)
        with suppress(*_NO_REPLY):
            if step.action == "delete_records":
                await self._delete(door, place, step.number // PARTITIONS)
            else:
                await self._look_for_start(door, place)

    def check(self) -> None:
        """Compare the replicas with what is deleted. Adds to the cluster's `broken`."""
        for place, start in self._starts.items():
            identity = TopicPartition(*place)
            for broker in self._cluster.nodes if start else ():
                partition, node_id = broker.partitions.table.get(*place), NodeId(broker.settings.broker.node_id)
                if partition is None or not self._cluster.replicas.is_trusted(node_id, partition):
                    continue
                if partition.log.start.flushed_offset < start:
                    found = f"broker {node_id} begins at {partition.log.start.flushed_offset}, {start} was acknowledged"
                    self._cluster.broken.append(InvariantBroken("NoResurrectedRecords", f"{identity}: {found}"))

    def _stored(self, old: ClusterImage, new: ClusterImage) -> None:
        self.check()

    async def _delete(self, door: ClientDoor, place: Place, number: int) -> None:
        end = max(self._ledger.of(place).acknowledged, default=-1) + 1
        offset = end if number % 8 == 0 else number % (end + 1)
        broker = await door.leader(place)
        self._ledger.delete_before(place, offset)
        self._counts.note("delete_records")
        await delete_records(broker, place, offset, _TIMEOUT_MS)
        self._starts[place] = max(self._starts.get(place, 0), offset)

    async def _look_for_start(self, door: ClientDoor, place: Place) -> None:
        broker = await door.leader(place)
        epoch, deleted = door.newest_epoch(place), self._starts.get(place, 0)
        start = await list_offset(broker, place, EARLIEST, epoch)
        if start < deleted and not self._ledger.of(place).is_excused:
            raise InvariantBroken("NoResurrectedRecords", f"{place} begins at {start} in epoch {epoch}, not {deleted}")
