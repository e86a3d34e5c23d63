"""Bundles move to other brokers: start, change of target, cancel, drain."""

import pytest

from conveyor.cluster.controller.alter_partition import AlterPartition, IsrMember, altered_partition
from conveyor.cluster.controller.reassignments import Reassignment, drain_plan, reassigned
from conveyor.cluster.image import NO_LEADER, ClusterImage, PartitionImage
from conveyor.kernel.errors import ErrorKind
from conveyor.kernel.ids import FIRST_GATEWAY_ID, NodeId
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
)
from tests.unit.cluster.images import changed


def to(*target: int) -> Reassignment:
    return Reassignment(topic="t", partition=0, target=nodes(*target))


CANCEL = Reassignment(topic="t", partition=0, target=None)


def moved(image: ClusterImage, *requests: Reassignment) -> ClusterImage:
    for request in requests:
        image = changed(image, *reassigned(image, request, SETTINGS))
        if request.target is not None:
            assert reassigned(image, request, SETTINGS) == []
    return image


def caught_up(image: ClusterImage, *isr: int) -> PartitionImage:
    """The leader finds these replicas in sync."""
    state = first(image)
    request = AlterPartition(
        leader=IsrMember(state.leader, 1),
        topic_id=TOPIC_ID,
        partition=0,
        leader_epoch=state.leader_epoch,
        partition_epoch=state.partition_epoch,
        isr=tuple(IsrMember(node, 1) for node in nodes(*isr)),
    )
    return first(changed(image, *altered_partition(image, request, SETTINGS)))


IMAGE = cluster(partition([1, 2, 3]))


def test_reassignment_adds_before_it_removes() -> None:
    image = moved(IMAGE, to(4, 2))
    state = first(image)
    assert (leadership(state), state.replicas) == ((1, 5, (2, 1, 3), ()), nodes(4, 2, 1, 3))
    assert (state.adding, state.removing, state.replication_factor) == (nodes(4), nodes(1, 3), 2)
    done = caught_up(image, 1, 2, 3, 4)
    assert (leadership(done), done.replicas, done.target) == ((4, 6, (4, 2), ()), nodes(4, 2), ())


def test_plain_shrink_completes_at_once_and_begins_an_epoch() -> None:
    state = first(moved(IMAGE, to(1, 2)))
    assert (leadership(state), state.replicas, state.partition_epoch) == ((1, 6, (1, 2), ()), nodes(1, 2), 1)


def test_shrink_that_drops_the_leader_begins_an_epoch() -> None:
    assert leadership(first(moved(IMAGE, to(2)))) == (2, 6, (2,), ())


def test_shrink_waits_for_a_target_outside_of_the_isr() -> None:
    image = moved(cluster(partition([1, 2], [1])), to(2))
    assert (first(image).replicas, first(image).leader, first(image).target) == (nodes(2, 1), 1, nodes(2))
    assert caught_up(image, 1, 2).replicas == nodes(2)


def test_other_order_changes_the_preferred_leader_only() -> None:
    state = first(moved(IMAGE, to(3, 1, 2)))
    assert (state.leader, state.leader_epoch, state.replicas, state.target) == (1, 5, nodes(3, 1, 2), ())


def test_cancel_restores_the_origin_in_its_order_and_fences_the_added_replicas() -> None:
    state = first(moved(IMAGE, to(4, 3), CANCEL))
    assert (leadership(state), state.replicas) == ((1, 6, (1, 2, 3), ()), nodes(1, 2, 3))
    assert (state.origin, state.target) == ((), ())


def test_other_target_keeps_the_origin() -> None:
    image = moved(cluster(partition([1, 2]), brokers=[1, 2, 3, 4, 5]), to(3, 4), to(5, 1))
    state = first(image)
    assert (state.replicas, state.origin, state.leader_epoch) == (nodes(5, 1, 2), nodes(1, 2), 6)
    assert first(moved(image, CANCEL)).replicas == nodes(1, 2)
    assert first(moved(image, to(1, 2))).target == ()


def test_growing_replication_does_not_raise_the_minimum_before_its_end() -> None:
    image = moved(cluster(partition([1]), config={"min.insync.replicas": "2"}), to(1, 2, 3))
    assert first(image).replication_factor == 1
    assert caught_up(image, 1, 2, 3).replication_factor == 3


def test_smaller_replication_ends_the_elr() -> None:
    image = cluster(partition([1, 2, 3], [1], elr=[2]), config={"min.insync.replicas": "2"})
    assert first(moved(image, to(3))).elr == ()


def test_companion_moves_with_its_owner() -> None:
    image = moved(cluster(partition([1, 2, 3]), with_companion=True), to(4, 2))
    assert image.topics["__queue_state.t"].partitions == image.topics["t"].partitions


@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        (CANCEL, ErrorKind.NO_REASSIGNMENT_IN_PROGRESS),
        (to(), ErrorKind.INVALID_REPLICA_ASSIGNMENT),
        (to(1, 1), ErrorKind.INVALID_REPLICA_ASSIGNMENT),
        (to(1, 9), ErrorKind.INVALID_REPLICA_ASSIGNMENT),
        (to(4), ErrorKind.INVALID_REPLICA_ASSIGNMENT),
        (to(FIRST_GATEWAY_ID), ErrorKind.INVALID_REPLICA_ASSIGNMENT),
        (Reassignment(topic="u", partition=0, target=nodes(1)), ErrorKind.UNKNOWN_TOPIC),
        (Reassignment(topic="t", partition=1, target=nodes(1)), ErrorKind.UNKNOWN_TOPIC),
        (Reassignment(topic="__queue_state.t", partition=0, target=nodes(1)), ErrorKind.INVALID_TOPIC),
    ],
)
def test_request_that_does_not_fit_the_image_is_refused(request_: Reassignment, kind: ErrorKind) -> None:
    image = observed(cluster(partition([1, 2, 3]), with_companion=True), live(1, 2, 3))
    assert refused(reassigned, image, request_, SETTINGS) is kind


def test_fenced_replica_may_stay_in_the_target() -> None:
    image = observed(IMAGE, live(1, 2, 4))
    assert first(moved(image, to(4, 3))).target == nodes(4, 3)


def test_cancel_that_would_drop_the_last_copy_in_sync_is_refused() -> None:
    moving = partition([4, 3, 1], [4], origin=[1], target=[4, 3])
    assert refused(reassigned, cluster(moving), CANCEL, SETTINGS) is ErrorKind.INVALID_REPLICA_ASSIGNMENT


def test_leaderless_bundle_can_be_reassigned() -> None:
    image = observed(cluster(partition([1], [1])), live(2, 3))
    assert (first(moved(image, to(2))).leader, first(moved(image, to(2))).target) == (NO_LEADER, nodes(2))


def test_drained_broker_holds_nothing() -> None:
    image = cluster(partition([1, 2]), partition([2, 1]), partition([3, 4]), partition([1]), with_companion=True)
    plan = drain_plan(image, NodeId(1))
    assert [request.partition for request in plan] == [0, 1, 3]
    for request in plan:
        assert request.target is not None
        assert 1 not in request.target
        image = changed(image, *reassigned(image, request, SETTINGS))
    assert [state.target for state in image.topics["t"].partitions] == [nodes(4, 2), nodes(2, 3), (), nodes(2)]
    assert drain_plan(image, NodeId(1)) == []


def test_broker_whose_partitions_nobody_can_take_is_not_drained() -> None:
    image = observed(IMAGE, live(1, 2, 3))
    assert refused(drain_plan, image, 1) is ErrorKind.INVALID_REPLICATION_FACTOR
