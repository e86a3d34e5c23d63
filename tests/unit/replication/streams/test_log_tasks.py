"""A follower's log is cut where it differs from its leader's, unless that removes committed records in silence."""

from dataclasses import replace

import pytest

from conveyor.kernel.errors import LogDiverged
from conveyor.kernel.ids import LeaderEpoch, NodeId
from conveyor.replication.roles import Follower
from conveyor.replication.streams.frames import Diverging
from conveyor.replication.streams.log_tasks import truncate
from tests.unit.log.logs import NOW_MS
from tests.unit.replication.parts import Owner, batch, followed


def test_follower_that_has_caught_up_after_an_unclean_election_cuts_nothing_more_in_silence() -> None:
    """The image keeps the mark of the election; no record of the new epoch tells that this replica has caught up."""
    owner = Owner()
    for _ in range(3):
        owner.partition.append(batch(b"record"), NOW_MS)
        owner.settle()
    epoch = owner.partition.term.epoch
    marked = Follower(leader=NodeId(2), epoch=LeaderEpoch(epoch + 1), unclean_epoch=LeaderEpoch(epoch + 1))
    owner.partition.assume(marked)
    owner.partition.assume(replace(marked, leader=NodeId(3), epoch=LeaderEpoch(epoch + 9), has_all_committed=True))
    with pytest.raises(LogDiverged):
        truncate(owner.partition, followed(owner.partition), Diverging(0, epoch, 1))
    owner.partition.assume(replace(marked, leader=NodeId(3), epoch=LeaderEpoch(epoch + 10)))
    truncate(owner.partition, followed(owner.partition), Diverging(0, epoch, 1))
    assert owner.partition.log.log_end_offset == 1
