"""The state of a bundle is its owner's; companions have copies with leader epochs of their own."""

from dataclasses import replace

import msgspec
import pytest

from conveyor.cluster.changes import partition_changed
from conveyor.cluster.controller.bundles import bundle_changes, bundle_policy, existing_bundle, owners
from conveyor.cluster.image import NO_EPOCH
from conveyor.kernel.errors import ErrorKind
from conveyor.kernel.ids import LeaderEpoch, NodeId
from conveyor.settings.tree import from_sources
from tests.unit.cluster.controller.clusters import SETTINGS, cluster, nodes, partition, refused
from tests.unit.cluster.images import changed

COMPANION = "__queue_state.t"
IMAGE = cluster(partition([1, 2]), with_companion=True)


def test_companion_follows_its_owner_and_its_epoch_does_not_fall() -> None:
    later = msgspec.structs.replace(partition([1, 2]), leader_epoch=LeaderEpoch(9), partition_epoch=4)
    image = changed(IMAGE, partition_changed(COMPANION, 0, later))
    after = msgspec.structs.replace(partition([1, 2], [2]), leader_epoch=LeaderEpoch(6), unclean_epoch=LeaderEpoch(6))
    image = changed(image, *bundle_changes(image, image.topics["t"], 0, after))
    [owner], [copy] = image.topics["t"].partitions, image.topics[COMPANION].partitions
    assert (owner.leader_epoch, owner.partition_epoch, owner.unclean_epoch) == (6, 1, 6)
    assert (copy.leader_epoch, copy.partition_epoch, copy.unclean_epoch) == (10, 5, 10)
    assert (copy.leader, copy.isr) == (NodeId(2), nodes(2))


def test_mark_of_an_unclean_election_stays() -> None:
    after = msgspec.structs.replace(IMAGE.topics["t"].partitions[0], isr=nodes(1))
    image = changed(IMAGE, *bundle_changes(IMAGE, IMAGE.topics["t"], 0, after))
    assert image.topics[COMPANION].partitions[0].unclean_epoch == NO_EPOCH


def test_companion_with_fewer_partitions_is_left_out() -> None:
    image = changed(cluster(partition([1]), partition([1])), *())
    topic = image.topics["t"]
    assert len(list(bundle_changes(image, topic, 1, topic.partitions[1]))) == 1


def test_policy_is_of_the_topic_or_the_defaults() -> None:
    topic = IMAGE.topics["t"]
    policy = bundle_policy(topic, SETTINGS)
    assert (policy.min_insync, policy.allows_unclean) == (1, False)
    defaults = from_sources({"topics.min_insync_replicas": 2})
    own = replace(topic, config={"unclean.leader.election.enable": "true"})
    policy = bundle_policy(own, defaults)
    assert (policy.min_insync, policy.allows_unclean) == (2, True)


def test_companions_are_not_bundles_of_their_own() -> None:
    assert [topic.name for topic in owners(IMAGE)] == ["t"]
    assert refused(existing_bundle, IMAGE, COMPANION, 0) is ErrorKind.INVALID_TOPIC


@pytest.mark.parametrize(("name", "number"), [("u", 0), ("t", 1), ("t", -1)])
def test_unknown_bundle_is_refused(name: str, number: int) -> None:
    assert refused(existing_bundle, IMAGE, name, number) is ErrorKind.UNKNOWN_TOPIC
