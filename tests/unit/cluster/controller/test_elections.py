"""Elections on request, and the balance of leaders."""

import pytest

from conveyor.cluster.controller.elections import ElectionRequest, balanced_leaders, elected_leader
from conveyor.cluster.controller.partition_transition import Election
from conveyor.cluster.image import ClusterImage, PartitionImage
from conveyor.kernel.errors import ErrorKind
from tests.unit.cluster.controller.clusters import (
    SETTINGS,
    cluster,
    first,
    leadership,
    live,
    observed,
    partition,
    refused,
)
from tests.unit.cluster.images import changed

PREFERRED = ElectionRequest(topic="t", partition=0, election=Election.PREFERRED)
UNCLEAN = ElectionRequest(topic="t", partition=0, election=Election.UNCLEAN)


def elected(image: ClusterImage, request: ElectionRequest) -> PartitionImage:
    return first(changed(image, *elected_leader(image, request, SETTINGS)))


def test_preferred_leader_takes_over() -> None:
    assert leadership(elected(cluster(partition([1, 2], leader=2)), PREFERRED)) == (1, 6, (1, 2), ())


def test_unclean_election_takes_a_replica_that_may_lack_records() -> None:
    image = observed(cluster(partition([1, 2], [1])), live(2))
    state = elected(image, UNCLEAN)
    assert (leadership(state), state.unclean_epoch) == ((2, 7, (2,), ()), 7)


MOVED = partition([1, 2], leader=2)
GONE = observed(cluster(partition([1, 2], [1])), [])


@pytest.mark.parametrize(
    ("image", "request_", "kind"),
    [
        (cluster(partition([1, 2])), PREFERRED, ErrorKind.ELECTION_NOT_NEEDED),
        (cluster(partition([1, 2])), UNCLEAN, ErrorKind.ELECTION_NOT_NEEDED),
        (cluster(partition([1, 2], [2])), PREFERRED, ErrorKind.PREFERRED_LEADER_NOT_AVAILABLE),
        (
            cluster(partition([1, 2], [1, 2], leader=2), brokers=[2]),
            PREFERRED,
            ErrorKind.PREFERRED_LEADER_NOT_AVAILABLE,
        ),
        (GONE, PREFERRED, ErrorKind.PREFERRED_LEADER_NOT_AVAILABLE),
        (GONE, UNCLEAN, ErrorKind.ELIGIBLE_LEADERS_NOT_AVAILABLE),
        (cluster(), UNCLEAN, ErrorKind.UNKNOWN_TOPIC),
    ],
)
def test_election_that_cannot_be_held_is_refused(
    image: ClusterImage, request_: ElectionRequest, kind: ErrorKind
) -> None:
    assert refused(elected_leader, image, request_, SETTINGS) is kind


def test_companion_is_elected_with_its_owner_only() -> None:
    image = cluster(partition([1, 2], leader=2), with_companion=True)
    request = ElectionRequest(topic="__queue_state.t", partition=0, election=Election.PREFERRED)
    assert refused(elected_leader, image, request, SETTINGS) is ErrorKind.INVALID_TOPIC
    assert (
        changed(image, *elected_leader(image, PREFERRED, SETTINGS)).topics["__queue_state.t"].partitions[0].leader == 1
    )


def balanced(image: ClusterImage) -> ClusterImage:
    return changed(image, *balanced_leaders(image, SETTINGS))


def leaders(image: ClusterImage) -> list[int]:
    return [state.leader for state in image.topics["t"].partitions]


def test_balance_restores_preferred_leaders_above_a_tenth() -> None:
    at_home, away = partition([1, 2]), partition([1, 2], leader=2)
    assert balanced_leaders(cluster(away, *[at_home] * 9), SETTINGS) == []
    assert leaders(balanced(cluster(away, away, *[at_home] * 8))) == [1] * 10


def test_balance_moves_fifty_leaderships_at_once() -> None:
    image = cluster(*[partition([1, 2], leader=2)] * 60)
    once = balanced(image)
    assert leaders(once).count(1) == 50
    assert leaders(balanced(once)).count(1) == 60


def test_balance_elects_only_live_replicas_of_the_isr() -> None:
    behind = partition([1, 2], [2])
    assert balanced_leaders(cluster(behind), SETTINGS) == []
    assert balanced_leaders(cluster(partition([1, 2], leader=2), brokers=[2]), SETTINGS) == []
