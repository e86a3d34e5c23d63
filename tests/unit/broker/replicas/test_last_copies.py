"""A replica with committed records that its leader lacks keeps them: only an unclean election lets it cut them."""

from collections.abc import Iterator

import pytest

from conveyor.broker.partitions.replica_checkpoint import INTERVAL_MS
from conveyor.cluster.controller.elections import ElectionRequest
from conveyor.cluster.controller.partition_transition import Election
from conveyor.cluster.controller.reassignments import Reassignment
from conveyor.kernel.ids import NodeId
from tests.callers import CALLER
from tests.unit.broker.replicas.brokers import BrokerCluster, ClusterBroker

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
Records = list[tuple[int, bytes | None]]


@pytest.fixture
def cluster() -> Iterator[BrokerCluster]:
    made = BrokerCluster(4)
    yield made
    made.stop()


def led_by_a_copy(cluster: BrokerCluster) -> tuple[list[ClusterBroker], Records]:
    """Let a broker lead with a copy that was made since it has registered, which nothing can tell from the original.

    Returns the brokers, and the records that were committed.
    """
    brokers = cluster.brokers
    cluster.create()
    assert brokers[0].publish() is None
    cluster.wait(INTERVAL_MS / 1000 + 0.5)
    copy = brokers[0].disk.process_crash()
    for _ in range(5):
        assert brokers[0].publish() is None
    committed = brokers[0].records()
    cluster.wait(INTERVAL_MS / 1000 + 0.5)
    cluster.kill_all()
    brokers[0].disk = copy
    brokers[0].start()
    cluster.until(lambda: brokers[0].partition().leader_term is not None)
    for broker in brokers[1:]:
        broker.start()
    cluster.wait(5)
    return brokers, committed


def test_replicas_keep_what_the_leader_lacks_and_say_why(cluster: BrokerCluster) -> None:
    (one, two, three, _), committed = led_by_a_copy(cluster)
    assert len(one.records()) < len(committed)
    for broker in (two, three):
        reason = str(broker.node.partitions.table.offline_reason("t", 0))
        assert "broker 1, the leader in epoch" in reason
        assert "lacks committed records from offset 1 on; the high watermark is 6" in reason
        assert "until another broker leads: stop broker 1" in reason
    assert cluster.image().isr == (ONE,)
    cluster.wait(120)
    for broker in (two, three):
        broker.kill()
        assert not broker.disk.exists("logs/t-0.damaged")
        broker.start()
        cluster.wait(5)
        assert "lacks committed records" in str(broker.node.partitions.table.offline_reason("t", 0)), (
            "and does not forget it"
        )


@pytest.mark.slow
def test_records_are_back_after_the_operator_has_stopped_the_leader(cluster: BrokerCluster) -> None:
    """Here the minimum of in-sync replicas has kept the others eligible, so that no unclean election is needed."""
    (one, two, three, _), committed = led_by_a_copy(cluster)
    one.kill()
    cluster.until(
        lambda: two.node.partitions.table.offline() == three.node.partitions.table.offline() == {}, seconds=20
    )
    one.start()
    cluster.until(lambda: set(cluster.image().isr) == {ONE, TWO, THREE})
    assert one.records() == two.records() == three.records() == committed


def test_records_are_given_up_by_removing_the_directory(cluster: BrokerCluster) -> None:
    (one, two, _, _), _ = led_by_a_copy(cluster)
    two.kill()
    two.disk.remove_tree("logs/t-0")
    two.start()
    cluster.until(lambda: set(cluster.image().isr) == {ONE, TWO})
    assert two.records() == one.records()


def test_reassignment_keeps_the_directory_of_a_replica_that_has_more_than_its_leader(cluster: BrokerCluster) -> None:
    (one, two, three, four), _ = led_by_a_copy(cluster)
    request = Reassignment(topic="t", partition=0, target=(ONE, NodeId(4)))
    assert one.run(one.node.topics.operations.reassign(CALLER, [request])) == [None]
    cluster.until(lambda: cluster.image().replicas == (ONE, NodeId(4)))
    cluster.until(lambda: all(broker.disk.exists("logs/t-0.stray") for broker in (two, three)))
    assert four.records() == one.records()


def test_unclean_election_lets_a_replica_cut_once_its_directory_expects_no_more(cluster: BrokerCluster) -> None:
    one, two, three, _ = cluster.brokers
    cluster.create(config={"min.insync.replicas": "1"})
    assert one.publish() is None
    two.kill()
    three.kill()
    for _ in range(3):
        assert one.publish() is None
    cluster.wait(INTERVAL_MS / 1000 + 0.5)
    one.kill()
    two.start()
    request = ElectionRequest(topic="t", partition=0, election=Election.UNCLEAN)
    assert two.run(two.node.topics.operations.elect(CALLER, [request])) == [None]
    cluster.until(lambda: two.partition().leader_term is not None)
    assert two.publish() is None
    one.assemble()
    join = one.task(one.join())
    cluster.until(lambda: one.node.partitions.table.get("t", 0) is not None)
    one.disk.faults.fail("write_atomic")
    cluster.until(lambda: join.done() or one.node.partitions.table.offline_reason("t", 0) is not None)
    one.disk.faults.heal()
    cluster.until(join.done)
    cluster.until(lambda: ONE in cluster.image().isr, seconds=60)
    assert one.records() == two.records()
    one.kill()
    one.start()
    cluster.until(lambda: ONE in cluster.image().isr, seconds=60)
    assert one.node.partitions.table.offline() == {}
