"""Index files that are lost while a broker runs: its reads fail and pass, and its event loop never does the work."""

from collections.abc import Iterator

import pytest

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.log.segments.lookup import find_time
from conveyor.log.segments.segment import Segment
from conveyor.log.segments.segment_indexes import StoredIndexes
from conveyor.replication.partition import Partition
from conveyor.replication.reads import read_available
from tests.callers import CALLER
from tests.unit.broker.replicas.brokers import BrokerCluster, ClusterBroker

COUNT = 60
SEGMENTS = {"segment.bytes": "1024", "index.interval.bytes": "0"}
"""Some batches fill a segment."""


@pytest.fixture
def cluster() -> Iterator[BrokerCluster]:
    made = BrokerCluster()
    yield made
    made.stop()


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[StoredIndexes]:
    """The indexes in files that threads have begun to prepare."""
    begun: list[StoredIndexes] = []
    prepare = StoredIndexes.prepare

    def counted(indexes: StoredIndexes) -> None:
        if indexes._seal is not None:
            begun.append(indexes)
        prepare(indexes)

    monkeypatch.setattr(StoredIndexes, "prepare", counted)
    return begun


def lose_indexes(broker: ClusterBroker) -> Partition:
    """Remove all index files of sealed segments, which no lookup has opened yet."""
    partition = broker.partition()
    assert sum(segment.sealed for segment in partition.log.segments.all) > 1
    for segment in partition.log.segments.all:
        for suffix in ("index", "timeindex"):
            broker.disk.remove(segment.files.path(suffix))
    return partition


def publish(broker: ClusterBroker, count: int = COUNT) -> None:
    for _ in range(count):
        assert broker.publish() is None


def look_up(broker: ClusterBroker) -> int:
    """Find an offset by time, in the first segment. Raises RequestError."""

    async def find() -> int:
        timestamp_ms = broker.partition().log.segments.all[0].max_timestamp
        offset, _, _ = await broker.node.fetch.offsets.find(CALLER, "t", 0, timestamp_ms, -1)
        return offset

    return broker.run(find())


def refusal(broker: ClusterBroker, segment: Segment) -> RequestError:
    """Return the error of a read that needs an index of a segment on the event loop."""

    async def read() -> RequestError:
        with pytest.raises(RequestError, match="cannot be read now") as refused:
            read_available(broker.partition(), segment.base_offset + 1, 100, at_least_one=True)
        return refused.value

    return broker.run(read())


def test_readers_that_need_the_same_index_wait_for_one_preparation(
    cluster: BrokerCluster, prepared: list[StoredIndexes]
) -> None:
    cluster.create(config=SEGMENTS)
    one, two, _ = cluster.brokers
    publish(one)
    partition = lose_indexes(one)
    one.threads.hang()
    for _ in range(3):
        partition.log.segments.forget_positions()
        assert refusal(one, partition.log.segments.all[0]).kind is ErrorKind.PARTITION_OFFLINE
        cluster.wait(0.001)
    one.threads.go_on()
    cluster.until(lambda: len(prepared) > 0)
    cluster.wait(1)
    found = find_time(two.partition().log.segments.all, partition.log.segments.all[0].max_timestamp, COUNT)
    assert found is not None
    assert look_up(one) == found.offset
    assert prepared == [partition.log.segments.all[0].indexes.stored]
    assert partition.offline.reason is None


@pytest.mark.parametrize("is_out_of_files", [False, True])
def test_follower_of_a_leader_that_appends_nothing_more_gets_all_records(
    cluster: BrokerCluster, is_out_of_files: bool
) -> None:
    """The follower asks again after a read that failed, also if no index was prepared meanwhile."""
    cluster.create(config=SEGMENTS)
    one, _, three = cluster.brokers
    publish(one, 1)
    cluster.until(lambda: three.partition().log.flushes.flushed_offset == 1)
    three.kill()
    cluster.until(lambda: len(cluster.image().isr) == 2)
    publish(one)
    partition = lose_indexes(one)
    partition.log.segments.forget_positions()
    one.disk.faults.out_of_files = is_out_of_files
    three.start()
    cluster.wait(5)
    one.disk.faults.out_of_files = False
    cluster.until(lambda: three.partition().log.flushes.flushed_offset == COUNT + 1)
    assert three.records() == one.records()
    assert partition.offline.reason is None


def test_disk_that_fails_meanwhile_takes_the_partition_offline(cluster: BrokerCluster) -> None:
    cluster.create(config=SEGMENTS)
    one = cluster.brokers[0]
    publish(one)
    partition = lose_indexes(one)
    with pytest.raises(RequestError):
        look_up(one)
    one.disk.faults.fail("read")
    cluster.until(lambda: partition.offline.reason is not None)
    one.disk.faults.heal()
    assert partition.offline.reason == f"{partition.log.segments.all[0].files.path('log')}: read failed"


def test_disk_without_descriptors_is_tried_again_by_the_next_reader(cluster: BrokerCluster) -> None:
    cluster.create(config=SEGMENTS)
    one = cluster.brokers[0]
    publish(one)
    partition = lose_indexes(one)
    for is_out_of_files in (True, False):
        one.disk.faults.out_of_files = is_out_of_files
        with pytest.raises(RequestError):
            look_up(one)
        cluster.wait(1)
    assert look_up(one) >= 0
    assert partition.offline.reason is None


def test_indexes_are_prepared_one_after_the_other_as_long_as_their_partition_is_online(
    cluster: BrokerCluster, prepared: list[StoredIndexes]
) -> None:
    cluster.create(config=SEGMENTS)
    one = cluster.brokers[0]
    publish(one)
    partition = lose_indexes(one)
    first, second, *_ = partition.log.segments.all
    one.threads.hang()
    for segment in (first, second):
        partition.log.segments.forget_positions()
        refusal(one, segment)
    cluster.wait(0.1)
    partition.end("closed")
    one.threads.go_on()
    cluster.wait(1)
    assert prepared == [first.indexes.stored]
