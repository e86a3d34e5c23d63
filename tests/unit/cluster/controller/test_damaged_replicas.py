"""The log of a follower is damaged: it may begin again, unless it may be the only copy."""

import pytest

from conveyor.cluster.controller.alter_partition import IsrMember
from conveyor.cluster.controller.damaged_replicas import (
    DamagedReplica,
    is_withdrawn,
    withdrawn_replica,
)
from conveyor.cluster.image import QUEUE_STATE, PartitionImage, companion
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
