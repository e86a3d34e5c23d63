"""The leader that metadata responses show for a partition."""

from conveyor.broker.broker_node import BrokerNode
from conveyor.cluster.image import PartitionImage

NO_LEADER = -1


def shown_leader(broker: BrokerNode, topic: str, number: int, image: PartitionImage) -> int:
    """Return the leader's id; NO_LEADER if the partition is offline, or this broker leads it and has yet to open it.

    The image shows a new topic before its partitions are open. A client that sees no leader asks again, whereas some
    of its calls would fail with NOT_LEADER.
    """
    if broker.partitions.offline_reason(topic, number) is not None:
        return NO_LEADER
    if image.leader == broker.settings.broker.node_id and not broker.partitions.has(topic, number):
        return NO_LEADER
    return image.leader
