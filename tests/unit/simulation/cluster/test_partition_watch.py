"""Which replicas the removal of a tombstone has to wait for."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast
from uuid import UUID

import pytest

from conveyor.cluster.image import ClusterImage, PartitionImage, TopicImage
from conveyor.kernel.ids import NodeId, TopicId
from conveyor.log.compaction.key_compaction import CompactionResult
from conveyor.replication.partition import Partition
from conveyor.replication.streams.log_tasks import AllowGaps
from conveyor.settings.tree import from_sources
from simulation.cluster.partition_watch import PartitionWatch
from simulation.cluster.replica_ledger import ReplicaLedger
from simulation.ledger import InvariantBroken, LogLedger
from simulation.simulated_broker import SimulatedBroker
from tests.unit.replication.streams.pairs import FOLLOWS, LEADS, ONE, TWO, Pair, Replica, carry_out

BUNDLE = PartitionImage(leader=ONE, leader_epoch=LEADS.epoch, replicas=(ONE, TWO), isr=(ONE,))
IMAGE = ClusterImage(topics={"t": TopicImage(name="t", topic_id=TopicId(UUID(int=1)), partitions=(BUNDLE,))})
REMOVED_END = 2


class Table:
    """The only partition of a broker."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    def __iter__(self) -> Iterator[Partition]:
        yield self._partition

    def get(self, topic: str, number: int) -> Partition:
        return self._partition


def broker(node_id: NodeId, replica: Replica) -> SimulatedBroker:
    settings = from_sources({"broker.node_id": node_id})
    node = SimpleNamespace(
        settings=settings,
        partitions=SimpleNamespace(table=Table(replica.partition)),
        coordinators=SimpleNamespace(forwarders=SimpleNamespace(list=list)),
    )
    return cast("SimulatedBroker", SimpleNamespace(node=node, disk=replica.disk, compactions={}))


def remove_tombstones(remover: SimulatedBroker, replica: Replica) -> None:
    remover.compactions[replica.log.place.path] = CompactionResult(
        replaced=(), cleaned=(), cleaned_offset=0, bytes_before=0, bytes_after=0, unreadable_batches=0,
        first_unreadable_offset=-1, removed_tombstones_end_offset=REMOVED_END,
    )  # fmt: skip


def broken_by_a_removal(other: Replica, *, flushes: bool) -> list[InvariantBroken]:
    """Return what breaks when broker 1 removes tombstones after broker 2 has copied its records."""
    leader = Replica(LEADS)
    leader.append(b"old", b"tombstone", b"new")
    one, two = broker(ONE, leader), broker(TWO, other)
    Pair([leader], [other]).exchange(flushes=flushes)
    watch = PartitionWatch({ONE: one, TWO: two}, ReplicaLedger(LogLedger(), from_sources({}), lambda _: None), print)
    watch.stored(IMAGE)
    remove_tombstones(one, leader)
    assert one.node is not None
    watch.look(one, one.node)
    return [error for error in watch.broken if isinstance(error, InvariantBroken)]


@pytest.mark.parametrize(
    ("known_end", "flushes", "waits"),
    [(0, False, True), (REMOVED_END - 1, False, True), (REMOVED_END, False, False), (0, True, False)],
)
def test_tombstones_wait_for_each_copy_that_has_not_begun_after_their_removal(
    known_end: int, flushes: bool, waits: bool
) -> None:
    copy = Replica(FOLLOWS)
    carry_out(AllowGaps(copy.partition, known_end, known_end))
    broken = [error.invariant for error in broken_by_a_removal(copy, flushes=flushes)]
    assert broken == (["TombstonesWait"] if waits else [])
