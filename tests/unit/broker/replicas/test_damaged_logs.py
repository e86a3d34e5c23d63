"""Damaged logs: a follower's is set aside and copied again, the last in-sync replica's never. An older copy of one file
is not believed.
"""

from collections.abc import Iterator

import pytest

from conveyor.broker.produce.acknowledgement import ACKS_LEADER
from conveyor.kernel.errors import LogDiverged, StorageFailure
from conveyor.kernel.ids import NodeId
from conveyor.queues.subscription.policy import StartPosition
from conveyor.records.record import encode_batch
from tests.callers import CALLER
from tests.unit.broker.parts import NOW_MS, publish
from tests.unit.broker.replicas.brokers import BrokerCluster, ClusterBroker
from tests.unit.log.logs import read_bytes

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
EPOCHS = "logs/t-0/leader-epoch-checkpoint"
ASIDE = "logs/t-0.damaged"


@pytest.fixture
def cluster() -> Iterator[BrokerCluster]:
    made = BrokerCluster()
    yield made
    made.stop()


def filled(cluster: BrokerCluster) -> list[ClusterBroker]:
    """Create the topic with a record that all replicas have."""
    cluster.create()
    assert cluster.brokers[0].publish() is None
    cluster.until(lambda: all(broker.partition().term.high_watermark == 1 for broker in cluster.brokers))
    return cluster.brokers


def has_all_in_sync(cluster: BrokerCluster) -> bool:
    return set(cluster.image().isr) == {ONE, TWO, THREE}


def test_a_damaged_log_of_a_follower_is_set_aside_and_copied_again(cluster: BrokerCluster) -> None:
    one, _, three = filled(cluster)
    three.partition().go_offline(StorageFailure("a bad sector"))
    cluster.until(lambda: three.disk.exists(ASIDE), seconds=5)
    assert cluster.image().isr == (ONE, TWO)
    assert cluster.image().leader == ONE
    cluster.until(lambda: has_all_in_sync(cluster), seconds=5)
    assert one.publish() is None
    assert three.records() == one.records()
    assert three.disk.read(f"{ASIDE}/{0:020}.log")


def test_a_leader_with_a_damaged_log_follows_a_new_copy(cluster: BrokerCluster) -> None:
    one, two, _ = filled(cluster)
    one.partition().go_offline(StorageFailure("a bad sector"))
    cluster.until(lambda: two.partition().leader_term is not None, seconds=5)
    cluster.until(lambda: has_all_in_sync(cluster), seconds=10)
    assert one.disk.exists(ASIDE)
    assert one.records() == two.records()


@pytest.mark.parametrize("place", [9, 100], ids=["length", "record"])
def test_leader_that_finds_a_damaged_batch_delivers_no_message_less(cluster: BrokerCluster, place: int) -> None:
    """Nor another one. The messages that its followers have intact are delivered by the next leader."""
    values = [b"pay %d euros, please" % number for number in range(100)]
    cluster.create()
    one, two, _ = cluster.brokers
    for first in range(0, 100, 20):
        batch = encode_batch([(NOW_MS, None, value, ()) for value in values[first : first + 20]])
        assert one.run(publish(one.node, ("t", 0), batch=batch))[0].error is None
    cluster.until(lambda: all(broker.partition().term.high_watermark == 100 for broker in cluster.brokers))
    one.disk.flip(f"logs/t-0/{0:020}.log", place, 3)
    one.run(one.node.queues.lifecycle.create(CALLER, "t", "s", StartPosition(kind="earliest"), {}))
    cluster.until(lambda: two.partition().leader_term is not None, seconds=10)
    cluster.until(lambda: has_all_in_sync(cluster), seconds=10)
    leased: list[bytes | None] = []

    async def lease() -> None:
        leases = await two.node.queues.leases.lease(CALLER, "s", 100, 0, None)
        leased.extend(lease.message.value for lease in leases)

    while len(leased) < 100:
        two.run(lease())
    assert leased == values
    assert one.disk.exists(ASIDE)
    assert one.records() == two.records()


def test_the_last_in_sync_replica_keeps_its_log(cluster: BrokerCluster) -> None:
    one, two, three = filled(cluster)
    two.kill()
    three.kill()
    cluster.until(lambda: cluster.image().isr == (ONE,))
    one.partition().go_offline(StorageFailure("a bad sector"))
    cluster.wait(10)
    assert not one.disk.exists(ASIDE)
    assert cluster.image().isr == (ONE,)


