"""Changes of followers' logs that block: how often they are started."""

from collections.abc import Iterator

import pytest

from conveyor.kernel.errors import StorageFailure
from conveyor.replication.partition import Partition
from conveyor.replication.streams.log_chores import LogChore
from tests.unit.broker.replicas.brokers import BrokerCluster, ClusterBroker


@pytest.fixture
def cluster() -> Iterator[BrokerCluster]:
    made = BrokerCluster()
    yield made
    made.stop()


def count_chores(broker: ClusterBroker, monkeypatch: pytest.MonkeyPatch) -> list[Partition]:
    """Return the list to which each chore that the broker starts from now on adds its partition; 50 are too many."""
    assert broker.node._replicator is not None
    runner, started = broker.node._replicator._chores, list[Partition]()
    start = runner.start

    def counted(partition: Partition, chore: LogChore) -> None:
        started.append(partition)
        if len(started) < 50:
            start(partition, chore)

    monkeypatch.setattr(runner, "start", counted)
    return started


def test_a_follower_that_goes_offline_while_it_deletes_does_not_begin_again(
    cluster: BrokerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create()
    one, two, _ = cluster.brokers
    for _ in range(3):
        assert one.publish() is None
    cluster.until(lambda: two.partition().high_watermark == 3)
    started = count_chores(two, monkeypatch)
    two.threads.hang()
    for offset in (1, 2):
        one.run(one.node.retention.trim(one.partition(), offset))
        cluster.wait(0.1)
    failed = two.partition()
    failed.go_offline(StorageFailure("injected"))
    two.threads.go_on()
    cluster.wait(0.5)
    assert started.count(failed) == 1
