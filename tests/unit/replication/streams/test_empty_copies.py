"""A follower whose log is empty and begins above 0 has no epoch that tells whether its leader's log continues it.

After an unclean election that leader may have ended below, and have gone on since.
"""

from dataclasses import replace

import pytest

from conveyor.kernel.ids import LeaderEpoch
from conveyor.replication.roles import Leader
from conveyor.settings.tree import TopicSettings
from tests.unit.log.logs import contents
from tests.unit.replication.parts import led
from tests.unit.replication.streams.pairs import EPOCH, FOLLOWS, LEADS, ONE, TWO, Pair, Replica
from tests.unit.replication.streams.test_superseded_copies import (
    ALONE,
    COMPACTED,
    ELECTED,
    MARKED,
    filled,
    follow_anew,
    put,
    swap,
)

PLAIN = TopicSettings()


def with_batches(count: int) -> Replica:
    made = Replica(LEADS, PLAIN)
    put(made, range(count))
    return made


def elected(settings: TopicSettings = PLAIN) -> Replica:
    """Return the log of a leader that had one batch when it was elected uncleanly, and has six more since."""
    made = Replica(LEADS, settings)
    put(made, range(1))
    made.partition.assume(ELECTED)
    put(made, range(100, 106))
    return made


def trim(replica: Replica, offset: int) -> None:
    job = replica.log.start.trim(offset)
    job.run()
    replica.log.start.complete_trim()


def check_the_same(connected: Pair) -> None:
    leader, follower = connected.leaders[0], connected.followers[0]
    assert contents(follower.log) == contents(leader.log)
    assert led(leader.partition).may_join(TWO)


@pytest.mark.parametrize("restarts", [False, True])
def test_log_whose_records_have_all_been_deleted(restarts: bool) -> None:
    follower = with_batches(5)
    trim(follower, 10)
    follower.log.leader_epochs.cut_end(10)
    if restarts:
        follower.log.close()
        follower.open(MARKED)
    else:
        follower.partition.assume(MARKED)
    connected = Pair([elected()], [follower])
    connected.exchange()
    check_the_same(connected)


def test_log_that_has_just_begun_again() -> None:
    leader = with_batches(10)
    leader.partition.assume(ALONE)
    trim(leader, 4)
    connected = Pair([leader], [Replica(FOLLOWS, PLAIN)])
    connected.to_leader()
    for frame in connected.leader.answers():
        connected.follower.received(frame)
    parts = connected.leader.data_frame()
    assert parts is not None
    connected.deliver(parts)
    while connected.follower.step(1):
        pass
    connected.interrupted()
    follower = connected.followers[0]
    assert follower.log.log_start_offset == follower.log.log_end_offset == 4
    follower.partition.assume(MARKED)
    follow_anew(connected, elected()).exchange()
    check_the_same(connected)


def test_log_whose_common_end_with_the_leader_is_found_in_two_steps() -> None:
    """It is below the start of the follower's log, but the end that the first step finds is not."""
    alone, (third, fourth, fifth) = replace(ALONE, epoch=EPOCH), (LeaderEpoch(EPOCH + each) for each in (2, 3, 4))
    leader = with_batches(2)
    for epoch, numbers in ((third, range(50, 52)), (fifth, range(80, 86))):
        leader.partition.assume(replace(alone, epoch=epoch))
        put(leader, numbers)
    follower = with_batches(10)
    follower.partition.assume(Leader(leader=ONE, epoch=fourth, isr=(ONE,), partition_epoch=1))
    put(follower, range(70, 72))
    trim(follower, 10)
    follower.partition.assume(replace(FOLLOWS, epoch=fifth, unclean_epoch=fifth))
    connected = Pair([leader], [follower])
    connected.exchange()
    check_the_same(connected)


def test_log_that_is_emptied_by_its_cut() -> None:
    """The logs have five batches in common. The follower has led since, and has deleted records up to above these."""
    leader, follower = with_batches(8), with_batches(5)
    follower.partition.assume(replace(ALONE, leader=TWO, isr=(TWO,), epoch=LeaderEpoch(EPOCH + 1)))
    put(follower, range(50, 54))
    trim(follower, 14)
    leader.partition.assume(ELECTED)
    put(leader, range(100, 102))
    follower.partition.assume(MARKED)
    connected = Pair([leader], [follower])
    connected.exchange()
    check_the_same(connected)


@pytest.mark.parametrize("portions", [2, 3, 4])
def test_copy_of_a_compacted_log_that_begins_above_0(portions: int) -> None:
    leader = filled(10)
    leader.partition.assume(ALONE)
    swap(leader)
    trim(leader, 4)
    connected = Pair([leader], [Replica(FOLLOWS, COMPACTED)])
    for _ in range(portions):
        connected.throttle.is_open, connected.throttle.portions = True, 1
        connected.exchange()
    assert connected.followers[0].log.log_start_offset == 4
    connected.followers[0].partition.assume(MARKED)
    follow_anew(connected, elected(COMPACTED)).exchange()
    check_the_same(connected)


def test_empty_log_stays_if_its_leader_begins_where_it_does() -> None:
    """It begins again at 0, and then where its leader does: only files are made anew, and once."""
    leader, follower = elected(), with_batches(7)
    trim(leader, 14)
    trim(follower, 14)
    follower.partition.assume(MARKED)
    connected = Pair([leader], [follower])
    connected.exchange()
    assert follower.log.log_start_offset == follower.log.log_end_offset == 14
    assert led(leader.partition).may_join(TWO)
    truncations = follower.log.truncation._jobs.truncations_count
    follow_anew(connected, leader).exchange()
    assert follower.log.truncation._jobs.truncations_count == truncations
