"""What the metrics of a cluster say."""

from collections.abc import Iterator

import pytest

from conveyor.broker.replicas.replication_probe import ReplicationProbe
from conveyor.http_api.ops.replication_metrics import replication_metrics
from conveyor.kernel.ids import LeaderEpoch, NodeId
from conveyor.replication.roles import Follower, Leader
from tests.unit.broker.replicas.brokers import BrokerCluster, ClusterBroker
from tests.unit.replication.parts import Owner, batch

ONE, TWO = NodeId(1), NodeId(2)
EPOCH = LeaderEpoch(4)


@pytest.fixture
def cluster() -> Iterator[BrokerCluster]:
    made = BrokerCluster()
    made.create()
    yield made
    made.stop()


def values(broker: ClusterBroker) -> dict[str, float]:
    """Each metric of replication, without its prefix."""

    async def measured() -> dict[str, float]:
        metrics = list(replication_metrics(broker.node))
        return {metric.name.removeprefix("conveyor_"): metric.samples[0].value for metric in metrics}

    return broker.run(measured())


def test_changes_of_the_isr_and_leaderships_are_counted() -> None:
    partition, probe = Owner().partition, ReplicationProbe()
    for role in (
        Leader(leader=ONE, epoch=EPOCH, isr=(ONE, TWO)),
        Leader(leader=ONE, epoch=EPOCH, isr=(ONE,), partition_epoch=1),
        Leader(leader=ONE, epoch=EPOCH, isr=(ONE, TWO), partition_epoch=2),
        Leader(leader=ONE, epoch=LeaderEpoch(EPOCH + 1), isr=(ONE, TWO)),
        Follower(leader=TWO, epoch=LeaderEpoch(EPOCH + 2)),
        Leader(leader=ONE, epoch=LeaderEpoch(EPOCH + 3), isr=(ONE,)),
    ):
        partition.assume(role)
        probe.assumed(partition)
    assert (probe.isr_shrinks, probe.isr_expands, probe.leader_elections) == (1, 1, 3)
    probe.closed(partition)
    assert not probe._led


def test_a_healthy_cluster(cluster: BrokerCluster) -> None:
    one, two, _ = cluster.brokers
    assert one.publish() is None
    cluster.until(lambda: two.partition().term.high_watermark == 1)
    led, followed = values(one), values(two)
    sizes = one.partition().log.segments.size_bytes
    assert (led["replication_led_partitions"], followed["replication_led_partitions"]) == (1, 0)
    assert (led["replication_sent_bytes"], followed["replication_received_bytes"]) == (2 * sizes, sizes)
    assert led["replication_max_lag_messages"] == led["replication_under_replicated_partitions"] == 0
    assert led["metadata_offset"] == one.node.metadata.image.seq
    assert led["metadata_session_sure"] == 1
    assert led["cluster_live_brokers"] == 3
    assert sum(values(broker)["controller_active"] for broker in cluster.brokers) == 1


def test_a_replica_that_is_away(cluster: BrokerCluster) -> None:
    one, two, three = cluster.brokers
    for broker in (two, three):
        broker.kill()
    cluster.until(lambda: cluster.image().isr == (ONE,))
    cluster.wait(1)
    assert one.run(_append(one)) == 1
    seen = values(one)
    assert seen["replication_under_replicated_partitions"] == seen["replication_under_min_isr_partitions"] == 1
    assert seen["replication_max_lag_messages"] == 1
    assert seen["replication_isr_shrinks"] >= 1
    assert seen["cluster_live_brokers"] == 1


async def _append(broker: ClusterBroker) -> int:
    partition = broker.partition()
    partition.append(batch(b"a"), 0)
    partition.write()
    return partition.log.written_offset
