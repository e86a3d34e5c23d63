"""A record of a delayed topic is in its target once, although a replica keeps a forwarded batch that others lack."""

import asyncio
from collections.abc import Iterator
from unittest.mock import patch

import pytest

from conveyor.broker.coordinators.forwarder import Forwarder
from conveyor.broker.produce.acknowledgement import ACKS_LEADER
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.delay.forwarding_records import Intent
from conveyor.kernel.ids import NodeId
from conveyor.records.record import encode_batch
from conveyor.replication.partition import Partition
from tests.callers import CALLER
from tests.unit.broker.parts import NOW_MS, publish
from tests.unit.broker.replicas.brokers import BrokerCluster, ClusterBroker

ONE, TWO, THREE = map(NodeId, (1, 2, 3))
TARGET, DELAYED, STATE = "orders", "later", "__delay_state.later"
SEGMENT = f"logs/{TARGET}-0/{0:020}.log"
DELAY_MS = 1_000


@pytest.fixture
def cluster() -> Iterator[BrokerCluster]:
    """Four brokers, of which the last holds no replicas: a majority of the brokers is alive without two of them."""
    brokers = BrokerCluster(4)
    yield brokers
    brokers.stop()


def create(cluster: BrokerCluster, *replicas: int, min_isr: int) -> None:
    cluster.create(TARGET, replicas, {"min.insync.replicas": str(min_isr)})
    request = TopicRequest(name=DELAYED, config={"delay.target": TARGET})
    first = cluster.brokers[0]
    first.run(first.node.topics.create(CALLER, request))
    holders = [broker for broker in cluster.brokers if broker.node_id in replicas]
    cluster.until(lambda: all(broker.node.partitions.table.get(STATE, 0) is not None for broker in holders))
    for value in (b"x", b"y"):
        send(first, value)
    cluster.until(lambda: all(values(broker) == [b"x", b"y"] for broker in holders))
    cluster.wait(3)


def send(broker: ClusterBroker, value: bytes, *, delay_ms: int = 0) -> None:
    due_ms = broker.node.clock.now_ms() + delay_ms
    headers = (("conveyor-deliver-at-ms", b"%d" % due_ms),) if delay_ms else ()
    batch = encode_batch([(NOW_MS, None, value, headers)])
    (published,) = broker.run(publish(broker.node, (DELAYED, 0), batch=batch))
    assert published.error is None


def values(broker: ClusterBroker) -> list[bytes]:
    return [value or b"" for _, value in broker.records(TARGET)]


def leads(cluster: BrokerCluster, node: NodeId) -> bool:
    return cluster.image(TARGET, cluster.brokers[-1]).leader == node


def test_in_the_log_of_a_replica_that_has_not_heard_of_the_present_leader(cluster: BrokerCluster) -> None:
    """Its disk is busy with the target's files while the state's are copied. Then it is elected."""
    one, two, three, _ = cluster.brokers
    create(cluster, 1, 2, 3, min_isr=2)
    forward = Forwarder._forward_intent

    def forward_to_the_third_alone(forwarder: Forwarder, intent: Intent) -> None:
        cluster.switch.cut(ONE, TWO)
        forward(forwarder, intent)

    with patch.object(Forwarder, "_forward_intent", forward_to_the_third_alone):
        send(one, b"delayed", delay_ms=DELAY_MS)
        cluster.until(lambda: values(three) == [b"x", b"y", b"delayed"])
    assert values(two) == [b"x", b"y"]
    held, load = asyncio.Event(), two.node.coordinators.forwarders.load

    async def load_later(partition: Partition) -> Forwarder:
        await held.wait()
        return await load(partition)

    with three.busy_files(TARGET), patch.object(two.node.coordinators.forwarders, "load", load_later):
        one.kill()
        cluster.until(lambda: leads(cluster, TWO) and two.partition(DELAYED).leader_term is not None)
        send(two, b"at once")
        held.set()
        cluster.wait(1.5)
        two.kill()
        cluster.until(lambda: leads(cluster, THREE))
    one.start()
    cluster.wait(30)
    assert sorted(values(three)) == [b"at once", b"delayed", b"x", b"y"]


def test_in_the_log_of_a_follower_that_has_more_than_a_log_that_was_opened_again(cluster: BrokerCluster) -> None:
    """The leader's disk is full, and has damaged what it has not flushed. Then the follower is elected."""
    one, two, _, other = cluster.brokers
    create(cluster, 1, 2, min_isr=1)
    send(one, b"delayed", delay_ms=DELAY_MS)
    target, flusher = one.partition(TARGET), one.node.partitions.flusher
    take_jobs = flusher._take_jobs

    def all_but_the_target(wanted: dict[Partition, None], most: int | None = None) -> object:
        held = wanted.pop(target, target)
        jobs = take_jobs(wanted, most) if most is not None else take_jobs(wanted)
        if held is None:
            wanted[target] = None
        return jobs

    with patch.object(flusher, "_take_jobs", all_but_the_target):
        cluster.until(lambda: values(two) == [b"x", b"y", b"delayed"])
        send(one, b"at once")
        content = one.disk.open(SEGMENT).written
        content[len(content) - 5] ^= 1
    reconciler = two.node.partitions.reconciler
    with patch.object(reconciler, "_is_running", True):  # Its task opens other logs.
        one.disk.faults.free_bytes = 0
        one.run(publish(one.node, (TARGET, 0), acks=ACKS_LEADER))
        one.disk.faults.heal()
        cluster.until(lambda: not one.node.partitions.table.offline() and one.partition(TARGET) is not target)
        cluster.wait(2)
        one.kill()
        cluster.until(lambda: cluster.image(TARGET, other).leader == TWO)
    two.run(woken(two))
    cluster.wait(20)
    assert (values(two).count(b"delayed"), values(two).count(b"at once")) == (1, 1)


async def woken(broker: ClusterBroker) -> None:
    broker.node.partitions.reconciler._wake()
