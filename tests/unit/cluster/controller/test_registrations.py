"""Brokers come, go, and come back with or without their records."""

import sys
from types import FrameType
from typing import Any
from uuid import UUID

import msgspec
import pytest

from conveyor.adapters.zookeeper.zookeeper_store import MAX_REQUEST_BYTES
from conveyor.cluster.changes import BrokerRegistered, PartitionChanged, topic_put
from conveyor.cluster.controller.image_draft import MOST_BUNDLES
from conveyor.cluster.controller.registrations import (
    Doubt,
    Registration,
    check_broker_epoch,
    doubtful_bundles,
    observed_brokers,
    removed_broker,
    without_lost,
)
from conveyor.cluster.image import NO_LEADER, ClusterImage, PartitionImage, TopicImage
from conveyor.kernel.errors import ErrorKind
from conveyor.kernel.ids import NodeId, TopicId
from tests.unit.cluster.controller.clusters import (
    SETTINGS,
    cluster,
    first,
    leadership,
    live,
    observed,
    partition,
    refused,
    registration,
)
from tests.unit.cluster.images import EMPTY, changed

OS = {"flush.policy": "os"}
UNCLEAN = {"unclean.leader.election.enable": "true"}
SAFE = {"min.insync.replicas": "2"}


def test_broker_is_registered_with_all_it_has_stored() -> None:
    image = observed(EMPTY, [registration(1, 7, rack="a")])
    broker = image.brokers[NodeId(1)]
    assert (broker.host, broker.port, broker.rack, broker.broker_epoch) == ("host1", 9092, "a", 7)
    assert (broker.incarnation, broker.boot_id, broker.data_id) == ("1.7", "boot 1", "data 1")
    assert not broker.is_fenced


def test_broker_that_is_gone_is_fenced_and_leads_nothing() -> None:
    image = observed(cluster(partition([1, 2]), partition([2, 1])), live(2, 3))
    assert image.brokers[NodeId(1)].is_fenced
    assert [leadership(state) for state in image.topics["t"].partitions] == [(2, 6, (2,), ()), (2, 5, (2,), ())]
    assert [state.partition_epoch for state in image.topics["t"].partitions] == [1, 1]


def test_broker_that_was_away_within_one_observation_loses_its_leaderships() -> None:
    """KAFKA-7235: both epochs of the broker are of the same machine, but the leader of the old one may lag behind."""
    image = observed(cluster(partition([1, 2]), partition([1])), [registration(1, 2), *live(2)])
    assert image.brokers[NodeId(1)].broker_epoch == 2
    assert not image.brokers[NodeId(1)].is_fenced
    both, alone = image.topics["t"].partitions
    assert leadership(both) == (2, 6, (2,), ())
    assert leadership(alone) == (1, 7, (1,), ())
    assert alone.partition_epoch == 1


def test_newest_registration_of_a_broker_counts() -> None:
    image = cluster(partition([1]))
    assert observed_brokers(image, [registration(1, 1), registration(1, 0), *live(2, 3, 4)], SETTINGS) == []
    newer = observed(image, [registration(1, 3), registration(1, 2)])
    assert newer.brokers[NodeId(1)].broker_epoch == 3


def test_registration_that_the_image_has_outlived_counts_as_none() -> None:
    image = observed(cluster(partition([1])), [registration(1, 9)])
    after = observed(image, [registration(1, 5)])
    assert (after.brokers[NodeId(1)].broker_epoch, after.brokers[NodeId(1)].is_fenced) == (9, True)


def test_stopping_broker_is_not_stopping_after_it_has_registered_again() -> None:
    image = changed(EMPTY, BrokerRegistered(node_id=1, host="h", port=1, broker_epoch=1, is_stopping=True))
    assert not observed(image, [registration(1, 2)]).brokers[NodeId(1)].is_stopping


