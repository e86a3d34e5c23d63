"""Plans that balance a cluster."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.cluster.changes import BrokerRegistered
from conveyor.cluster.controller.reassignments import Reassignment, reassigned
from conveyor.cluster.controller.replica_balance import balance_plan
from conveyor.cluster.image import ClusterImage, PartitionImage
from conveyor.kernel.ids import NodeId
from tests.unit.cluster.controller.clusters import SETTINGS, cluster, partition
from tests.unit.cluster.images import changed


def with_racks(image: ClusterImage, racks: dict[int, str]) -> ClusterImage:
    return changed(
        image,
        *(
            BrokerRegistered(node_id=NodeId(node), host=f"host{node}", port=9092, rack=rack)
            for node, rack in racks.items()
        ),
    )


def planned(*partitions: PartitionImage, brokers: tuple[int, ...]) -> list[tuple[int, tuple[int, ...]]]:
    return targets(balance_plan(cluster(*partitions, brokers=brokers)))


def targets(plan: list[Reassignment]) -> list[tuple[int, tuple[int, ...]]]:
    return [(item.partition, item.target or ()) for item in plan]


def test_a_balanced_cluster_needs_no_moves() -> None:
    assert planned(partition((1, 2)), partition((2, 3)), partition((3, 1)), brokers=(1, 2, 3)) == []


def test_a_new_broker_takes_its_share_and_followers_move_first() -> None:
    plan = planned(*[partition((1, 2))] * 2, *[partition((2, 1))] * 2, brokers=(1, 2, 3))
    assert plan == [(0, (3, 1)), (2, (2, 3))]


def test_preferred_leaders_are_spread_without_moves() -> None:
    assert planned(*[partition((1, 2))] * 4, brokers=(1, 2)) == [(0, (2, 1)), (1, (2, 1))]


def test_replicas_stay_on_fenced_brokers() -> None:
    image = cluster(*[partition((1, 3))] * 3, brokers=(1, 2, 3))
    fenced = changed(image, BrokerRegistered(node_id=NodeId(3), host="h", port=1, is_fenced=True))
    plan = targets(balance_plan(fenced))
    assert [replicas for _, replicas in plan] == [(2, 3)]


def test_a_partition_in_a_reassignment_is_left_alone() -> None:
    moving = partition((2, 1), (1,), leader=1, origin=(1,), target=(2,))
    assert planned(moving, partition((1,)), brokers=(1, 2)) == []


def test_a_partition_keeps_its_racks() -> None:
    image = cluster(*[partition((1, 3))] * 4, brokers=(1, 2, 3))
    racks = with_racks(image, {1: "a", 2: "b", 3: "b"})
    for _, replicas in targets(balance_plan(racks)):
        assert 1 in replicas, "broker 1 is the only one in its rack"


@pytest.mark.slow
@given(
    st.lists(
        st.permutations((1, 2, 3, 4)).flatmap(lambda order: st.integers(1, 3).map(lambda n: order[:n])), max_size=12
    ),
    st.sampled_from([{}, {1: "a", 2: "a", 3: "b", 4: "b"}]),
)
def test_plans_balance_and_a_second_plan_is_empty(assigned: list[list[int]], racks: dict[int, str]) -> None:
    image = with_racks(cluster(*map(partition, assigned)), racks)
    before = image.topics["t"].partitions
    for request in balance_plan(image):
        image = changed(image, *reassigned(image, request, SETTINGS))
    after = [item.target or item.replicas for item in image.topics["t"].partitions]
    assert [len(replicas) for replicas in after] == [item.replication_factor for item in before]
    assert all(len(set(replicas)) == len(replicas) for replicas in after)
    held = Counter(node for replicas in after for node in replicas)
    if not racks and assigned:
        assert max(held.values()) - min(held[NodeId(node)] for node in (1, 2, 3, 4)) <= 1
    assert balance_plan(image) == []


@pytest.mark.parametrize("count", [0, 1])
def test_small_clusters_need_no_moves(count: int) -> None:
    assert planned(*[partition((1,))] * count, brokers=(1,)) == []
