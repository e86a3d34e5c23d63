"""Model: the open partitions as a dictionary. The steps from any image to any other make it what is wanted."""

from typing import Any
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from conveyor.cluster.assignment_diff import Assume, Close, Configure, Open, assignment_steps
from conveyor.cluster.changes import fold, topic_put
from conveyor.cluster.image import ClusterImage, PartitionImage, TopicImage
from conveyor.kernel.ids import LeaderEpoch, NodeId, TopicId

ME = NodeId(1)
NODES = [NodeId(number) for number in (1, 2, 3)]

partitions = st.builds(
    lambda replicas, epoch: PartitionImage(
        leader=replicas[0], leader_epoch=LeaderEpoch(epoch), replicas=tuple(replicas), isr=tuple(replicas)
    ),
    st.permutations(NODES).flatmap(lambda nodes: st.integers(1, 3).map(lambda count: nodes[:count])),
    st.integers(0, 2),
)
topics = st.builds(
    lambda name, again, held, config: TopicImage(
        name=name, topic_id=TopicId(UUID(int=ord(name) * 10 + again)), partitions=tuple(held), config=config
    ),
    st.sampled_from("abc"),
    st.integers(0, 1),
    st.lists(partitions, min_size=1, max_size=3),
    st.sampled_from([{}, {"segment.bytes": "1024"}]),
)
images = st.lists(topics, max_size=3, unique_by=lambda topic: topic.name).map(
    lambda made: fold(ClusterImage(), map(topic_put, made), seq=1)
)

Opened = dict[tuple[str, int], tuple[TopicId, PartitionImage, Any]]
"""By name and number: whose the log is, its role, its settings."""


def wanted(image: ClusterImage) -> Opened:
    return {
        (topic.name, number): (topic.topic_id, partition, dict(topic.config))
        for topic in image.topics.values()
        for number, partition in enumerate(topic.partitions)
        if ME in partition.replicas
    }


def take_steps(opened: Opened, before: ClusterImage, after: ClusterImage) -> None:
    for step in assignment_steps(before, after, ME):
        topic = step.topic
        if isinstance(step, Close):
            assert opened.pop((topic.name, step.number))[0] == topic.topic_id, "another topic's partition was closed"
        elif isinstance(step, Open):
            assert (topic.name, step.number) not in opened, "the name is not free"
            opened[topic.name, step.number] = topic.topic_id, topic.partitions[step.number], dict(topic.config)
        elif isinstance(step, Configure):
            for (name, number), (owner, partition, _) in opened.items():
                if name == topic.name:
                    opened[name, number] = owner, partition, dict(topic.config)
        elif isinstance(step, Assume):
            owner, _, config = opened[topic.name, step.number]
            opened[topic.name, step.number] = owner, topic.partitions[step.number], config


@given(st.lists(images, min_size=1, max_size=5))
def test_steps_lead_to_what_each_image_assigns(sequence: list[ClusterImage]) -> None:
    opened: Opened = {}
    before = ClusterImage()
    for after in sequence:
        take_steps(opened, before, after)
        assert opened == wanted(after)
        before = after


@given(images)
def test_an_image_that_stays_takes_no_step(image: ClusterImage) -> None:
    assert assignment_steps(image, image, ME) == []
