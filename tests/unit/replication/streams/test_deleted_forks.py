"""A deposed leader whose successor has deleted its records up to above the offset where their logs have parted.

The successor gives its log start as the end of the older epoch.
"""

from dataclasses import replace

import pytest

from conveyor.kernel.ids import LeaderEpoch
from conveyor.records.checked_batch import own_batch
from tests.unit.log.logs import NOW_MS, contents, idempotent_batch
from tests.unit.replication.parts import led
from tests.unit.replication.streams.pairs import EPOCH, FOLLOWS, LEADS, ONE, TWO, Pair, Replica
from tests.unit.replication.streams.test_empty_copies import trim

NEXT = LeaderEpoch(EPOCH + 1)
DEPOSED = replace(FOLLOWS, epoch=NEXT)


def deposed(*sizes: int) -> Replica:
    """Return the log of a deposed leader: one record, then batches of so many records of a producer."""
    made = Replica(LEADS)
    made.append(b"common")
    for number, size in enumerate(sizes):
        values = [b"lost"] * size
        made.partition.append(own_batch(idempotent_batch(sum(sizes[:number]), *values)), NOW_MS)
        made.settle()
    return made


def successor(*sizes: int, log_start_offset: int) -> Replica:
    """Return the log of a new leader: the common record, then batches of so many records, of which some are deleted."""
    made = Replica(LEADS)
    made.append(b"common")
    made.partition.assume(replace(LEADS, epoch=NEXT, isr=(ONE,), partition_epoch=1))
    for size in sizes:
        made.append(*[b"kept"] * size)
    trim(made, log_start_offset)
    return made


@pytest.mark.parametrize("lost", [1, 2, 3, 4])
@pytest.mark.parametrize("kept", [2, 3, 4])
def test_log_keeps_no_record_and_no_producer_from_below_its_leaders_start(lost: int, kept: int) -> None:
    leader, follower = successor(*[1] * kept, log_start_offset=3), deposed(*[1] * lost)
    follower.partition.assume(DEPOSED)
    Pair([leader], [follower]).exchange()
    assert contents(follower.log, 3) == contents(leader.log, 3)
    assert follower.log.log_start_offset == 3
    assert not len(follower.log.producers)
    assert led(leader.partition).may_join(TWO)


def test_log_continues_one_that_begins_within_a_batch() -> None:
    leader, follower = successor(3, 1, log_start_offset=2), deposed(1)
    follower.partition.assume(DEPOSED)
    Pair([leader], [follower]).exchange()
    assert follower.log.log_end_offset == leader.log.log_end_offset
    assert led(leader.partition).may_join(TWO)


def test_replica_with_all_committed_records_keeps_its_producers() -> None:
    leader, follower = deposed(1, 1), deposed(1, 1)
    leader.partition.assume(replace(LEADS, epoch=NEXT))
    trim(leader, 3)
    follower.partition.assume(replace(DEPOSED, has_all_committed=True))
    Pair([leader], [follower]).exchange()
    assert follower.log.log_start_offset == 3
    assert len(follower.log.producers) == 1