def returned(image: ClusterImage, *, away: bool, **fields: Any) -> PartitionImage:
    """The first partition after broker 1 is back. away: the controller has seen that it was gone."""
    others = live(2, 3, 4)
    before = observed(image, others) if away else image
    return first(observed(before, [registration(1, 2, **fields), *others]))


@pytest.mark.parametrize("away", [True, False])
def test_broker_that_returns_with_its_directory_keeps_its_place(away: bool) -> None:
    """What the directory knows to be missing, the broker has withdrawn before."""
    assert returned(cluster(partition([1, 2], [1]), config=OS), away=away, boot_id="another").leader == 1
    eligible = cluster(partition([2, 1], [2], elr=[1]), config=SAFE)
    assert returned(eligible, away=True).elr == (1,)


@pytest.mark.parametrize("away", [True, False])
@pytest.mark.parametrize(("replicas", "preferred"), [([1], NO_LEADER), ([1, 2], 2), ([2, 3, 1], 2)])
@pytest.mark.parametrize("known", [(), ("1.0",)], ids=["new", "older copy"])
def test_broker_with_another_directory_leads_nothing(
    replicas: list[int], preferred: int, away: bool, known: tuple[str, ...]
) -> None:
    """Nor is it preferred by an unclean election."""
    state = returned(cluster(partition(replicas, [1])), away=away, past_incarnations=known)
    assert (state.leader, state.isr, state.last_known_leader) == (NO_LEADER, (), preferred)


def test_broker_with_another_directory_is_not_eligible() -> None:
    eligible = cluster(partition([2, 1], [2], elr=[1]), config=SAFE)
    assert returned(eligible, away=True, past_incarnations=()).elr == ()


def test_registration_that_the_controller_has_never_seen_does_not_matter() -> None:
    known = ("1.1", "1.lost", "1.2")
    assert returned(cluster(partition([1, 2], [1])), away=True, past_incarnations=known).leader == 1


def doubtful(image: ClusterImage, doubt: Doubt, node_id: int = 1) -> PartitionImage:
    """The first partition after a broker is back with a doubt about its log."""
    others = live(*({1, 2, 3, 4} - {node_id}))
    doubts = doubtful_bundles({(image.topics["t"].topic_id, 0): doubt})
    return first(observed(observed(image, others), [registration(node_id, 2, doubts=doubts), *others]))


@pytest.mark.parametrize(
    ("before", "damaged", "unproven", "lost"),
    [
        (partition([1, 2, 3]), (2, (2, 3)), (2, (2, 3)), (2, (2, 3))),
        (partition([2, 1], [2], elr=[1]), (2, (2,)), (2, (2,)), (2, (2,))),
        (partition([1, 2], [1]), (1, (1,)), (NO_LEADER, ()), (NO_LEADER, ())),
        (partition([1]), (1, (1,)), (1, (1,)), (NO_LEADER, ())),
        (partition([2, 3]), (2, (2, 3)), (2, (2, 3)), (2, (2, 3))),
    ],
)
def test_broker_returns_without_its_doubtful_logs(
    before: PartitionImage, damaged: Any, unproven: Any, lost: Any
) -> None:
    """Even if it is the last member: it would make others remove what they still have."""
    for doubt, after in zip(Doubt, (damaged, unproven, lost), strict=True):
        state = doubtful(cluster(before, config=SAFE), doubt)
        assert ((state.leader, state.isr), state.elr) == (after, ())


def test_last_dead_members_stay_when_one_returns_with_a_damaged_log() -> None:
    image = observed(cluster(partition([1, 2])), [])
    doubts = doubtful_bundles({(image.topics["t"].topic_id, 0): Doubt.DAMAGED})
    state = first(observed(image, [registration(2, 2, doubts=doubts)]))
    assert (state.leader, state.isr, state.elr) == (NO_LEADER, (1,), ())


