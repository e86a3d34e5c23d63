"""A replica that has lost its segment, or records to a flipped bit, counts for nothing in an election."""

from collections.abc import Iterator

import pytest

from conveyor.kernel.errors import OutOfFiles
from tests.callers import CALLER
from tests.unit.broker.replicas.brokers import BrokerCluster
from tests.unit.broker.replicas.test_trusted_replicas import (
    ONE,
    SEGMENT,
    elect_uncleanly,
    filled,
    has_all_in_sync,
    publish,
    start_brokers,
)


@pytest.fixture
def cluster() -> Iterator[BrokerCluster]:
    made = BrokerCluster()
    yield made
    made.stop()


@pytest.mark.parametrize("also_lost", ["leader-epoch-checkpoint", None])
def test_log_without_its_segment_begins_again_after_an_unclean_election(also_lost: str | None) -> None:
    cluster = BrokerCluster(2)
    one, two = filled(cluster, (1, 2), min_insync_replicas="1")
    two.kill()
    publish(cluster, 2)
    one.kill()
    one.disk.remove(SEGMENT)
    if also_lost is not None:
        one.disk.remove(f"logs/t-0/{also_lost}")
    one.start()
    cluster.wait(5)
    assert (cluster.image().leader, cluster.image().isr) == (-1, ())
    assert elect_uncleanly(one) == [None]
    cluster.until(lambda: cluster.image().leader == ONE)
    cluster.until(lambda: one.node.partitions.table.offline_reason("t", 0) is None)
    assert one.records() == []
    two.start()
    cluster.until(lambda: has_all_in_sync(cluster), seconds=60)
    cluster.stop()


def test_bit_that_flips_below_the_log_start_costs_no_acknowledged_record(cluster: BrokerCluster) -> None:
    one, two, three = filled(cluster)
    leader = cluster.brokers[cluster.image().leader - 1]
    start = leader.partition().term.high_watermark
    assert leader.run(leader.node.partitions.retention.delete_records(CALLER, "t", 0, start, 10_000)) == start
    assert [leader.publish() for _ in range(4)] == [None] * 4
    cluster.until(lambda: all(broker.partition().log.flushes.flushed_offset == start + 4 for broker in cluster.brokers))
    expected = leader.records()
    assert len(expected) == 4
    cluster.kill_all()
    one.disk.flip(SEGMENT, 70, 0)
    one.start()
    cluster.wait(5)
    two.start()
    three.start()
    cluster.until(lambda: has_all_in_sync(cluster), seconds=60)
    assert one.records() == two.records() == three.records() == expected


@pytest.mark.parametrize("replicas", [(1,), (1, 2, 3)])
def test_trimmed_log_that_loses_its_segment_and_its_page_cache_does_not_lead_empty(
    cluster: BrokerCluster, replicas: tuple[int, ...]
) -> None:
    one, two, three = filled(cluster, replicas, min_insync_replicas="1", segment_bytes="1024")
    publish(cluster, 60)
    leader = cluster.brokers[cluster.image().leader - 1]
    start = leader.partition().term.high_watermark
    assert leader.run(leader.node.partitions.retention.delete_records(CALLER, "t", 0, start, 10_000)) == start
    assert [leader.publish() for _ in range(2)] == [None] * 2
    holders = [broker for broker in cluster.brokers if broker.node_id in replicas]
    cluster.until(lambda: all(broker.partition().log.flushes.flushed_offset == start + 2 for broker in holders))
    expected = leader.records()
    cluster.kill_all(*cluster.brokers)
    [segment] = [name for name in one.disk.list("logs/t-0") if name.endswith(".log")]
    one.disk.remove(f"logs/t-0/{segment}")
    one.start()
    cluster.wait(5)
    assert one.node.partitions.table.offline_reason("t", 0) is not None
    if len(replicas) > 1:
        two.start()
        three.start()
        cluster.until(lambda: has_all_in_sync(cluster), seconds=60)
        assert one.records() == two.records() == three.records() == expected


def test_new_log_that_a_power_cut_took_and_that_cannot_be_opened_at_once_is_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = BrokerCluster(2)
    cluster.create(replicas=(1,), config={"min.insync.replicas": "1"})
    one, _ = cluster.brokers
    cluster.wait(6)
    cluster.kill_all(one)
    check = one.disk.check

    def out_of_files(operation: str, path: str) -> None:
        if path.startswith("logs/t-0"):
            raise OutOfFiles(f"{path}: Too many open files")
        check(operation, path)

    with monkeypatch.context() as failing:
        failing.setattr(one.disk, "check", out_of_files)
        start_brokers(cluster)
        cluster.wait(5)
        assert one.node.partitions.table.offline_reason("t", 0) is not None
    cluster.until(lambda: cluster.image().leader == ONE, seconds=200)
    cluster.until(lambda: one.node.partitions.table.offline_reason("t", 0) is None, seconds=200)
    publish(cluster, 1)
    cluster.stop()
