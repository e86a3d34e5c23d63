"""The log of a leader has failed: another replica leads, if one has all committed records."""

import pytest

from conveyor.cluster.controller.alter_partition import IsrMember
from conveyor.cluster.controller.failed_leaders import FailedLeader, replaced_leader
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

REQUEST = FailedLeader(leader=IsrMember(NodeId(1), 1), topic_id=TOPIC_ID, partition=0)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (partition([1, 2, 3]), (2, 6, (2, 3), ())),
        (partition([1, 2, 3], [1, 3]), (3, 6, (3,), ())),
        (partition([1, 2], [1], elr=[2]), (2, 6, (2,), ())),
        (partition([1, 2], [1]), (1, 5, (1,), ())),
        (partition([2, 1]), (2, 5, (2, 1), ())),
        (partition([1]), (1, 5, (1,), ())),
    ],
)
def test_another_replica_with_all_committed_records_leads(
    before: PartitionImage, after: tuple[int, int, tuple[int, ...], tuple[int, ...]]
) -> None:
    image = cluster(before)
    assert leadership(first(changed(image, *replaced_leader(image, REQUEST, SETTINGS)))) == after


def test_a_failed_leader_is_not_eligible() -> None:
    image = cluster(partition([1, 2]), config={"min.insync.replicas": "2"})
    assert leadership(first(changed(image, *replaced_leader(image, REQUEST, SETTINGS)))) == (2, 6, (2,), ())


def test_a_leader_stays_if_no_other_replica_is_live() -> None:
    image = observed(cluster(partition([1, 2], [1], elr=[2])), live(1))
    assert replaced_leader(image, REQUEST, SETTINGS) == []


def test_companions_change_with_their_owner() -> None:
    image = cluster(partition([1, 2]), with_companion=True)
    after = changed(image, *replaced_leader(image, REQUEST, SETTINGS))
    assert leadership(after.topics[companion(QUEUE_STATE, "t")].partitions[0]) == (2, 6, (2,), ())


def test_a_request_of_an_earlier_registration_is_refused() -> None:
    image = cluster(partition([1, 2]))
    request = FailedLeader(leader=IsrMember(NodeId(1), 0), topic_id=TOPIC_ID, partition=0)
    assert refused(replaced_leader, image, request, SETTINGS) is ErrorKind.STALE_BROKER_EPOCH
