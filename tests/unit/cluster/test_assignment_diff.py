"""The steps from one image to another, for one broker."""

from dataclasses import replace
from uuid import UUID

from conveyor.cluster.assignment_diff import Assume, Close, Configure, Open, Step, assignment_steps
from conveyor.cluster.changes import SubscriptionPut, TopicRemoved, fold, topic_put
from conveyor.cluster.image import ClusterImage, PartitionImage, TopicImage
from conveyor.kernel.ids import LeaderEpoch, NodeId, TopicId

ME, OTHER = NodeId(1), NodeId(2)
EMPTY = ClusterImage()


def partition(*replicas: NodeId, epoch: int = 0, leader: NodeId | None = None) -> PartitionImage:
    return PartitionImage(
        leader=leader or replicas[0], leader_epoch=LeaderEpoch(epoch), replicas=replicas, isr=replicas
    )


def topic(name: str, *partitions: PartitionImage, number: int = 1) -> TopicImage:
    return TopicImage(name=name, topic_id=TopicId(UUID(int=number)), partitions=partitions)


def image(*topics: TopicImage) -> ClusterImage:
    return fold(EMPTY, map(topic_put, topics), seq=1)


def steps(before: ClusterImage, after: ClusterImage) -> list[Step]:
    return assignment_steps(before, after, ME)


A = topic("a", partition(ME), partition(OTHER), partition(OTHER, ME))


def test_only_partitions_that_the_broker_holds_are_opened() -> None:
    assert steps(EMPTY, image(A)) == [Open(A, 0), Open(A, 2)]


def test_a_deleted_topic_is_closed() -> None:
    after = fold(image(A), [TopicRemoved(name="a")], seq=2)
    assert steps(image(A), after) == [Close(A, 0, is_deleted=True), Close(A, 2, is_deleted=True)]


def test_a_topic_that_was_created_again_is_closed_and_then_opened() -> None:
    again = topic("a", partition(ME), number=2)
    assert steps(image(A), image(again)) == [
        Close(A, 0, is_deleted=True),
        Close(A, 2, is_deleted=True),
        Open(again, 0),
    ]


def test_a_partition_that_others_hold_now_is_closed() -> None:
    moved = replace(A, partitions=(partition(OTHER), *A.partitions[1:]))
    assert steps(image(A), image(moved)) == [Close(A, 0, is_deleted=False)]


def test_a_grown_topic_has_its_new_partitions_opened() -> None:
    grown = replace(A, partitions=(*A.partitions, partition(ME)))
    assert steps(image(A), image(grown)) == [Open(grown, 3)]


def test_other_settings_and_roles_are_taken_where_the_broker_holds_partitions() -> None:
    changed = replace(
        A,
        config={"segment.bytes": "1024"},
        partitions=(A.partitions[0], partition(OTHER, epoch=1), partition(OTHER, ME, epoch=1, leader=ME)),
    )
    assert steps(image(A), image(changed)) == [Configure(changed), Assume(changed, 2)]


def test_what_changes_other_than_topics_takes_no_step() -> None:
    before = image(A)
    change = SubscriptionPut(name="s", subscription_id=UUID(int=9), topic_id=A.topic_id, document="{}")
    assert steps(before, fold(before, [change], seq=2)) == []
    assert steps(before, image(A)) == [], "equal topics"
