"""What a queue decides without its followers has no effect outside of it: the next leader may not know of it."""

from collections.abc import Iterator

import pytest

from conveyor.broker.produce.outgoing_message import OutgoingMessage
from conveyor.cluster.controller.elections import ElectionRequest
from conveyor.cluster.controller.partition_transition import Election
from conveyor.kernel.ids import NodeId
from conveyor.queues.subscription.policy import StartPosition
from tests.callers import CALLER, answer_of
from tests.unit.broker.replicas.brokers import BrokerCluster, ClusterBroker

ONE, TWO, THREE = map(NodeId, (1, 2, 3))
EARLIEST, LATEST = StartPosition(kind="earliest"), StartPosition(kind="latest")


@pytest.fixture
def cluster() -> Iterator[BrokerCluster]:
    """Four brokers, of which the last holds no replica of `t`."""
    brokers = BrokerCluster(4)
    yield brokers
    brokers.stop()


def publish(broker: ClusterBroker, value: bytes) -> None:
    broker.run(broker.node.produce.messages.publish(CALLER, "t", [OutgoingMessage(value=value)]))


def with_queue(cluster: BrokerCluster, messages: int) -> tuple[ClusterBroker, ClusterBroker, ClusterBroker]:
    """Create `t` with a queue, and retention that deletes what is settled; publish messages.

    Returns the leader, the next one, and the broker without a replica.
    """
    cluster.create(config={"cleanup.policy": "acknowledged", "segment.bytes": "1024", "retention.ms": "-1"})
    one, two, _, other = cluster.brokers
    one.run(one.node.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {}))
    for number in range(messages):
        publish(one, b"%d" % number + bytes(600))
    cluster.wait(3)
    return one, two, other


def cut_off_its_leader(cluster: BrokerCluster) -> None:
    cluster.switch.cut(ONE, TWO)
    cluster.switch.cut(ONE, THREE)


def replace_leader(cluster: BrokerCluster) -> ClusterBroker:
    cluster.brokers[0].kill()
    cluster.until(lambda: cluster.image(broker=cluster.brokers[-1]).leader == TWO)
    return cluster.brokers[1]


def leased(cluster: BrokerCluster, broker: ClusterBroker) -> list[int]:
    """Return the offsets of all messages that can be leased, and acknowledge them."""
    cluster.until(lambda: broker.node.coordinators.queues.find(broker.partition().identity) is not None)
    leases = broker.run(broker.node.queues.leases.lease(CALLER, "s", 100, 0, None))
    ids = [lease.ack_id for lease in leases]
    assert broker.run(answer_of(broker.node.queues.settlements.ack, CALLER, "s", ids)) is not None
    return sorted(lease.message.offset for lease in leases)


def test_retention_deletes_no_message_that_the_next_leader_delivers(cluster: BrokerCluster) -> None:
    one, two, other = with_queue(cluster, messages=10)
    cut_off_its_leader(cluster)
    seek = one.task(one.node.queues.lifecycle.seek(CALLER, "s", LATEST))
    cluster.wait(0.2)
    one.task(one.node.partitions.retention.run_once())
    cluster.wait(0.5)
    assert (seek.done(), one.partition().log.log_start_offset) == (False, 0)
    replace_leader(cluster)
    cluster.switch.heal()
    one.start()
    cluster.until(lambda: ONE in cluster.image(broker=other).isr)
    back = ElectionRequest(topic="t", partition=0, election=Election.PREFERRED)
    assert two.run(two.node.topics.operations.elect(CALLER, [back])) == [None]
    cluster.until(lambda: one.partition().leader_term is not None)
    assert leased(cluster, one) == list(range(10))
    cluster.wait(1)
    for _ in range(2):
        one.run(one.node.partitions.retention.run_once())
        cluster.wait(1)
    assert one.partition().log.log_start_offset == 9, "what is settled and committed is deleted"


def test_leader_that_may_have_been_replaced_deletes_nothing(cluster: BrokerCluster) -> None:
    """The next leader has promised to deliver the messages again."""
    one, two, other = with_queue(cluster, messages=3)
    one.run(one.node.queues.lifecycle.seek(CALLER, "s", LATEST))
    for node in (TWO, THREE, NodeId(4)):
        cluster.switch.cut(ONE, node)
        cluster.switch.cut(node, ONE)
    one.store.cut()
    cluster.wait(3)
    cluster.tree.end_session(one.store)
    cluster.until(lambda: two.node.coordinators.queues.find(two.partition().identity) is not None)
    two.run(two.node.queues.lifecycle.seek(CALLER, "s", EARLIEST))
    assert one.partition().leader_term is not None
    one.run(one.node.partitions.retention.run_once())
    assert one.partition().log.log_start_offset == 0
    assert cluster.image(broker=other).leader == TWO


def test_message_has_no_copy_among_the_dead_letters_if_the_next_leader_delivers_it(cluster: BrokerCluster) -> None:
    cluster.create()
    cluster.create("dead", (4,), {"min.insync.replicas": "1"})
    one, *_, other = cluster.brokers
    document = {"dead_letter_topic": "dead"}
    one.run(one.node.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, document))
    publish(one, b"m")
    cluster.wait(3)
    (lease,) = one.run(one.node.queues.leases.lease(CALLER, "s", 1, 0, None))
    cut_off_its_leader(cluster)
    one.task(answer_of(one.node.queues.settlements.reject, CALLER, "s", [lease.ack_id], "bad"))
    cluster.wait(0.5)
    assert other.records("dead") == []
    two = replace_leader(cluster)
    assert leased(cluster, two) == [0]
    cluster.wait(5)
    assert other.records("dead") == []
