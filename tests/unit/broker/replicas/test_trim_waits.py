"""Deletions of records are answered when no clean election can undo them."""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from conveyor.cluster.changes import partition_changed
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import LeaderEpoch, NodeId
from conveyor.replication.streams.log_tasks import TrimStart
from tests.callers import CALLER
from tests.unit.broker.replicas.brokers import BrokerCluster
from tests.unit.replication.parts import led

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)


@pytest.fixture
def cluster() -> Iterator[BrokerCluster]:
    cluster = BrokerCluster()
    yield cluster
    cluster.stop()


def test_a_deletion_is_answered_when_all_live_replicas_have_deleted(cluster: BrokerCluster) -> None:
    cluster.create()
    one = cluster.brokers[0]
    for _ in range(3):
        assert one.publish() is None
    assert one.run(one.node.partitions.retention.delete_records(CALLER, "t", 0, 2, 5_000)) == 2
    assert [broker.partition().log.log_start_offset for broker in cluster.brokers] == [2, 2, 2]


def test_a_deletion_times_out_while_a_live_replica_cannot_be_reached(cluster: BrokerCluster) -> None:
    cluster.create()
    one, _, three = cluster.brokers
    assert one.publish() is None
    cluster.switch.cut(ONE, THREE)
    with pytest.raises(RequestError, match=r"brokers \[3\] have not removed") as late:
        one.run(one.node.partitions.retention.delete_records(CALLER, "t", 0, 1, 5_000))
    assert late.value.kind is ErrorKind.REQUEST_TIMED_OUT
    cluster.switch.heal()
    assert one.run(one.node.partitions.retention.delete_records(CALLER, "t", 0, 1, 30_000)) == 1
    assert three.partition().log.log_start_offset == 1


def test_a_deletion_does_not_wait_for_a_fenced_broker(cluster: BrokerCluster) -> None:
    cluster.create()
    one, two, three = cluster.brokers
    assert one.publish() is None
    three.process.kill()
    three.store.abandon()
    cluster.loop.call_later(1, three.store.expire)
    assert one.run(one.node.partitions.retention.delete_records(CALLER, "t", 0, 1, 30_000)) == 1
    assert two.partition().log.log_start_offset == 1


def test_a_deletion_needs_as_many_replicas_as_a_record(cluster: BrokerCluster) -> None:
    """The replica that is away is an eligible leader, and would bring the records back."""
    cluster.create(replicas=(1, 2))
    one, two, _ = cluster.brokers
    assert one.publish() is None
    two.kill()
    cluster.until(lambda: cluster.image().elr == (TWO,))
    with pytest.raises(RequestError) as refused:
        one.run(one.node.partitions.retention.delete_records(CALLER, "t", 0, 1, 5_000))
    assert refused.value.kind is ErrorKind.NOT_ENOUGH_REPLICAS
    assert one.partition().log.log_start_offset == 0
    two.start()
    cluster.until(lambda: cluster.image().isr == (ONE, TWO))
    assert one.run(one.node.partitions.retention.delete_records(CALLER, "t", 0, 1, 5_000)) == 1


def test_a_deletion_waits_for_an_eligible_replica_whose_broker_is_fenced(cluster: BrokerCluster) -> None:
    cluster.create(replicas=(1, 2))
    one, two, three = cluster.brokers
    assert one.publish() is None
    cluster.switch.cut(ONE, TWO)
    two.process.kill()
    two.store.abandon()
    cluster.loop.call_later(1, two.store.expire)
    with pytest.raises(RequestError, match=r"brokers \[2\] have not removed") as late:
        one.run(one.node.partitions.retention.delete_records(CALLER, "t", 0, 1, 15_000))
    assert late.value.kind is ErrorKind.REQUEST_TIMED_OUT
    assert cluster.image(broker=three).elr == (TWO,)
    cluster.switch.heal()


def test_a_replica_joins_when_it_has_deleted_what_the_leader_has(
    cluster: BrokerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create(replicas=(1, 2), config={"min.insync.replicas": "1"})
    one, two, _ = cluster.brokers
    for _ in range(3):
        assert one.publish() is None
    two.kill()
    cluster.until(lambda: cluster.image().isr == (ONE,))
    assert one.run(one.node.partitions.retention.delete_records(CALLER, "t", 0, 2, 5_000)) == 2
    may_trim, begin = [False], TrimStart.begin
    monkeypatch.setattr(TrimStart, "begin", lambda self, now_ms: may_trim[0] and begin(self, now_ms))
    two.start()
    cluster.until(lambda: led(one.partition()).replicas.durable_offset_of(TWO) == 3)
    cluster.wait(5)
    assert cluster.image().isr == (ONE,)
    may_trim[0] = True
    cluster.until(lambda: cluster.image().isr == (ONE, TWO))
    one.kill()
    cluster.until(lambda: cluster.image(broker=two).leader == TWO)
    assert two.partition().log.log_start_offset == 2


def test_a_deletion_waits_for_a_replica_that_may_be_joining(cluster: BrokerCluster) -> None:
    cluster.create(replicas=(1, 2), config={"min.insync.replicas": "1"})
    one = cluster.brokers[0]
    assert one.publish() is None
    partition = one.partition()
    cluster.brokers[1].kill()
    cluster.until(lambda: cluster.image().isr == (ONE,))
    assert one.node.replicas is not None
    one.node.replicas._keeper.stop()  # It would withdraw the join.
    led(partition).replicas.join(TWO, cluster.image().partition_epoch)
    with pytest.raises(RequestError, match=r"brokers \[2\] have not removed"):
        one.run(one.node.partitions.retention.delete_records(CALLER, "t", 0, 1, 10_000))


def test_a_deposed_leader_reports_what_it_has_deleted_once_it_is_on_the_disk(cluster: BrokerCluster) -> None:
    cluster.create(replicas=(1, 2))
    one, two, _ = cluster.brokers
    assert one.publish() is None
    one.threads.hang()
    deletion = one.task(one.node.partitions.retention.trim(one.partition(), 1))
    cluster.wait(0.1)
    other = replace(cluster.image(), leader=TWO, leader_epoch=LeaderEpoch(1), partition_epoch=9)
    two.run(two.node.metadata.propose(lambda _: [partition_changed("t", 0, other)]))
    cluster.until(lambda: ONE in led(two.partition()).replicas.reports)
    assert led(two.partition()).replicas.reports[ONE].log_start_offset == 0
    one.threads.go_on()
    cluster.until(lambda: led(two.partition()).replicas.reports[ONE].log_start_offset == 1)
    assert deletion.result() == 1


def test_a_deletion_fails_when_another_broker_leads(cluster: BrokerCluster) -> None:
    cluster.create()
    one, _, _ = cluster.brokers
    assert one.publish() is None
    cluster.switch.cut(ONE, THREE)
    cluster.loop.call_later(1, lambda: one.partition().assume(led(one.partition()).role.resigned()))
    with pytest.raises(RequestError) as refused:
        one.run(one.node.partitions.retention.delete_records(CALLER, "t", 0, 1, 30_000))
    assert refused.value.kind is ErrorKind.NOT_LEADER
    cluster.switch.heal()
