"""The simulation of a cluster has teeth: each bug that is planted here breaks an invariant within so many seeds."""

from collections.abc import Callable

import pytest

from conveyor.replication.partition import Partition
from conveyor.replication.roles import Leader
from conveyor.replication.streams.follower_end import FollowerEnd
from conveyor.testing.simulation.cluster.cluster_schedule import make_cluster_schedule
from conveyor.testing.simulation.cluster.cluster_story import play_cluster
from tests.simulation.seeds import check_found

SEEDS = 200
LOST = {"NoAcknowledgedLoss", "NothingTakenBack", "CommittedOffsetsHold", "NoResurrectedAck", "LogMatching"}


def commit_without_the_followers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The high watermark waits for the leader only."""

    def wait_for_replicas(self: Partition) -> None:
        role, log = self.role, self.log
        if isinstance(role, Leader):
            self._progress.begin({role.leader}, is_new_epoch=False)
            self._report(role.leader, self._durable(log.written_offset, log.flushed_offset))

    monkeypatch.setattr(Partition, "_wait_for_replicas", wait_for_replicas)


def keep_diverging_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower does not cut off the records that its leader does not have."""
    monkeypatch.setattr(FollowerEnd, "_diverged", lambda *_: None)


PLANTED: dict[Callable[[pytest.MonkeyPatch], None], set[str]] = {
    commit_without_the_followers: LOST | {"ClusterSettles"},
    keep_diverging_records: LOST | {"ClusterSettles"},
}
"""A replica that would have to cut off committed records takes its partition offline instead, so it does not settle."""


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    check_found(lambda seed: play_cluster(make_cluster_schedule(seed)), SEEDS, PLANTED[plant])
