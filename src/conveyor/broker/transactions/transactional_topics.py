"""Which partitions can take part in transactions."""

from conveyor.cluster.image import ClusterImage, is_internal
from conveyor.cluster.topic_decisions import owned_by_broker
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import TopicPartition


def check_takes_part(image: ClusterImage, partition: TopicPartition) -> None:
    """Raise RequestError if a producer cannot add a partition to its transaction."""
    if is_internal(partition.topic):
        raise owned_by_broker(partition.topic)
    if image.partition(*partition) is None:
        raise RequestError(ErrorKind.UNKNOWN_TOPIC, f"topic '{partition.topic}' has no partition {partition.partition}")
