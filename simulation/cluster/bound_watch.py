"""Records that a data directory knows to be committed stay in its logs.

Invariants, by the names that failures report:

    NothingCutInSilence    a log never ends below what `replica-checkpoint` has listed as committed and flushed there,
                           unless an unclean election has given that up; otherwise the partition is offline

This needs no knowledge of the replies to clients: it holds also for a partition that the ledger excuses, whose replicas
may be the last ones with its records. Damage of a disk ends what was listed there.
"""

from collections.abc import Callable
from dataclasses import dataclass

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.partitions.replica_checkpoint import key_of
from conveyor.cluster.image import ClusterImage
from conveyor.kernel.ids import NodeId, TopicPartition
from conveyor.replication.partition import Partition
from conveyor.replication.replica_facts import ReplicaKey
from simulation.ledger import InvariantBroken
from simulation.simulated_broker import SimulatedBroker


@dataclass(slots=True)
class _Known:
    """A replica at the last look. last_epoch: of its records. offset: the end of what was listed."""

    node: BrokerNode
    partition: Partition
    last_epoch: int
    offset: int


class BoundWatch:
    """See the module's docstring. has_lost: returns whether a broker may have lost records of a partition."""

    def __init__(self, has_lost: Callable[[NodeId, TopicPartition], bool]) -> None:
        self.broken: list[BaseException] = []
        self._has_lost = has_lost
        self._known: dict[NodeId, dict[ReplicaKey, _Known]] = {}

    def look(self, node_id: NodeId, broker: SimulatedBroker, image: ClusterImage) -> None:
        """Check the logs of a broker, and note what is listed. Call it often. image: as it is stored now."""
        node, before = broker.node, self._known.get(node_id, {})
        if node is None:
            return
        found = {
            key: known
            for key, known in before.items()
            if not broker.is_ready
            and not self._has_lost(node_id, known.partition.identity)
            and _is_replica(node_id, known.partition.identity, image)
        }  # A broker that serves has opened all its logs, and one that starts sets those of others aside.
        for partition in node.partitions.table:
            key = key_of(partition)
            found.pop(key, None)
            if partition.offline.reason is None and not self._has_lost(node_id, partition.identity):
                found[key] = self._compared(node, partition, before.get(key), image)
        self._known[node_id] = found

    def _compared(self, node: BrokerNode, partition: Partition, known: _Known | None, image: ClusterImage) -> _Known:
        facts = node.partitions.logs.checkpoint._stored_replicas.get(key_of(partition))
        end, listed = partition.log.log_end_offset, 0 if facts is None else facts.flushed_offset
        if known is not None and (known.node is not node or known.partition is partition):
            if end < known.offset and not _may_be_cut(partition.identity, known, image):
                self._break(partition, known, end)
            listed = max(listed, known.offset)
        return _Known(node, partition, partition.log.leader_epochs.latest, min(end, listed))

    def _break(self, partition: Partition, known: _Known, end: int) -> None:
        detail = f"{partition.log.place.path} ends at {end}, and had committed records up to {known.offset}"
        self.broken.append(InvariantBroken("NothingCutInSilence", f"{detail}: {partition.term.role}"))


def _is_replica(node_id: NodeId, identity: TopicPartition, image: ClusterImage) -> bool:
    stored = image.partition(*identity)
    return stored is not None and node_id in stored.replicas


def _may_be_cut(identity: TopicPartition, known: _Known, image: ClusterImage) -> bool:
    """Return whether an unclean election has given up the records. Source: KIP-704."""
    stored = image.partition(*identity)
    return stored is None or known.last_epoch < stored.unclean_epoch
