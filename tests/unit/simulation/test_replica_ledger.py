"""Which losses of a simulated cluster are too much for a promise, and which replicas must not stay in sync."""

from dataclasses import replace
from uuid import UUID

import msgspec
import pytest

from conveyor.cluster.image import BrokerImage, ClusterImage, PartitionImage, TopicImage
from conveyor.kernel.ids import LeaderEpoch, NodeId, TopicId, TopicPartition
from conveyor.settings.tree import from_sources
from simulation.cluster.replica_ledger import Loss, ReplicaLedger
from simulation.ledger import LogLedger

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
BUNDLE = TopicPartition("soft", 0)


def image(isr: tuple[NodeId, ...], elr: tuple[NodeId, ...] = ()) -> ClusterImage:
    """Return an image with three live brokers and a topic of one partition, which keeps records unflushed."""
    partition = PartitionImage(leader=isr[0], leader_epoch=LeaderEpoch(0), replicas=(ONE, TWO, THREE), isr=isr, elr=elr)
    config = {"flush.policy": "os", "min.insync.replicas": "2"}
    topic = TopicImage(name="soft", topic_id=TopicId(UUID(int=1)), partitions=(partition,), config=config)
    brokers = {
        node: BrokerImage(node_id=node, host="broker.example", port=9092, broker_epoch=node, boot_id="boot 1")
        for node in (ONE, TWO, THREE)
    }
    return ClusterImage(brokers=brokers, topics={"soft": topic})


def ledger_with(stored: ClusterImage) -> ReplicaLedger:
    ledger = ReplicaLedger(LogLedger(), from_sources({}), lambda _: None)
    ledger.stored(ClusterImage(), stored)
    return ledger


@pytest.mark.parametrize(("elr", "is_too_much"), [((), False), ((TWO,), True)])
def test_a_failing_disk_excuses_a_loss_only_of_a_replica_with_all_records(
    elr: tuple[NodeId, ...], is_too_much: bool
) -> None:
    before, after = image((ONE, THREE), elr), image((ONE,))
    ledger = ledger_with(before)

    ledger.note_failing_disk(TWO)
    ledger.lose(Loss(ONE, THREE), [BUNDLE], is_wiped=False)
    ledger.stored(before, after)

    assert ledger.is_excused(BUNDLE)
    assert [error.args[0].partition(":")[0] for error in ledger.broken] == ([] if is_too_much else ["IsrTruth"])


@pytest.mark.parametrize(("leader", "is_excused"), [(ONE, True), (TWO, False)])
def test_an_older_log_excuses_its_partition_when_it_leads(leader: NodeId, is_excused: bool) -> None:
    before = image((ONE, TWO, THREE))
    elected = msgspec.structs.replace(before.topics["soft"].partitions[0], leader=leader, leader_epoch=LeaderEpoch(1))
    ledger = ledger_with(before)

    ledger.note_stale(ONE, BUNDLE)
    ledger.stored(before, replace(before, topics={"soft": replace(before.topics["soft"], partitions=(elected,))}))

    assert ledger.is_excused(BUNDLE) == is_excused
    assert ledger.has_lost(ONE, BUNDLE)
    assert not ledger.broken


@pytest.mark.parametrize(
    ("isr", "unflushed", "broken"),
    [((TWO, THREE), [BUNDLE], []), ((TWO, THREE, ONE), [BUNDLE], ["LosersLeave"]), ((TWO, THREE, ONE), [], [])],
    ids=["leaves", "stays", "had another policy"],
)
def test_a_broker_that_has_lost_records_registers_out_of_sync(
    isr: tuple[NodeId, ...], unflushed: list[TopicPartition], broken: list[str]
) -> None:
    before = image((ONE, TWO, THREE))
    back = replace(before.brokers[ONE], broker_epoch=4)
    after = replace(image(isr), brokers={**before.brokers, ONE: back})
    ledger = ledger_with(before)

    ledger.lose(Loss(ONE, THREE), unflushed, is_wiped=False)
    ledger.stored(before, after)

    assert [error.args[0].partition(":")[0] for error in ledger.broken] == broken