def test_a_log_that_fails_again_waits_until_the_earlier_one_is_removed(cluster: BrokerCluster) -> None:
    one, _, three = filled(cluster)
    three.partition().go_offline(StorageFailure("a bad sector"))
    cluster.until(lambda: three.disk.exists(ASIDE) and has_all_in_sync(cluster), seconds=10)
    three.partition().go_offline(StorageFailure("another bad sector"))
    cluster.wait(30)
    epoch = cluster.image().leader_epoch
    assert three.partition().offline.reason == "another bad sector"
    cluster.wait(30)
    assert cluster.image().leader_epoch == epoch
    three.disk.remove_tree(ASIDE)
    cluster.until(lambda: has_all_in_sync(cluster), seconds=70)
    assert three.records() == one.records()


def test_a_log_with_committed_records_that_its_leader_lacks_is_kept(cluster: BrokerCluster) -> None:
    _, _, three = filled(cluster)
    three.partition().go_offline(LogDiverged("the leader lacks committed records"))
    cluster.wait(30)
    assert not three.disk.exists(ASIDE)
    assert three.partition().offline.reason is not None


def test_a_log_with_a_hole_at_the_start_of_its_broker_is_copied_again() -> None:
    cluster = BrokerCluster(**{"topics.segment_bytes": 1024})
    one, _, three = filled(cluster)
    for _ in range(40):
        assert one.publish() is None
    three.kill()
    cluster.until(lambda: cluster.image().isr == (ONE, TWO))
    first = next(name for name in three.disk.list("logs/t-0") if name.endswith(".seal"))
    three.disk.remove(f"logs/t-0/{first.replace('.seal', '.log')}")
    three.start()
    cluster.until(lambda: three.disk.exists(ASIDE), seconds=10)
    cluster.until(lambda: has_all_in_sync(cluster), seconds=20)
    assert three.records() == one.records()
    cluster.stop()


def test_a_leader_that_has_not_heard_of_the_damage_admits_no_empty_log(cluster: BrokerCluster) -> None:
    """What the follower reported before still counts for its join, as far as its leader knows."""
    one, _, three = filled(cluster)
    cluster.switch.cut(THREE, ONE)
    cluster.until(lambda: has_all_in_sync(cluster) is False, seconds=60)
    cluster.switch.heal()
    cluster.until(lambda: has_all_in_sync(cluster), seconds=60)
    cluster.switch.cut(THREE, ONE)
    three.partition().go_offline(StorageFailure("a bad sector"))
    cluster.until(lambda: three.disk.exists(ASIDE), seconds=5)
    for _ in range(200):
        is_in_sync = THREE in cluster.image(broker=three).isr
        assert not is_in_sync or three.partition().log.log_end_offset >= one.partition().term.high_watermark
        cluster.wait(0.1)
    cluster.switch.heal()
    assert one.publish(acks=ACKS_LEADER) is None
    cluster.until(lambda: has_all_in_sync(cluster), seconds=60)
    assert three.records() == one.records()


def test_a_replica_whose_recovery_has_removed_batches_does_not_lead(cluster: BrokerCluster) -> None:
    """All brokers are killed at once. The first one that returns has a flipped bit, and would be elected otherwise."""
    one, two, three = filled(cluster)
    for _ in range(3):
        assert one.publish() is None
    expected = one.records()
    cluster.kill_all()
    one.disk.open(f"logs/t-0/{0:020}.log").written[80] ^= 1
    one.start()
    cluster.wait(1)
    assert ONE not in cluster.image().isr
    two.start()
    cluster.until(lambda: two.partition().leader_term is not None)
    three.start()
    cluster.until(lambda: has_all_in_sync(cluster), seconds=60)
    assert one.records() == two.records() == three.records() == expected


