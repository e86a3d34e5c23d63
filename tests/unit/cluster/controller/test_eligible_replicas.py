"""A lower min.insync.replicas ends the ELR in the same entry."""

import pytest

from conveyor.cluster.changes import ConfigPut
from conveyor.cluster.controller.eligible_replicas import changed_defaults
from conveyor.cluster.image import ClusterImage, ConfigScope
from conveyor.cluster.topic_change import ConfigChange, Operation, changed_config
from conveyor.cluster.topic_decisions import changed_topic
from conveyor.settings.tree import from_sources
from tests.unit.cluster.controller.clusters import SETTINGS, cluster, live, observed, partition
from tests.unit.cluster.images import changed

PUT = ConfigPut(scope=ConfigScope.BROKERS, name="", texts={"min.insync.replicas": "1"})
SMALL = cluster(partition([1, 2, 3], [1], elr=[2, 3]), config={"min.insync.replicas": "3"}, with_companion=True)


def with_minimum(image: ClusterImage, value: int) -> ClusterImage:
    change = ConfigChange(name="min.insync.replicas", operation=Operation.SET, value=str(value))
    decided = changed_topic(image, "t", lambda topic: changed_config(topic, [change], SETTINGS), SETTINGS)
    return changed(image, *decided)


@pytest.mark.parametrize(("minimum", "elr"), [(1, ()), (2, (2, 3)), (4, (2, 3))])
def test_elr_ends_when_the_isr_suffices(minimum: int, elr: tuple[int, ...]) -> None:
    after = with_minimum(SMALL, minimum)
    for name in ("t", "__queue_state.t"):
        [state] = after.topics[name].partitions
        assert (state.elr, state.leader_epoch, state.partition_epoch) == (elr, 5, 0 if elr else 1)


def test_replica_is_not_elected_by_what_it_had_under_another_minimum() -> None:
    assert observed(SMALL, live(2, 3)).topics["t"].partitions[0].leader == 2
    assert observed(with_minimum(SMALL, 1), live(2, 3)).topics["t"].partitions[0].leader == -1


def test_lower_default_ends_the_elrs_of_topics_without_a_minimum_of_their_own() -> None:
    own = {"min.insync.replicas": "2"}
    state = partition([1, 2], [1], elr=[2])
    one, two = (from_sources({"topics.min_insync_replicas": minimum}) for minimum in (1, 2))
    assert changed_defaults(cluster(state, config=own), PUT, one) == [PUT]
    assert changed_defaults(cluster(state), PUT, two) == [PUT]
    put, change = changed_defaults(cluster(state), PUT, one)
    assert put == PUT
    assert changed(cluster(state), change).topics["t"].partitions[0].elr == ()


def test_lower_default_that_ends_many_elrs_is_stored_with_the_last_of_them() -> None:
    """A bundle is changed as a whole, in one decision."""
    image = cluster(*[partition([1, 2], [1], elr=[2])] * 5, with_companion=True)
    left = []
    while not image.configs:
        image = changed(image, *changed_defaults(image, PUT, SETTINGS, most_bundles=2))
        left.append([sum(bool(state.elr) for state in topic.partitions) for topic in image.topics.values()])
    assert left == [[3, 3], [1, 1], [0, 0]]
    assert changed_defaults(image, PUT, SETTINGS, most_bundles=2) == [PUT]
