"""Replicas are spread over racks, then to the brokers that hold the fewest."""

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.cluster.changes import BrokerRegistered, topic_put
from conveyor.cluster.image import ClusterImage, TopicImage
from conveyor.cluster.placement import Placement, new_partitions
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NodeId
from tests.unit.cluster.controller.clusters import TOPIC_ID, cluster, nodes, partition
from tests.unit.cluster.images import EMPTY, changed


def racks(by_node: Mapping[int, str | None], *, fenced: int = 0, stopping: int = 0) -> ClusterImage:
    return changed(
        EMPTY,
        *(
            BrokerRegistered(
                node_id=node, host="h", port=node, rack=rack, is_fenced=node == fenced, is_stopping=node == stopping
            )
            for node, rack in by_node.items()
        ),
    )


def test_replicas_of_a_partition_are_in_different_racks() -> None:
    placement = Placement(racks({1: "a", 2: "a", 3: "b", 4: "b"}))
    assert [placement.assign(2) for _ in range(4)] == [nodes(1, 3), nodes(2, 4), nodes(3, 1), nodes(4, 2)]


def test_brokers_without_a_rack_are_racks_of_their_own() -> None:
    placement = Placement(racks({1: None, 2: None, 3: None}))
    assert [placement.assign(2) for _ in range(3)] == [nodes(1, 2), nodes(2, 3), nodes(3, 1)]


def test_brokers_with_the_fewest_replicas_come_first() -> None:
    image = cluster(partition([1, 2]), partition([1, 2], origin=[1, 2], target=[1, 3]), brokers=[1, 2, 3])
    assert Placement(image).assign(1) == nodes(2)
    assert Placement(image).assign(2) == nodes(2, 3)


def test_companions_are_not_counted() -> None:
    assert Placement(cluster(partition([2]), brokers=[1, 2, 3], with_companion=True)).assign(3) == nodes(1, 3, 2)


def test_live_brokers_get_replicas_first() -> None:
    placement = Placement(racks({1: None, 2: None, 3: None, 4: None}, fenced=1, stopping=3))
    assert placement.assign(2) == nodes(2, 4)
    assert placement.assign(3) == nodes(4, 2, 1)
    assert placement.assign(4) == nodes(2, 4, 3, 1)


def test_preferred_leaders_are_live() -> None:
    placement = Placement(racks({1: None, 2: None, 3: None}, fenced=1))
    assert [placement.assign(3)[0] for _ in range(4)] == [*nodes(2, 3, 2, 3)]


@pytest.mark.parametrize(
    ("image", "factor", "message"),
    [
        (racks({1: None, 2: None, 3: None}, fenced=1), 4, "replication factor 4: there are 3 brokers"),
        (racks({1: None}, fenced=1), 1, "no broker is live"),
        (EMPTY, 1, "replication factor 1: there are 0 brokers"),
    ],
)
def test_factors_beyond_the_registered_brokers_are_refused(image: ClusterImage, factor: int, message: str) -> None:
    with pytest.raises(RequestError, match=message) as refusal:
        Placement(image).assign(factor)
    assert refusal.value.kind is ErrorKind.INVALID_REPLICATION_FACTOR


def test_substitute_takes_the_place_of_a_broker_and_keeps_the_racks_apart() -> None:
    placement = Placement(racks({1: "a", 2: "b", 3: "a", 4: "b"}))
    assert placement.substitute(nodes(1, 2), NodeId(1)) == nodes(3, 2)
    assert placement.substitute(nodes(2, 1), NodeId(2)) == nodes(4, 1)


def test_resized_replicas_are_the_first_ones_or_more() -> None:
    placement = Placement(racks({1: "a", 2: "a", 3: "b", 4: "b"}, fenced=4))
    assert placement.resize(nodes(1, 2), 3) == nodes(1, 2, 3)
    assert placement.resize(nodes(2), 2) == nodes(2, 3)
    assert placement.resize(nodes(4, 1), 1) == nodes(4)
    for factor in (0, -1, 4):
        with pytest.raises(RequestError) as refused:
            placement.resize(nodes(1), factor)
        assert refused.value.kind is ErrorKind.INVALID_REPLICATION_FACTOR


def test_replicas_of_a_new_partition_that_are_not_live_are_not_in_sync() -> None:
    image = racks({1: None, 2: None, 3: None}, fenced=1)
    [state] = new_partitions(image, [nodes(1, 2, 3)])
    assert (state.leader, state.isr, state.replicas) == (2, nodes(2, 3), nodes(1, 2, 3))
    with pytest.raises(RequestError, match=r"partition 5 .*none of these brokers is live") as refusal:
        new_partitions(image, [nodes(2), nodes(1)], 4)
    assert refusal.value.kind is ErrorKind.INVALID_REPLICA_ASSIGNMENT


@given(st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=7), st.integers(1, 12), st.data())
def test_many_partitions_are_assigned_as_one_after_the_other(
    racks_of: list[str | None], partitions: int, data: st.DataObject
) -> None:
    """Each replica goes to the broker whose rack has the fewest others of the partition, then to the least loaded."""
    held, preferred, assigned = Counter[int](), Counter[int](), list[tuple[int, ...]]()
    fenced = data.draw(st.integers(1, len(racks_of))) if len(racks_of) > 1 else 0
    factor = data.draw(st.integers(1, len(racks_of) - bool(fenced)))
    rack = {node: place or f"only {node}" for node, place in enumerate(racks_of, 1)}
    for _ in range(partitions):
        chosen: list[int] = []
        while len(chosen) < factor:
            used = Counter(rack[node] for node in chosen)
            rest = rack.keys() - {fenced, *chosen}
            chosen.append(min(rest, key=lambda node: (used[rack[node]], held[node], preferred[node], node)))
        first = min(chosen, key=lambda node: (preferred[node], node))
        held.update(chosen)
        preferred[first] += 1
        assigned.append((first, *(node for node in chosen if node != first)))
    placement = Placement(racks(dict(enumerate(racks_of, 1)), fenced=fenced))
    apart = data.draw(st.integers(0, partitions))
    counts = (apart, partitions - apart)
    assert [replicas for count in counts for replicas in placement.assign_all(factor, count)] == assigned


@given(st.integers(1, 6), st.integers(1, 12), st.data())
def test_same_racks_are_filled_evenly(brokers: int, partitions: int, data: st.DataObject) -> None:
    factor = data.draw(st.integers(1, brokers))
    placement = Placement(racks(dict.fromkeys(range(1, brokers + 1))))
    assigned = [placement.assign(factor) for _ in range(partitions)]
    held = Counter(node for replicas in assigned for node in replicas)
    leads = Counter(replicas[0] for replicas in assigned)
    assert all(len(set(replicas)) == factor for replicas in assigned)
    assert max(held.values()) - min(held.get(NodeId(node), 0) for node in range(1, brokers + 1)) <= 1
    assert sum(leads.values()) == partitions


def test_assignment_depends_on_the_image_only() -> None:
    image = racks({1: "a", 2: "b", 3: "a"})
    topic = TopicImage(name="t", topic_id=TOPIC_ID, partitions=(partition([2, 1]),))
    image = changed(image, topic_put(topic))
    assert [Placement(image).assign(2) for _ in range(2)] == [nodes(3, 2)] * 2
