"""Brokers that copy partitions from each other: what is stored where, and who is in sync."""

from collections.abc import Iterator

import pytest

from conveyor.kernel.ids import NodeId
from tests.unit.broker.replicas.brokers import BrokerCluster

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)


@pytest.fixture
def cluster() -> Iterator[BrokerCluster]:
    made = BrokerCluster()
    yield made
    made.stop()


def test_records_are_stored_by_all_replicas_before_they_are_acknowledged(cluster: BrokerCluster) -> None:
    cluster.create()
    assert cluster.brokers[0].publish() is None
    for broker in cluster.brokers:
        assert broker.records() == cluster.brokers[0].records()
        assert broker.partition().log.flushed_offset == 1
    cluster.until(lambda: all(broker.partition().high_watermark == 1 for broker in cluster.brokers))


def test_partitions_with_one_replica_have_no_observer(cluster: BrokerCluster) -> None:
    cluster.create(replicas=(1,), **{"min.insync.replicas": "1"})
    assert cluster.brokers[0].publish() is None
    assert cluster.brokers[0].partition().replication is None
