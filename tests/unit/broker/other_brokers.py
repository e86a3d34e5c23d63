"""A broker, number 1, whose image shows a cluster: brokers 2 and 3 as well, of which no process runs."""

from typing import Any

from conveyor.broker.broker_node import BrokerNode
from conveyor.cluster.changes import broker_registered, partition_changed
from conveyor.cluster.image import BrokerImage, ClusterImage, PartitionImage
from conveyor.kernel.ids import NodeId
from tests.unit.broker.parts import propose


def other_broker(node_id: int, **fields: Any) -> BrokerImage:
    return BrokerImage(node_id=NodeId(node_id), host=f"broker{node_id}.example", port=9092, rack="r2", **fields)


async def join(broker: BrokerNode, *brokers: BrokerImage) -> ClusterImage:
    """Register other brokers, or change their registrations."""
    return await propose(broker, *map(broker_registered, brokers))


async def join_two(broker: BrokerNode) -> ClusterImage:
    return await join(broker, other_broker(2), other_broker(3))


async def put_partition(broker: BrokerNode, topic: str, number: int, partition: PartitionImage) -> None:
    await propose(broker, partition_changed(topic, number, partition))
