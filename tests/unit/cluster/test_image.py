"""The image: each change creates a new one and leaves the old one unchanged."""

from uuid import UUID

import pytest

from conveyor.cluster.image import (
    BrokerImage,
    PartitionImage,
    TopicImage,
)
from conveyor.kernel.ids import LeaderEpoch, NodeId, TopicId
from tests.unit.cluster.images import EMPTY, with_brokers, with_topics, without_topic

PARTITION = PartitionImage(
    leader=NodeId(2), leader_epoch=LeaderEpoch(5), replicas=(NodeId(2), NodeId(1)), isr=(NodeId(2),)
)


def topic(name: str, number: int, partitions: int = 1) -> TopicImage:
    identity = TopicId(UUID(int=number))
    return TopicImage(name=name, topic_id=identity, partitions=(PARTITION,) * partitions, config={"segment.ms": "5"})


def test_a_change_leaves_the_old_image_as_it_was() -> None:
    changed = with_brokers(with_topics(EMPTY, topic("a", 1)), BrokerImage(node_id=NodeId(1), host="h", port=1))
    assert (len(EMPTY.topics), len(EMPTY.brokers)) == (0, 0)
    assert (list(changed.topics), list(changed.brokers)) == (["a"], [1])


def test_topics_are_found_by_name_and_by_id() -> None:
    image = with_topics(EMPTY, topic("a", 1), topic("b", 2))
    assert image.names_by_id == {UUID(int=1): "a", UUID(int=2): "b"}
    assert image.topics["b"].topic_id == UUID(int=2)


def test_a_removed_topic_is_found_no_more() -> None:
    image = without_topic(with_topics(EMPTY, topic("a", 1), topic("b", 2)), "a")
    assert set(image.topics) == set(image.names_by_id.values()) == {"b"}


def test_a_topic_made_anew_replaces_the_old_one() -> None:
    image = with_topics(with_topics(EMPTY, topic("a", 1)), topic("a", 2))
    assert image.names_by_id == {UUID(int=2): "a"}


def test_partitions_are_counted_over_all_topics() -> None:
    assert with_topics(EMPTY, topic("a", 1, 3), topic("b", 2, 4)).partition_count == 7


def test_the_maps_of_an_image_cannot_be_written() -> None:
    image = with_topics(EMPTY, topic("a", 1))
    with pytest.raises(TypeError):
        image.topics["b"] = topic("b", 2)  # type: ignore[index]


def test_the_brokers_own_topics_are_known() -> None:
    assert topic("__consumer_offsets", 1).is_internal
    assert not topic("mine", 2).is_internal


def test_the_controller_is_the_first_broker() -> None:
    brokers = [BrokerImage(node_id=NodeId(node), host="h", port=node) for node in (3, 2)]
    assert EMPTY.controller_id == -1
    assert with_brokers(EMPTY, *brokers).controller_id == 2


def test_reassignment_is_described_by_its_origin_and_target() -> None:
    one, two, three, four = (NodeId(number) for number in (1, 2, 3, 4))
    partition = PartitionImage(
        leader=one,
        leader_epoch=LeaderEpoch(0),
        replicas=(four, one, two, three),
        isr=(one,),
        origin=(one, two, three),
        target=(four, one),
    )
    assert (partition.adding, partition.removing, partition.replication_factor) == ((four,), (two, three), 2)
    assert (PARTITION.adding, PARTITION.removing, PARTITION.replication_factor) == ((), (), len(PARTITION.replicas))
