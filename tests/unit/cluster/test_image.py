"""The image: each change makes a new one, and a topic comes back from the metadata tree as it was."""

from uuid import UUID

import pytest

from conveyor.cluster.image import (
    BrokerImage,
    ClusterImage,
    PartitionImage,
    TopicImage,
    decode_topic,
    encode_topic,
    topic_path,
)
from conveyor.kernel.ids import LeaderEpoch, NodeId, TopicId

EMPTY = ClusterImage(cluster_id="c", controller_id=NodeId(1))
PARTITION = PartitionImage(
    leader=NodeId(2), leader_epoch=LeaderEpoch(5), replicas=(NodeId(2), NodeId(1)), isr=(NodeId(2),)
)


def topic(name: str, number: int, partitions: int = 1) -> TopicImage:
    identity = TopicId(UUID(int=number))
    return TopicImage(name=name, topic_id=identity, partitions=(PARTITION,) * partitions, config={"segment.ms": "5"})


def test_a_change_leaves_the_old_image_as_it_was() -> None:
    changed = EMPTY.with_topics(topic("a", 1)).with_broker(BrokerImage(node_id=NodeId(1), host="h", port=1))
    assert (len(EMPTY.topics), len(EMPTY.brokers)) == (0, 0)
    assert (list(changed.topics), list(changed.brokers)) == (["a"], [1])


def test_topics_are_found_by_name_and_by_id() -> None:
    image = EMPTY.with_topics(topic("a", 1), topic("b", 2))
    assert image.names_by_id == {UUID(int=1): "a", UUID(int=2): "b"}
    assert image.topics["b"].topic_id == UUID(int=2)


def test_a_removed_topic_is_found_no_more() -> None:
    image = EMPTY.with_topics(topic("a", 1), topic("b", 2)).without_topic("a")
    assert set(image.topics) == set(image.names_by_id.values()) == {"b"}


def test_a_topic_made_anew_replaces_the_old_one() -> None:
    image = EMPTY.with_topics(topic("a", 1)).with_topics(topic("a", 2))
    assert image.names_by_id == {UUID(int=2): "a"}


def test_partitions_are_counted_over_all_topics() -> None:
    assert EMPTY.with_topics(topic("a", 1, 3), topic("b", 2, 4)).partition_count == 7


def test_the_maps_of_an_image_cannot_be_written() -> None:
    image = EMPTY.with_topics(topic("a", 1))
    with pytest.raises(TypeError):
        image.topics["b"] = topic("b", 2)  # type: ignore[index]


def test_a_topic_comes_back_from_its_node() -> None:
    kept = topic("a", 1, 2)
    assert decode_topic("a", encode_topic(kept)) == kept


def test_the_brokers_own_topics_are_known() -> None:
    assert topic("__consumer_offsets", 1).is_internal
    assert not topic("mine", 2).is_internal


def test_a_topics_node_is_named_after_it() -> None:
    assert topic_path("a.b_c") == "/topics/a.b_c"
