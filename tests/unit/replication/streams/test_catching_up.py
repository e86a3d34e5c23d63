"""A leader sends records for in-sync replicas first, and throttles the others."""

from dataclasses import replace

from conveyor.log.log import Log
from conveyor.replication.roles import Leader
from conveyor.replication.streams.frames import WINDOW_BYTES
from conveyor.replication.streams.leader_end import CATCH_UP_WINDOW_BYTES, PORTION_BYTES
from tests.unit.replication.streams.pairs import EPOCH, FOLLOWS, LEADS, ONE, Pair, Replica

BIG = b"x" * 100_000
CATCHES_UP = Leader(leader=ONE, epoch=EPOCH, isr=(ONE,))


def half_in_sync() -> Pair:
    """Two partitions with large records: the follower is out of sync in the first, and in sync in the second."""
    leaders = [Replica(CATCHES_UP, number=0), Replica(LEADS, number=1)]
    connected = Pair(leaders, [Replica(FOLLOWS, number=number) for number in (0, 1)])
    for leader in leaders:
        for _ in range(60):
            leader.append(BIG)
    connected.to_leader()
    return connected


def sent_bytes(connected: Pair) -> int:
    """The bytes of records that the leader sends now."""
    while (parts := connected.leader.data_frame()) is not None:
        connected.deliver(parts)
    return sum(map(sum, connected.frames))


def test_records_for_in_sync_replicas_are_sent_first() -> None:
    connected = half_in_sync()
    assert sent_bytes(connected) >= WINDOW_BYTES
    assert connected.throttle.taken_bytes == 0


def test_replicas_that_catch_up_leave_a_part_of_the_window_to_the_others() -> None:
    connected = half_in_sync()
    connected.leaders[1].partition.assume(replace(CATCHES_UP, partition_epoch=1))
    connected.leader.changed(connected.leaders[1].partition)
    connected.leader.written(connected.leaders[1].partition)
    caught_up = sent_bytes(connected)
    assert CATCH_UP_WINDOW_BYTES <= caught_up < CATCH_UP_WINDOW_BYTES + PORTION_BYTES
    connected.leaders[1].partition.assume(replace(LEADS, partition_epoch=2))
    connected.leader.written(connected.leaders[1].partition)
    assert sent_bytes(connected) >= WINDOW_BYTES


def test_the_throttle_stops_only_replicas_that_catch_up() -> None:
    connected = half_in_sync()
    connected.throttle.is_open = False
    connected.exchange()
    assert [log.log_end_offset for log in logs_of(connected)] == [0, 60]
    throttled = [connected.leader.is_throttled]
    connected.throttle.is_open = True
    connected.exchange()
    assert [*throttled, connected.leader.is_throttled] == [True, False]
    assert connected.throttle.taken_bytes > 60 * len(BIG)
    assert [log.log_end_offset for log in logs_of(connected)] == [60, 60]


def test_a_replica_that_comes_in_sync_is_not_throttled_any_more() -> None:
    connected = half_in_sync()
    connected.throttle.is_open = False
    connected.exchange()
    partition = connected.leaders[0].partition
    assert not connected.leader.changed(connected.leaders[1].partition)
    partition.assume(replace(LEADS, partition_epoch=1))
    assert connected.leader.changed(partition)
    connected.exchange()
    assert [log.log_end_offset for log in logs_of(connected)] == [60, 60]


def logs_of(connected: Pair) -> list[Log]:
    return [follower.log for follower in connected.followers]
