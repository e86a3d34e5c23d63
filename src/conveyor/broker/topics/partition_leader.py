"""The leader of a partition, and its replicas that are offline, as every door shows them."""

from typing import NamedTuple

from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.services import Services
from conveyor.cluster.image import NO_LEADER, PartitionImage
from conveyor.kernel.ids import NodeId


class ShownLeader(NamedTuple):
    """leader: NO_LEADER if no broker leads the partition now. offline_replicas: in the order of the replicas."""

    leader: NodeId
    offline_replicas: tuple[NodeId, ...]


class PartitionLeaders:
    """Combines the newest image with the state of this broker's partitions."""

    def __init__(self, services: Services, partitions: PartitionTable) -> None:
        self._metadata = services.metadata
        self._partitions = partitions
        self._own = services.me

    def shown(self, topic: str, number: int, image: PartitionImage) -> ShownLeader:
        """Return the leader and the offline replicas of a partition of the newest image.

        Replicas are offline on a fenced broker, and on this broker after a storage failure.

        The image may show this broker as the leader before it has opened the partition, or after it has resigned
        because its session may have ended. A client that sees no leader asks again, whereas some of its calls would
        fail with NOT_LEADER.
        """
        own, brokers = self._own, self._metadata.image.brokers
        is_failed = own in image.replicas and self._partitions.offline_reason(topic, number) is not None
        offline = tuple(
            node
            for node in image.replicas
            if node not in brokers or brokers[node].is_fenced or (is_failed and node == own)
        )
        is_led = image.leader != own or (not is_failed and self._leads(topic, number))
        return ShownLeader(image.leader if is_led else NO_LEADER, offline)

    def _leads(self, topic: str, number: int) -> bool:
        partition = self._partitions.get(topic, number)
        return partition is not None and partition.leader_term is not None
