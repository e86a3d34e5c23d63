"""Checks the images of a simulated broker.

Invariants, by the names that failures report:

    ImageIsLog               an image is the fold of the stored entries up to its number, and the number never goes back
    WholeBundles             companions, delayed topics among them, have the partitions of their topic with the same
                             leaders and replicas; every subscription and schedule has its topic; a delayed topic has
                             its state
"""

from collections.abc import Callable

from conveyor.cluster.changes import fold
from conveyor.cluster.image import DELAY_STATE, ClusterImage, TopicImage, companion
from conveyor.cluster.metadata_log import HEAD_PATH, chunk_path, decode_chunk, decode_entry, decode_head, entry_path
from simulation.ledger import InvariantBroken


class ImageLedger:
    """Checks every image that a broker observes. stored: returns the current nodes of the metadata store."""

    def __init__(self, stored: Callable[[], dict[str, bytes]]) -> None:
        self._stored = stored
        self._seq = 0
        self._fold = ClusterImage()

    def observe(self, image: ClusterImage) -> None:
        """Check an image that a broker has observed."""
        if image.seq < self._seq:
            raise InvariantBroken("ImageIsLog", f"the image goes back from {self._seq} to {image.seq}")
        self._seq = image.seq
        expected = self._fold_up_to(image.seq)
        if _content(image) != _content(expected):
            raise InvariantBroken("ImageIsLog", f"image {image.seq} is {image}, stored is {expected}")
        _check_bundles(image)

    def _fold_up_to(self, seq: int) -> ClusterImage:
        nodes = self._stored()
        if HEAD_PATH not in nodes:
            return ClusterImage()
        head = decode_head(nodes[HEAD_PATH])
        if head.seq < seq:
            raise InvariantBroken("ImageIsLog", f"image {seq} is ahead of the stored log, which ends at {head.seq}")
        if self._fold.seq < head.snapshot <= seq:
            self._fold = ClusterImage()
            for path in (chunk_path(head.snapshot, number) for number in range(head.chunks)):
                self._fold = fold(self._fold, decode_chunk(path, nodes[path]), head.snapshot)
        for number in range(self._fold.seq + 1, seq + 1):
            self._fold = fold(self._fold, decode_entry(number, nodes[entry_path(number)]).changes, number)
        return self._fold


def _content(image: ClusterImage) -> tuple[object, ...]:
    """Return the image without the brokers, because a broker observes its own registration before it is stored."""
    return image.topics, image.subscriptions, image.schedules, image.quotas, image.configs, image.next_producer_id


def _check_bundles(image: ClusterImage) -> None:
    owned = [(subscription.name, subscription.topic_id) for subscription in image.subscriptions.values()]
    owned += [(schedule.name, schedule.topic_id) for schedule in image.schedules.values()]
    orphans = [name for name, topic_id in owned if image.topic_by_id(topic_id) is None]
    if orphans:
        raise InvariantBroken("WholeBundles", f"image {image.seq}: {orphans} have no topics")
    for topic in image.topics.values():
        owner = image.topics.get(image.bundle_owner(topic.name))
        if owner is None or _places(owner) != _places(topic):
            raise InvariantBroken("WholeBundles", f"image {image.seq}: {topic} does not match {owner}")
        if topic.delay_target is not None and companion(DELAY_STATE, topic.name) not in image.topics:
            raise InvariantBroken("WholeBundles", f"image {image.seq}: topic {topic.name} has no state")


def _places(topic: TopicImage) -> list[tuple[object, ...]]:
    return [(partition.leader, partition.replicas, partition.isr, partition.target) for partition in topic.partitions]
