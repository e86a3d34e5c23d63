"""AlterPartition: each check in its order, and what the request changes."""

from typing import Any
from uuid import UUID

import msgspec
import pytest

from conveyor.cluster.controller.alter_partition import AlterPartition, IsrMember, altered_partition, withdrawn_joins
from conveyor.cluster.controller.controlled_shutdown import ShutdownRequest, stopping_broker
from conveyor.cluster.image import ClusterImage, PartitionImage
from conveyor.kernel.errors import ErrorKind
from conveyor.kernel.ids import LeaderEpoch, NodeId, TopicId
from tests.unit.cluster.controller.clusters import (
    SETTINGS,
    TOPIC_ID,
    cluster,
    first,
    leadership,
    live,
    nodes,
    observed,
    partition,
    refused,
    registration,
)
from tests.unit.cluster.images import changed


def member(node_id: int, epoch: int = 1) -> IsrMember:
    return IsrMember(NodeId(node_id), epoch)


def request(*isr: int, leader: int = 1, epoch: int = 1, **fields: Any) -> AlterPartition:
    given: dict[str, Any] = {
        "leader": member(leader, epoch),
        "topic_id": TOPIC_ID,
        "partition": 0,
        "leader_epoch": LeaderEpoch(5),
        "partition_epoch": 0,
        "isr": tuple(map(member, isr)),
    }
    return AlterPartition(**(given | fields))


def altered(image: ClusterImage, wanted: AlterPartition) -> PartitionImage:
    return first(changed(image, *altered_partition(image, wanted, SETTINGS)))


def stopping(image: ClusterImage, node_id: int) -> ClusterImage:
    return changed(image, *stopping_broker(image, ShutdownRequest(node_id=NodeId(node_id), broker_epoch=1), SETTINGS))


SHRUNK = partition([1, 2, 3], [1])
IMAGE = cluster(SHRUNK)


def test_isr_grows_and_shrinks_within_its_leader_epoch() -> None:
    state = altered(IMAGE, request(3, 1))
    assert (leadership(state), state.partition_epoch) == ((1, 5, (1, 3), ()), 1)
    assert leadership(altered(cluster(partition([1, 2, 3])), request(1))) == (1, 5, (1,), ())


def test_members_that_leave_a_small_isr_are_eligible() -> None:
    image = cluster(partition([1, 2, 3]), config={"min.insync.replicas": "2"})
    assert altered(image, request(1, 2)).elr == ()
    assert altered(image, request(1)).elr == (2, 3)


@pytest.mark.parametrize(
    ("wanted", "kind"),
    [
        (request(1, 2, leader=9), ErrorKind.BROKER_ID_NOT_REGISTERED),
        (request(1, 2, epoch=2), ErrorKind.STALE_BROKER_EPOCH),
        (request(1, 2, topic_id=TopicId(UUID(int=1))), ErrorKind.UNKNOWN_TOPIC_ID),
        (request(1, 2, partition=1), ErrorKind.UNKNOWN_TOPIC),
        (request(1, 2, partition=-1), ErrorKind.UNKNOWN_TOPIC),
        (request(1, 2, leader_epoch=LeaderEpoch(6)), ErrorKind.NOT_CONTROLLER),
        (request(1, 2, leader_epoch=LeaderEpoch(4)), ErrorKind.FENCED_LEADER_EPOCH),
        (request(1, 2, leader=2), ErrorKind.INVALID_REQUEST),
        (request(2), ErrorKind.INVALID_REQUEST),
        (request(), ErrorKind.INVALID_REQUEST),
        (request(1, 2, 2), ErrorKind.INVALID_REQUEST),
        (request(1, 4), ErrorKind.INVALID_REQUEST),
        (request(1, 2, partition_epoch=1), ErrorKind.NOT_CONTROLLER),
        (request(1, 2, partition_epoch=-1), ErrorKind.INVALID_UPDATE_VERSION),
        (request(1, 2, isr=(member(1), member(2, 2))), ErrorKind.INELIGIBLE_REPLICA),
    ],
)
def test_request_that_does_not_fit_the_image_is_refused(wanted: AlterPartition, kind: ErrorKind) -> None:
    assert refused(altered_partition, IMAGE, wanted, SETTINGS) is kind


def test_repeated_request_is_done_whatever_its_partition_epoch() -> None:
    """KAFKA-14144: the reply to the first one was lost."""
    wanted = request(1, 2)
    after = changed(IMAGE, *altered_partition(IMAGE, wanted, SETTINGS))
    assert altered_partition(after, wanted, SETTINGS) == []
    third = msgspec.structs.replace(wanted, isr=tuple(map(member, (1, 2, 3))))
    assert refused(altered_partition, after, third, SETTINGS) is ErrorKind.INVALID_UPDATE_VERSION


def test_withdrawn_joins_cannot_be_granted_any_more() -> None:
    image = cluster(partition([1, 2, 3], [1, 2]), with_companion=True)
    after = changed(image, *withdrawn_joins(image, request(1, 2)))
    assert (leadership(first(after)), first(after).partition_epoch) == (leadership(first(image)), 1)
    assert refused(altered_partition, after, request(1, 2, 3), SETTINGS) is ErrorKind.INVALID_UPDATE_VERSION
    assert refused(withdrawn_joins, after, request(1, 2)) is ErrorKind.INVALID_UPDATE_VERSION


def test_fenced_or_stopping_broker_does_not_join() -> None:
    assert refused(altered_partition, observed(IMAGE, live(1, 3)), request(1, 2), SETTINGS) is (
        ErrorKind.INELIGIBLE_REPLICA
    )
    assert refused(altered_partition, stopping(IMAGE, 2), request(1, 2), SETTINGS) is ErrorKind.INELIGIBLE_REPLICA


def test_broker_whose_directory_was_replaced_does_not_join_by_a_request_from_before() -> None:
    """KAFKA-14139."""
    wiped = observed(IMAGE, [registration(2, 2, past_incarnations=()), *live(1, 3)])
    assert refused(altered_partition, wiped, request(1, 2), SETTINGS) is ErrorKind.INELIGIBLE_REPLICA
    assert altered(wiped, request(1, isr=(member(1), member(2, 2)))).isr == (1, 2)


def test_last_stopping_leader_lets_another_replica_join_and_hands_over() -> None:
    image = stopping(IMAGE, 1)
    assert leadership(first(image)) == (1, 5, (1,), ())
    assert leadership(altered(image, request(1, 2))) == (2, 6, (2,), ())


def test_reassignment_completes_with_its_last_target_in_one_change() -> None:
    image = cluster(partition([4, 3, 1, 2], [1, 2], origin=[1, 2], target=[4, 3]))
    halfway = changed(image, *altered_partition(image, request(1, 2, 4), SETTINGS))
    assert first(halfway).target == nodes(4, 3)
    wanted = request(1, 2, 3, 4, partition_epoch=1)
    [change] = altered_partition(halfway, wanted, SETTINGS)
    state = first(changed(halfway, change))
    assert (leadership(state), state.replicas, state.target) == ((4, 6, (4, 3), ()), nodes(4, 3), ())
    assert refused(altered_partition, changed(halfway, change), wanted, SETTINGS) is ErrorKind.FENCED_LEADER_EPOCH