def test_a_log_that_cannot_be_set_aside_waits_longer_each_time(
    cluster: BrokerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, three = filled(cluster)
    before = cluster.image().leader_epoch
    monkeypatch.setattr(three.disk, "rename", refuse)
    three.partition().go_offline(StorageFailure("a bad sector"))
    cluster.wait(60)
    assert 2 <= cluster.image().leader_epoch - before <= 8
    monkeypatch.undo()
    cluster.until(lambda: three.disk.exists(ASIDE), seconds=70)
    cluster.until(lambda: has_all_in_sync(cluster), seconds=10)


@pytest.mark.parametrize("node", [ONE, THREE])
def test_a_log_that_compaction_finds_damaged_is_copied_again(cluster: BrokerCluster, node: NodeId) -> None:
    policy = {"cleanup.policy": "compact", "segment.bytes": "1024", "min.cleanable.dirty.ratio": "0"}
    cluster.create(config=policy)
    damaged = cluster.brokers[node - 1]
    damaged.node.partitions.compaction.stop()
    for _ in range(40):
        assert cluster.brokers[0].publish() is None
    cluster.until(lambda: all(broker.partition().term.high_watermark == 40 for broker in cluster.brokers))
    damaged.disk.flip(f"logs/t-0/{0:020}.log", -1, 0)
    damaged.run(damaged.node.partitions.compaction.run_once())
    cluster.until(lambda: damaged.disk.exists(ASIDE), seconds=10)
    cluster.until(lambda: has_all_in_sync(cluster), seconds=20)
    assert damaged.records()[-1] == cluster.brokers[1].records()[-1]


def refuse(*_: object) -> None:
    raise StorageFailure("the directory cannot be renamed")


def test_older_copy_of_the_leader_epochs_loses_nothing() -> None:
    """Broker 1 was deposed with a tail of its own, at offsets at which broker 2 has acknowledged other records. By its
    older file, broker 2 would take them for the same.
    """
    cluster = BrokerCluster(3, **{"topics.min_insync_replicas": 1})
    cluster.create(replicas=(ONE, TWO), config={"min.insync.replicas": "1"})
    one, two, _ = cluster.brokers
    assert [one.publish() for _ in range(3)] == [None] * 3
    cluster.until(lambda: two.partition().log.flushes.flushed_offset == 3)
    older = two.disk.read(EPOCHS)
    cluster.switch.cut(ONE, TWO)
    for _ in range(4):
        one.task(one.publishing(acks=ACKS_LEADER))
    cluster.until(lambda: one.partition().log.flushes.flushed_offset == 7)
    one.kill()
    cluster.until(lambda: two.partition().leader_term is not None)
    cluster.switch.heal()
    assert [two.publish() for _ in range(8)] == [None] * 8
    expected = read_bytes(two.partition().log, 0)
    two.run(two.node.stop())
    two.die()
    assert two.disk.read(EPOCHS) != older
    two.disk.write_atomic(EPOCHS, older)
    two.start()
    cluster.until(lambda: two.partition().leader_term is not None)
    one.start()
    cluster.until(lambda: set(cluster.image(broker=two).isr) == {ONE, TWO})
    two.run(two.node.stop())
    cluster.until(lambda: one.partition().leader_term is not None)
    assert cluster.image(broker=one).unclean_epoch == -1
    assert read_bytes(one.partition().log, 0) == expected
    cluster.loop.end()


def test_older_copy_of_the_leader_epochs_loses_nothing_if_it_lacks_only_that_of_an_uncommitted_tail() -> None:
    """Broker 2 was deposed with the tail, at offsets at which broker 1 has acknowledged other records."""
    cluster = BrokerCluster()
    cluster.create(replicas=(ONE, TWO))
    one, two, _ = cluster.brokers
    assert [one.publish() for _ in range(3)] == [None] * 3
    cluster.until(lambda: two.partition().log.flushes.flushed_offset == 3)
    older = two.disk.read(EPOCHS)
    cluster.switch.cut(ONE, TWO)
    for _ in range(3):
        one.task(one.publishing())
    cluster.until(lambda: one.partition().log.flushes.flushed_offset == 6)
    one.kill()
    cluster.until(lambda: two.partition().leader_term is not None)
    cluster.switch.heal()
    assert [two.publish(acks=ACKS_LEADER) for _ in range(5)] == [None] * 5
    two.run(two.node.stop())
    two.die()
    assert two.disk.read(EPOCHS) != older
    two.disk.write_atomic(EPOCHS, older)
    one.start()
    cluster.until(lambda: one.partition().leader_term is not None)
    two.start()
    cluster.until(lambda: set(cluster.image(broker=one).isr) == {ONE, TWO})
    assert [one.publish() for _ in range(2)] == [None] * 2
    expected = read_bytes(one.partition().log, 0)
    one.run(one.node.stop())
    cluster.until(lambda: two.partition().leader_term is not None)
    assert cluster.image(broker=two).unclean_epoch == -1
    assert read_bytes(two.partition().log, 0) == expected
    cluster.loop.end()
