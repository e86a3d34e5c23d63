"""Images for tests, created like the broker's: by folding changes."""

from conveyor.cluster.changes import BrokerRegistered, Change, ClusterNamed, TopicRemoved, fold, topic_put
from conveyor.cluster.image import BrokerImage, ClusterImage, TopicImage

EMPTY = fold(ClusterImage(), [ClusterNamed(cluster_id="c")], seq=1)


def registered(broker: BrokerImage) -> BrokerRegistered:
    return BrokerRegistered(node_id=broker.node_id, host=broker.host, port=broker.port, rack=broker.rack)


def changed(image: ClusterImage, *changes: Change) -> ClusterImage:
    """Return the image after one more entry of the log."""
    return fold(image, changes, image.seq + 1)


def with_topics(image: ClusterImage, *topics: TopicImage) -> ClusterImage:
    return changed(image, *map(topic_put, topics))


def without_topic(image: ClusterImage, name: str) -> ClusterImage:
    return changed(image, TopicRemoved(name=name))


def with_brokers(image: ClusterImage, *brokers: BrokerImage) -> ClusterImage:
    return changed(image, *map(registered, brokers))
