"""A follower removes the start of its log with its leader: when, how often, and after what."""

from typing import TypeVar

from conveyor.kernel.errors import DiskFull
from conveyor.kernel.ids import LeaderEpoch
from conveyor.log.segments.offset_file import LOG_START, read_offset
from conveyor.replication.roles import Follower
from conveyor.replication.streams.follower_end import FollowerEnd
from conveyor.replication.streams.frames import Follow, FollowerProgress, ProgressReport, decode_from_follower
from conveyor.replication.streams.log_tasks import TrimStart
from conveyor.settings.tree import TopicSettings
from tests.unit.log.logs import DIRECTORY, NOW_MS, TOPIC_ID
from tests.unit.replication.parts import led
from tests.unit.replication.streams.pairs import EPOCH, FOLLOWS, LEADS, TWO, Pair, Replica, carry_out

Entry = TypeVar("Entry", Follow, FollowerProgress)
NEXT = LeaderEpoch(EPOCH + 1)
SMALL = TopicSettings(segment_bytes=200)


def copied() -> Pair:
    """A leader with 20 records, and a follower that has copied them."""
    connected = Pair([Replica(LEADS, SMALL)], [Replica(FOLLOWS, SMALL)])
    for number in range(20):
        connected.leaders[0].append(b"%d" % number)
    connected.exchange()
    return connected


def sent(end: FollowerEnd, kind: type[Entry]) -> list[Entry]:
    """The entries of a kind that a follower sends now."""
    contents = [decode_from_follower(frame) for frame in end.frames()]
    entries = [content.progress if isinstance(content, ProgressReport) else content for content in contents]
    return [entry for several in entries for entry in several if isinstance(entry, kind)]


def trim_leader(connected: Pair) -> None:
    """Remove the records of the leader below offset 9, and tell the follower."""
    leader = connected.leaders[0]
    leader.log.start.trim(9).run()
    leader.log.start.complete_trim()
    assert connected.leader.has_offsets(leader.partition)
    parts = connected.leader.offsets_frame()
    assert parts is not None
    connected.deliver(parts)
    connected.follower.step(NOW_MS)


def test_a_follower_trims_its_log_with_the_leader_but_only_what_is_committed() -> None:
    connected = copied()
    trim_leader(connected)
    connected.exchange()
    assert connected.followers[0].log.log_start_offset == 9
    assert (
        connected.followers[0].log.segments.all[0].base_offset == connected.leaders[0].log.segments.all[0].base_offset
    )


def test_a_follower_reports_the_start_of_its_log_once_it_is_on_the_disk() -> None:
    connected = copied()
    leader, follower = connected.leaders[0].partition, connected.followers[0].partition
    trim_leader(connected)
    (_, task), *_ = connected.follower.trims
    assert task.begin(NOW_MS)
    connected.follower.progressed(follower)
    connected.to_leader()
    assert led(leader).replicas.reports[TWO].log_start_offset == 0
    task.run()
    task.complete()
    assert connected.follower.log_task_ended(follower)
    connected.to_leader()
    assert led(leader).replicas.reports[TWO].log_start_offset == 9


def test_a_trim_that_met_another_task_is_asked_for_again_when_that_task_ends() -> None:
    connected = copied()
    follower = connected.followers[0]
    trim_leader(connected)
    connected.follower.trims.clear()
    assert connected.follower.log_task_ended(follower.partition)
    connected.interrupted()
    assert follower.log.log_start_offset == 9
    connected.follower.unfollow(follower.partition)
    assert not connected.follower.log_task_ended(follower.partition)


def test_an_offline_follower_asks_for_no_trim() -> None:
    connected = copied()
    follower = connected.followers[0].partition
    trim_leader(connected)
    assert connected.follower.trims
    connected.follower.trims.clear()
    follower.go_offline(DiskFull("no space"))
    assert not connected.follower.log_task_ended(follower)
    assert not connected.follower.trims


def test_a_log_that_goes_offline_as_its_high_watermark_rises_is_not_trimmed() -> None:
    connected = copied()
    follower = connected.followers[0].partition
    follower.changed.listen(lambda _: follower.go_offline(DiskFull("no space")))
    trim_leader(connected)
    assert follower.offline.reason is not None
    assert not connected.follower.trims


def test_a_deposed_leader_reports_the_start_of_its_log_that_is_on_its_disk() -> None:
    old = copied().leaders[0]
    job = old.log.start.trim(4)
    old.partition.assume(Follower(leader=TWO, epoch=NEXT))
    end = FollowerEnd()
    end.follow(old.partition, TOPIC_ID)
    [follow] = sent(end, Follow)
    assert follow.log_start_offset == 0
    job.run()
    old.log.start.complete_trim()
    assert end.progressed(old.partition)
    [report] = sent(end, FollowerProgress)
    assert report.log_start_offset == 4


def test_a_deposed_leader_ends_its_own_trims_before_it_trims_with_its_successor() -> None:
    old = copied().leaders[0]
    earlier, later = old.log.start.trim(4), old.log.start.trim(6)
    old.partition.assume(Follower(leader=TWO, epoch=NEXT))
    task = TrimStart(old.partition, 9)
    for job in (earlier, later):
        assert not task.begin(NOW_MS)
        job.run()
        old.log.start.complete_trim()
    carry_out(task)
    assert read_offset(old.disk, DIRECTORY, LOG_START) == old.log.log_start_offset == 9
    assert not old.log.start.is_trimming