def test_unclean_election_does_not_prefer_a_lost_log() -> None:
    image = cluster(partition([1, 2], [1]))
    assert doubtful(image, Doubt.UNPROVEN).last_known_leader == 1
    assert doubtful(image, Doubt.LOST).last_known_leader == 2
    assert doubtful(cluster(partition([1, 2], [1]), config=UNCLEAN), Doubt.LOST).leader == 2


def test_doubt_about_a_topic_that_was_deleted_does_not_matter() -> None:
    image = cluster(partition([1, 2], [1]))
    doubts = doubtful_bundles({(TopicId(UUID(int=99)), 0): Doubt.LOST, (image.topics["t"].topic_id, 7): Doubt.LOST})
    assert returned(image, away=True, doubts=doubts).leader == 1


def test_registration_with_as_many_doubts_as_a_broker_has_partitions_fits_into_a_node() -> None:
    """ZooKeeper's limit is that of a commit. The partitions are those of one topic, or of one topic each."""
    one_topic = {(TopicId(UUID(int=1)), number): Doubt.UNPROVEN for number in range(20_000)}
    many_topics = {(TopicId(UUID(int=(1 << 127) + number)), 0): Doubt.UNPROVEN for number in range(20_000)}
    for doubts in (one_topic, many_topics):
        assert len(msgspec.json.encode(registration(1, doubts=doubtful_bundles(doubts)))) < MAX_REQUEST_BYTES


def test_registration_is_stored_with_its_doubts() -> None:
    doubts = doubtful_bundles({(TopicId(UUID(int=5)), 3): Doubt.UNPROVEN})
    item = registration(1, doubts=doubts)
    assert msgspec.json.decode(msgspec.json.encode(item), type=Registration) == item


@pytest.mark.parametrize("replicas", [[1], [1, 2]])
def test_broker_with_an_embedded_store_does_not_lead_what_it_has_lost(replicas: list[int]) -> None:
    image = cluster(partition(replicas, [1]))
    bundle = image.topics["t"].topic_id, 0
    after = changed(image, *without_lost(image, NodeId(1), [bundle], SETTINGS))
    assert (first(after).leader, first(after).isr) == (NO_LEADER, ())
    assert without_lost(after, NodeId(1), [bundle], SETTINGS) == []


def test_broker_with_an_embedded_store_leaves_many_lost_bundles_in_several_decisions() -> None:
    count = MOST_BUNDLES + 1
    image = cluster(*[partition([1])] * count)
    bundles = [(image.topics["t"].topic_id, number) for number in range(count)]
    first_changes = without_lost(image, NodeId(1), bundles, SETTINGS)
    after = changed(image, *first_changes)
    second_changes = without_lost(after, NodeId(1), bundles, SETTINGS)
    assert (len(first_changes), len(second_changes)) == (MOST_BUNDLES, 1)
    assert without_lost(changed(after, *second_changes), NodeId(1), bundles, SETTINGS) == []


def test_directory_of_an_earlier_version_counts_as_the_same() -> None:
    image = changed(EMPTY, BrokerRegistered(node_id=1, host="h", port=1))
    topic = TopicImage(name="t", topic_id=TopicId(UUID(int=1)), partitions=(partition([1]),))
    assert first(observed(changed(image, topic_put(topic)), live(1))).leader == 1


def test_unclean_election_is_held_where_the_topic_allows_it() -> None:
    image = cluster(partition([1, 2], [1]), config=UNCLEAN)
    state = first(observed(image, live(2, 3)))
    assert (leadership(state), state.unclean_epoch) == ((2, 7, (2,), ()), 7)
    assert first(observed(cluster(partition([1, 2], [1])), live(2, 3))).leader == NO_LEADER


def test_broker_that_was_briefly_away_is_not_replaced_by_an_unclean_leader() -> None:
    state = returned(cluster(partition([1, 2], [1]), config=UNCLEAN), away=False)
    assert (state.leader, state.unclean_epoch) == (1, -1)


