"""Every replica seals the segments that it closes, whatever the policy: only then are they removed or compacted."""

from collections.abc import Callable, Iterator

import pytest

from conveyor.log.log import Log
from tests.unit.broker.publishing import message, put
from tests.unit.broker.replicas.brokers import BrokerCluster

SMALL = {"flush.policy": "os", "segment.bytes": "1024"}
COMPACTED = SMALL | {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": "0"}


@pytest.fixture
def cluster() -> Iterator[BrokerCluster]:
    made = BrokerCluster(**{"broker.retention_check_ms": 1_000})
    yield made
    made.stop()


def fill(cluster: BrokerCluster, count: int) -> list[Log]:
    """Publish records of one key. Returns the logs of all replicas."""
    one = cluster.brokers[0]
    for _ in range(count):
        one.run(put(one.node, message(b"value", key=b"key")))
    return [broker.partition().log for broker in cluster.brokers]


def is_sealed(log: Log) -> bool:
    return all(segment.sealed for segment in log.segments.all[:-1])


@pytest.mark.parametrize(
    ("config", "is_small"),
    [
        (SMALL | {"retention.bytes": "4096"}, lambda log: len(log.segments.all) <= 6),
        (COMPACTED, lambda log: log.segments.size_bytes < 2_048),
    ],
    ids=["deleted", "compacted"],
)
def test_old_segments_are_deleted_or_compacted_under_policy_os(
    cluster: BrokerCluster, config: dict[str, str], is_small: Callable[[Log], bool]
) -> None:
    cluster.create(config=config)
    logs = fill(cluster, 100)
    cluster.until(lambda: all(map(is_sealed, logs)) and all(map(is_small, logs)))


def test_tombstones_are_removed_under_policy_os(cluster: BrokerCluster) -> None:
    """All replicas must have them on their disks before."""
    cluster.create(config=COMPACTED)
    one = cluster.brokers[0]
    one.run(put(one.node, message(None, key=b"gone")))
    for _ in range(4):
        logs = fill(cluster, 20)
        cluster.wait(20)
    assert all(log.compaction.removed_end_offset > 0 for log in logs)
