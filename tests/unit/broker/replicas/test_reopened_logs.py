"""A log that is opened again in the same leader epoch: what its process has known still holds."""

from collections.abc import Iterator

import pytest

from conveyor.broker.partitions.replica_checkpoint import INTERVAL_MS
from conveyor.broker.produce.publisher import ACKS_LEADER
from conveyor.cluster.image import ClusterImage
from conveyor.kernel.ids import NodeId, Offset
from conveyor.records.record import encode_batch
from tests.unit.broker.parts import NOW_MS, publish
from tests.unit.broker.replicas.brokers import BrokerCluster, ClusterBroker, UnavailableStore, keeper_of
from tests.unit.broker.replicas.test_trusted_replicas import set_config
from tests.unit.replication.parts import led

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
SEGMENT = f"logs/t-0/{0:020}.log"


@pytest.fixture
def cluster() -> Iterator[BrokerCluster]:
    made = BrokerCluster(4)
    yield made
    made.stop()


def reopen(cluster: BrokerCluster, broker: ClusterBroker) -> None:
    """Let the disk be full for a moment."""
    broker.disk.faults.free_bytes = 0
    assert broker.publish() is not None
    assert broker.node.partitions.table.offline()
    broker.disk.faults.heal()
    cluster.until(lambda: not broker.node.partitions.table.offline(), seconds=10)


def reopen_or_lose(cluster: BrokerCluster, broker: ClusterBroker) -> None:
    """Let the disk be full for a moment, until the log is opened again or found to lack records."""
    broker.disk.faults.free_bytes = 0
    assert broker.publish() is not None
    broker.disk.faults.heal()
    cluster.until(lambda: not broker.node.partitions.table.may_return("t", 0), seconds=10)


