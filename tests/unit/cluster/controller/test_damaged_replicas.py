"""The log of a follower is damaged: it may begin again, unless it may be the only copy."""

import pytest

from conveyor.cluster.controller.alter_partition import IsrMember
from conveyor.cluster.controller.damaged_replicas import (
    DamagedReplica,
    Doubt,
    is_withdrawn,
    withdrawn_replica,
    without_returning,
)
from conveyor.cluster.image import QUEUE_STATE, ClusterImage, PartitionImage, companion
from conveyor.kernel.errors import ErrorKind
from conveyor.kernel.ids import NodeId
from tests.unit.cluster.controller.clusters import (
    SETTINGS,
    TOPIC_ID,
    cluster,
    first,
    leadership,
    live,
    observed,
    partition,
    refused,
)
from tests.unit.cluster.images import changed

TWO = NodeId(2)
REQUEST = DamagedReplica(replica=IsrMember(TWO, 1), topic_id=TOPIC_ID, partition=0)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (partition([1, 2, 3]), (1, 6, (1, 3), ())),
        (partition([1, 2, 3], [1], elr=[2]), (1, 6, (1,), ())),
        (partition([1, 2, 3], [1, 3]), (1, 6, (1, 3), ())),
        (partition([2, 1], leader=1), (1, 6, (1,), ())),
    ],
)
def test_a_follower_leaves_in_a_new_epoch(
    before: PartitionImage, after: tuple[int, int, tuple[int, ...], tuple[int, ...]]
) -> None:
    image = cluster(before)
    withdrawn = first(changed(image, *withdrawn_replica(image, REQUEST, SETTINGS)))
    assert leadership(withdrawn) == after
    assert is_withdrawn(withdrawn, TWO)


@pytest.mark.parametrize("before", [partition([2, 1]), partition([1, 2], [1, 2], leader=-1), partition([1, 3])])
def test_a_log_that_may_be_the_only_copy_stays(before: PartitionImage) -> None:
    image = cluster(before)
    assert withdrawn_replica(image, REQUEST, SETTINGS) == []


def test_nothing_begins_again_while_the_leader_is_fenced() -> None:
    image = observed(cluster(partition([1, 2], [1])), live(2))
    assert withdrawn_replica(image, REQUEST, SETTINGS) == []


def test_companions_change_with_their_owner() -> None:
    image = cluster(partition([1, 2]), with_companion=True)
    after = changed(image, *withdrawn_replica(image, REQUEST, SETTINGS))
    assert leadership(after.topics[companion(QUEUE_STATE, "t")].partitions[0]) == (1, 6, (1,), ())


def test_a_request_of_an_earlier_registration_is_refused() -> None:
    image = cluster(partition([1, 2]))
    request = DamagedReplica(replica=IsrMember(TWO, 0), topic_id=TOPIC_ID, partition=0)
    assert refused(withdrawn_replica, image, request, SETTINGS) is ErrorKind.STALE_BROKER_EPOCH


@pytest.mark.parametrize("state", [partition([1, 2]), partition([1, 2], [1], elr=[2]), partition([2, 1], [2])])
def test_a_replica_with_expected_records_is_not_withdrawn(state: PartitionImage) -> None:
    assert not is_withdrawn(state, TWO)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (partition([1, 2, 3]), (1, 6, (1, 3), ())),
        (partition([2, 1]), (1, 6, (1,), ())),
        (partition([2, 1], [2], elr=[1]), (1, 6, (1,), ())),
        (partition([1, 2], [1], elr=[2]), (1, 6, (1,), ())),
        (partition([2, 1], [2]), (2, 5, (2,), ())),
        (partition([1, 3]), (1, 5, (1, 3), ())),
    ],
)
def test_a_broker_returns_without_its_damaged_logs(
    before: PartitionImage, after: tuple[int, int, tuple[int, ...], tuple[int, ...]]
) -> None:
    assert leadership(without_two(cluster(before), Doubt.DAMAGED)) == after


@pytest.mark.parametrize(
    ("before", "unproven", "lost"),
    [
        (partition([1, 2, 3]), (1, 6, (1, 3), ()), (1, 6, (1, 3), ())),
        (partition([2, 1], [2]), (-1, 6, (), ()), (-1, 6, (), ())),
        (partition([2]), (2, 5, (2,), ()), (-1, 6, (), ())),
        (partition([1, 2], [1], elr=[2]), (1, 6, (1,), ()), (1, 6, (1,), ())),
        (partition([1, 3]), (1, 5, (1, 3), ()), (1, 5, (1, 3), ())),
    ],
)
def test_a_broker_returns_without_the_logs_that_it_cannot_prove(
    before: PartitionImage,
    unproven: tuple[int, int, tuple[int, ...], tuple[int, ...]],
    lost: tuple[int, int, tuple[int, ...], tuple[int, ...]],
) -> None:
    """Even if it is the last member: other replicas would remove what they still have."""
    assert leadership(without_two(cluster(before), Doubt.UNPROVEN)) == unproven
    assert leadership(without_two(cluster(before), Doubt.LOST)) == lost


def test_an_unclean_election_does_not_prefer_a_lost_log() -> None:
    unproven, lost = (without_two(cluster(partition([2, 1], [2])), doubt) for doubt in (Doubt.UNPROVEN, Doubt.LOST))
    assert (unproven.last_known_leader, lost.last_known_leader) == (2, 1)
    leaderless = cluster(partition([2, 1], [], leader=-1, last_known_leader=2))
    assert without_two(leaderless, Doubt.LOST).last_known_leader == 1
    assert without_returning(leaderless, TWO, {(TOPIC_ID, 0): Doubt.UNPROVEN}, SETTINGS) == []


def test_the_last_dead_members_stay_in_sync_when_one_returns_with_damaged_logs() -> None:
    image = observed(cluster(partition([1, 2])), [])
    after = without_two(image, Doubt.DAMAGED)
    assert (after.leader, after.isr, after.elr) == (-1, (NodeId(1),), ())


def without_two(image: ClusterImage, doubt: Doubt) -> PartitionImage:
    """The first partition after broker 2 has found its log doubtful."""
    return first(changed(image, *without_returning(image, TWO, {(TOPIC_ID, 0): doubt}, SETTINGS)))
