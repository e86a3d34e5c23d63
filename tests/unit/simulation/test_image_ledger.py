"""The ledger of images: images match the store, companions match their topics."""

from dataclasses import replace
from uuid import UUID

import msgspec
import pytest

from conveyor.cluster.changes import fold, topic_put
from conveyor.cluster.image import QUEUE_STATE, ClusterImage, PartitionImage, TopicImage, companion
from conveyor.cluster.metadata_log import HEAD_PATH, LogEntry, LogHead, encode_entry, encode_head, entry_path
from conveyor.kernel.ids import LeaderEpoch, NodeId, TopicId
from simulation.image_ledger import ImageLedger
from simulation.ledger import InvariantBroken

_NODES = (NodeId(0),)
_PARTITION = PartitionImage(leader=NodeId(0), leader_epoch=LeaderEpoch(0), replicas=_NODES, isr=_NODES)
_TOPIC = TopicImage(name="orders", topic_id=TopicId(UUID(int=1)), partitions=(_PARTITION,))


def _stored(*topics: TopicImage) -> tuple[dict[str, bytes], ClusterImage]:
    """Return an entry of the log that creates topics, and its image."""
    changes = tuple(map(topic_put, topics))
    head = LogHead(seq=1, snapshot=0, chunks=1, batch=UUID(int=7))
    entry = LogEntry(controller_epoch=1, batch=head.batch, changes=changes)
    nodes = {HEAD_PATH: encode_head(head), entry_path(1): encode_entry(entry)}
    return nodes, fold(ClusterImage(), changes, 1)


def test_an_image_matches_the_store_and_never_goes_back() -> None:
    nodes, image = _stored(_TOPIC)
    ledger = ImageLedger(nodes.copy)
    ledger.observe(ClusterImage())
    ledger.observe(image)
    for wrong in (ClusterImage(), ClusterImage(seq=1), replace(image, seq=2)):
        with pytest.raises(InvariantBroken, match="ImageIsLog"):
            ledger.observe(wrong)


def test_a_companion_has_the_partitions_of_its_topic() -> None:
    state = TopicImage(
        name=companion(QUEUE_STATE, "orders"), topic_id=TopicId(UUID(int=2)), partitions=(_PARTITION, _PARTITION)
    )
    delayed = replace(_TOPIC, name="later", topic_id=TopicId(UUID(int=3)), config={"delay.target": "orders"})
    elsewhere = replace(delayed, partitions=(msgspec.structs.replace(_PARTITION, leader=NodeId(-1)),))
    for topics in ((_TOPIC, state), (state,), (_TOPIC, delayed), (_TOPIC, elsewhere), (delayed,)):
        nodes, image = _stored(*topics)
        with pytest.raises(InvariantBroken, match="WholeBundles"):
            ImageLedger(nodes.copy).observe(image)