def flip_a_bit(broker: ClusterBroker, batch: int, of: int) -> None:
    content = broker.disk.open(SEGMENT).written
    content[len(content) // of * batch + 70] ^= 1


def test_a_join_that_the_store_may_have_still_counts(cluster: BrokerCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broker 3 is elected if the image shows it in the ISR: it must have what is committed meanwhile."""
    cluster.create()
    one, _, three, _ = cluster.brokers
    three.kill()
    cluster.until(lambda: cluster.image().isr == (ONE, TWO))
    assert one.publish() is None
    with monkeypatch.context() as unavailable:
        unavailable.setattr(keeper_of(one), "_metadata", UnavailableStore(one.node.metadata))
        three.start()
        cluster.until(lambda: THREE in led(one.partition()).replicas.joining)
        cluster.wait(3)
        cluster.switch.cut(ONE, THREE)
        reopen(cluster, one)
        committed = one.partition().term.high_watermark
        assert THREE in led(one.partition()).replicas.joining
        assert one.publish(acks=ACKS_LEADER) is None
        cluster.wait(1)
        assert one.partition().term.high_watermark == committed
    cluster.switch.heal()
    cluster.until(lambda: cluster.image().isr == (ONE, TWO, THREE) and not led(one.partition()).replicas.joining)
    cluster.until(lambda: one.partition().term.high_watermark > committed)


def fill(cluster: BrokerCluster) -> list[tuple[int, bytes | None]]:
    """Commit five records, of which the files `replica-checkpoint` know one."""
    cluster.create(config={"min.insync.replicas": "1"})
    one = cluster.brokers[0]
    assert one.publish() is None
    cluster.wait(INTERVAL_MS / 1000 + 0.5)
    for _ in range(4):
        assert one.publish() is None
    cluster.until(lambda: all(broker.partition().term.high_watermark == 5 for broker in cluster.brokers[:3]))
    return one.records()


def test_a_leader_whose_log_comes_back_shorter_leads_no_more(cluster: BrokerCluster) -> None:
    committed = fill(cluster)
    one, two, three, _ = cluster.brokers
    cluster.wait(0.4)  # So that the log is opened again before another replica would lead because of the full disk.
    flip_a_bit(one, 2, of=5)
    one.disk.faults.free_bytes = 0
    assert one.publish() is not None
    one.disk.faults.heal()
    cluster.until(lambda: cluster.image().leader in (TWO, THREE), seconds=30)
    cluster.until(lambda: set(cluster.image().isr) == {ONE, TWO, THREE}, seconds=60)
    assert committed == one.records() == two.records() == three.records()


def test_a_follower_that_may_lack_what_was_committed_leaves_the_in_sync_replicas(cluster: BrokerCluster) -> None:
    """It may know of fewer commits than the leader has announced to clients."""
    fill(cluster)
    one, two, _, _ = cluster.brokers
    before = cluster.image().leader_epoch
    flip_a_bit(two, 4, of=5)
    two.partition().term.high_watermark = Offset(4)
    two.disk.faults.free_bytes = 0
    one.publish(acks=ACKS_LEADER)
    cluster.until(lambda: bool(two.node.partitions.table.offline()))
    two.disk.faults.heal()
    cluster.until(lambda: cluster.image().leader_epoch > before, seconds=30)
    cluster.until(lambda: set(cluster.image().isr) == {ONE, TWO, THREE}, seconds=60)
    assert one.records() == two.records()


def fill_disk(cluster: BrokerCluster, broker: ClusterBroker, leader: ClusterBroker, known: int) -> None:
    """Let an append find the disk full, before the broker has heard of more commits than these."""
    broker.disk.faults.free_bytes = 0
    leader.publish(acks=ACKS_LEADER)
    cluster.until(lambda: bool(broker.node.partitions.table.offline()))
    broker.partition().term.high_watermark = Offset(known)


def test_a_follower_that_lacks_its_last_batch_leaves_the_in_sync_replicas(cluster: BrokerCluster) -> None:
    """It has reported the batch, so the leader may have committed it. No batch follows that would tell of the loss."""
    fill(cluster)
    one, two, _, _ = cluster.brokers
    before = cluster.image().leader_epoch
    flip_a_bit(two, 4, of=5)
    fill_disk(cluster, two, one, known=4)
    two.disk.faults.heal()
    cluster.until(lambda: cluster.image().leader_epoch > before, seconds=30)
    cluster.until(lambda: set(cluster.image().isr) == {ONE, TWO, THREE}, seconds=60)
    assert one.records() == two.records()


@pytest.mark.parametrize("batch", [2, 3, 4])
def test_a_follower_that_is_elected_while_its_log_is_offline_must_have_all_that_it_has_reported(
    cluster: BrokerCluster, batch: int
) -> None:
    cluster.create(replicas=(1, 2), config={"min.insync.replicas": "1"})
    one, two, _, four = cluster.brokers
    assert [one.publish() for _ in range(5)] == [None] * 5
    flip_a_bit(two, batch, of=5)
    fill_disk(cluster, two, one, known=2)
    one.kill()
    cluster.until(lambda: cluster.image(broker=four).leader == TWO)
    two.disk.faults.heal()
    cluster.wait(15)
    assert f"ends at offset {batch}" in str(two.node.partitions.table.offline_reason("t", 0))


def test_a_new_leader_whose_log_comes_back_shorter_leads_no_more(
    cluster: BrokerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has not heard from the others yet, so it does not know what the leader before it has committed."""
    committed = fill(cluster)
    one, two, three, four = cluster.brokers
    cluster.switch.cut(TWO, THREE)
    one.kill()
    cluster.until(lambda: two.partition().leader_term is not None)
    led(two.partition()).high_watermark = Offset(4)
    flip_a_bit(two, 4, of=5)
    with monkeypatch.context() as unavailable:
        unavailable.setattr(two.node.replicas._repair, "_metadata", UnavailableStore(two.node.metadata))
        reopen_or_lose(cluster, two)
    cluster.switch.heal()
    cluster.until(lambda: set(cluster.image(broker=four).isr) == {TWO, THREE}, seconds=60)
    cluster.until(lambda: committed == two.records() == three.records(), seconds=60)


def test_a_follower_that_has_joined_unseen_must_have_all_that_it_has_reported(
    cluster: BrokerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image shows the join only after its log was opened again: without the last record, it could be elected."""
    cluster.create(replicas=(1, 2), config={"min.insync.replicas": "1"})
    one, two, _, _ = cluster.brokers
    two.kill()
    cluster.until(lambda: cluster.image().isr == (ONE,))
    assert [one.publish() for _ in range(5)] == [None] * 5
    cluster.switch.cut(ONE, TWO)
    two.start()
    cluster.switch.heal()
    with monkeypatch.context() as behind:
        behind.setattr(two.node.metadata, "_observe", list[ClusterImage]().append)
        cluster.until(lambda: cluster.image().isr == (ONE, TWO))
        flip_a_bit(two, 4, of=5)
        fill_disk(cluster, two, one, known=4)
        cluster.switch.cut(ONE, TWO)
        two.disk.faults.heal()
        cluster.until(lambda: not two.node.partitions.table.may_return("t", 0))
    assert "ends at offset 4" in str(two.node.partitions.table.offline_reason("t", 0))
    cluster.until(lambda: cluster.image().isr == (ONE,))
    cluster.switch.heal()
    cluster.until(lambda: cluster.image().isr == (ONE, TWO))
    assert one.records() == two.records()


def test_follower_gives_up_what_a_log_that_is_opened_again_has_lost(
    cluster: BrokerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader had written and sent records, and lost them before they were flushed or committed. Others take their
    offsets, in a new leader epoch by which the follower learns of it.
    """
    cluster.create(replicas=(1, 2), config={"min.insync.replicas": "1"})
    one, two, _, _ = cluster.brokers
    assert [one.publish() for _ in range(2)] == [None] * 2
    before = cluster.image().leader_epoch
    with monkeypatch.context() as slow:
        slow.setattr(one.node.partitions.flusher, "_take_jobs", lambda *_: [])
        assert [one.publish(acks=ACKS_LEADER) for _ in range(3)] == [None] * 3
        cluster.until(lambda: len(two.records()) == 5)
        flip_a_bit(one, 3, of=5)
        one.disk.faults.free_bytes = 0
        assert one.publish() is not None
    one.disk.faults.heal()
    cluster.until(lambda: not one.node.partitions.table.offline(), seconds=10)
    published = one.task(publish(one.node, ("t", 0), batch=encode_batch([(NOW_MS, b"k", b"other", [])])))
    cluster.until(lambda: published.done() and two.records() == one.records())
    assert one.records()[3:] == [(3, b"other")]
    assert [broker.partition().log.leader_epochs.entries[-1] for broker in (one, two)] == [(before + 1, 3)] * 2


def test_follower_must_have_what_it_reported_before_the_flush_policy_changed(cluster: BrokerCluster) -> None:
    """The flush that the new policy demands fails, and drops a record that counts as acknowledged."""
    cluster.create(replicas=(1, 2), config={"min.insync.replicas": "1", "flush.policy": "os"})
    one, two, _, four = cluster.brokers
    cluster.wait(INTERVAL_MS / 1000 + 0.5)
    assert one.publish() is None
    two.partition().want_flush()
    cluster.until(lambda: two.partition().log.flushes.flushed_offset == 1)
    assert [one.publish() for _ in range(4)] == [None] * 4
    file = two.disk.open(SEGMENT)
    file.synced_bytes = file.size // 5 * 4
    two.partition().term.high_watermark = Offset(4)  # The leader's last one is still on its way.
    cluster.switch.cut(ONE, TWO)
    two.disk.faults.drops_writes = True
    set_config(four, "flush.policy", "ack")
    cluster.until(lambda: bool(two.node.partitions.table.offline()), seconds=10)
    assert two.partition().offline.end_offset == 5
    two.disk.faults.heal()
    one.kill()
    cluster.wait(5)
    assert cluster.image(broker=four).leader != TWO, "it lacks the last record"
