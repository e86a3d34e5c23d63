"""Which partitions can take part in transactions."""

from conveyor.cluster.image import ClusterImage, is_internal
from conveyor.cluster.topic_decisions import owned_by_broker
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import TopicPartition
from conveyor.settings.tree import TopicSettings, topic_settings


def check_takes_part(image: ClusterImage, defaults: TopicSettings, partition: TopicPartition) -> None:
    """Raise RequestError if a producer cannot add a partition to its transaction. defaults: for settings of topics."""
    if is_internal(partition.topic):
        raise owned_by_broker(partition.topic)
    if image.partition(*partition) is None:
        raise RequestError(ErrorKind.UNKNOWN_TOPIC, f"topic '{partition.topic}' has no partition {partition.partition}")
    check_takes_transactions(partition.topic, topic_settings(defaults, image.topics[partition.topic].config))


def check_takes_transactions(topic: str, settings: TopicSettings) -> None:
    """Raise RequestError (POLICY_VIOLATION) if a topic cannot take part in transactions yet.

    An inbox, whose topic only the forwarder may write to, has no markers.
    """
    obstacle = None
    if settings.delay_enable:
        obstacle = "delay.enable=true"
    if obstacle is not None:
        raise RequestError(ErrorKind.POLICY_VIOLATION, f"topic '{topic}' takes no part in transactions: {obstacle}")
