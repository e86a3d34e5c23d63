"""Images for tests, created like the broker's: by folding changes."""

from conveyor.cluster.changes import Change, ClusterNamed, TopicRemoved, broker_registered, fold, topic_put
from conveyor.cluster.image import BrokerImage, ClusterImage, TopicImage

EMPTY = fold(ClusterImage(), [ClusterNamed(cluster_id="c")], seq=1)


def changed(image: ClusterImage, *changes: Change) -> ClusterImage:
    """Return the image after one more entry of the log."""
    return fold(image, changes, image.seq + 1)


def with_topics(image: ClusterImage, *topics: TopicImage) -> ClusterImage:
    return changed(image, *map(topic_put, topics))


def without_topic(image: ClusterImage, name: str) -> ClusterImage:
    return changed(image, TopicRemoved(name=name))


def with_brokers(image: ClusterImage, *brokers: BrokerImage) -> ClusterImage:
    return changed(image, *map(broker_registered, brokers))
