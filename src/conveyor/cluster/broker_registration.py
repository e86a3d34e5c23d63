"""Checks whether a broker may register under its node id."""

from conveyor.cluster.image import ClusterImage
from conveyor.kernel.errors import StartupError
from conveyor.kernel.ids import NodeId


def check_node_id(image: ClusterImage, node_id: NodeId) -> None:
    """Refuse a changed `broker.node_id`: all partitions are assigned to the previous id, so none would be served.

    Raises StartupError.
    """
    holders = sorted(
        {node for topic in image.topics.values() for partition in topic.partitions for node in partition.replicas}
    )
    if holders and node_id not in holders:
        raise StartupError(
            f"broker.node_id is {node_id}, and the data directory belongs to broker {', '.join(map(str, holders))}:"
            f" start with --node-id {holders[0]}, or choose another directory with --data-dir"
        )