def test_companion_has_the_state_of_its_owner() -> None:
    image = observed(cluster(partition([1, 2]), with_companion=True), live(2))
    [companion] = image.topics["__queue_state.t"].partitions
    assert companion == first(image)


def test_decision_in_parts_ends_as_the_whole() -> None:
    image = cluster(*(partition([1, 2], [1]) for _ in range(7)))
    registrations = [registration(1, 2, past_incarnations=()), *live(2, 3)]
    parts, steps = image, 0
    while changes := observed_brokers(parts, registrations, SETTINGS, most_bundles=2):
        assert sum(isinstance(change, PartitionChanged) for change in changes) <= 2
        parts, steps = changed(parts, *changes), steps + 1
    whole = observed(image, registrations)
    assert steps > 4
    assert [leadership(state) for state in parts.topics["t"].partitions] == [
        leadership(state) for state in whole.topics["t"].partitions
    ]
    assert parts.brokers == whole.brokers


def calls_of_failover(count: int) -> int:
    """The calls of Python functions in the decision that moves `count` leaderships: the same on every machine."""
    image = cluster(*(partition([1, 2, 3]) for _ in range(count)), with_companion=True)
    calls = 0

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(profile)
    try:
        changes = observed_brokers(image, live(2, 3, 4), SETTINGS)
    finally:
        sys.setprofile(None)
    assert len(changes) == 2 * count + 1
    return calls


def test_failover_of_a_thousand_partitions_is_linear() -> None:
    assert calls_of_failover(1_000) < 10.5 * calls_of_failover(100)


def test_fenced_broker_without_partitions_can_be_removed() -> None:
    image = observed(cluster(partition([1, 2])), live(2, 3))
    assert refused(removed_broker, image, 9) is ErrorKind.BROKER_ID_NOT_REGISTERED
    assert refused(removed_broker, image, 2) is ErrorKind.INVALID_REQUEST
    assert refused(removed_broker, image, 1) is ErrorKind.INVALID_REQUEST
    assert sorted(changed(image, *removed_broker(image, NodeId(4))).brokers) == [1, 2, 3]


def test_broker_epoch_is_checked() -> None:
    image = observed(cluster(partition([1])), [registration(1, 2), *live(3)])
    assert check_broker_epoch(image, NodeId(1), 2).node_id == 1
    for node_id, epoch in [(1, 1), (1, 3), (2, 1)]:
        assert refused(check_broker_epoch, image, node_id, epoch) is ErrorKind.STALE_BROKER_EPOCH
    assert refused(check_broker_epoch, image, 9, 1) is ErrorKind.BROKER_ID_NOT_REGISTERED


@pytest.mark.parametrize(
    ("doubts", "expected"),
    [
        ((Doubt.DAMAGED, Doubt.DAMAGED, Doubt.DAMAGED), (1, (1,))),
        ((Doubt.UNPROVEN, Doubt.DAMAGED, Doubt.DAMAGED), (2, (2,))),
        ((Doubt.LOST, Doubt.UNPROVEN, Doubt.DAMAGED), (3, (3,))),
        ((Doubt.UNPROVEN, Doubt.UNPROVEN, Doubt.UNPROVEN), (NO_LEADER, ())),
    ],
)
def test_one_of_the_members_that_return_together_with_damaged_logs_stays(
    doubts: tuple[Doubt, ...], expected: tuple[NodeId, tuple[NodeId, ...]]
) -> None:
    """As when they return one after the other. A power failure may damage the ends of all logs."""
    image = observed(cluster(partition([1, 2, 3])), [])
    topic_id = image.topics["t"].topic_id
    returning = [
        registration(node, 2, doubts=doubtful_bundles({(topic_id, 0): doubt})) for node, doubt in enumerate(doubts, 1)
    ]
    state = first(observed(image, returning))
    assert (state.leader, state.isr) == expected
