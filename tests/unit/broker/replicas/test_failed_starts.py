"""A start that fails, and the stop after it, leave all that the data directory says against its logs."""

from collections.abc import Callable

import pytest

from conveyor.kernel.errors import StartupError, StorageFailure
from conveyor.kernel.ids import NodeId
from conveyor.log.checked_file import read_checked
from conveyor.replication.replica_facts import NAME
from tests.unit.broker.parts import LosesAll
from tests.unit.broker.replicas.brokers import BrokerCluster, ClusterBroker
from tests.unit.broker.replicas.test_trusted_replicas import filled, has_all_in_sync

ONE, TWO = NodeId(1), NodeId(2)

Records = list[tuple[int, bytes | None]]


def fail_to_open(broker: ClusterBroker) -> None:
    """Start and stop as the server does, with a disk that fails before any log is opened."""
    broker.assemble()
    broker.disk.make_directory("logs/stray-0")
    broker.disk.faults.fail("rename")
    with pytest.raises(StorageFailure):
        broker.run(broker.join())
    broker.disk.faults.heal()
    end(broker, stops=True)


def fail_to_register(broker: ClusterBroker, *, stops: bool = True) -> None:
    """Start, and stop or die when all logs are open."""
    broker.assemble()
    opened = broker.node.partitions.reconciler.start

    async def open_and_fail() -> None:
        await opened()
        raise StorageFailure("the metadata store is gone")

    broker.node.partitions.reconciler.start = open_and_fail  # type: ignore[method-assign]
    with pytest.raises(StorageFailure, match="the metadata store is gone"):
        broker.run(broker.join())
    end(broker, stops=stops)


def end(broker: ClusterBroker, *, stops: bool) -> None:
    if stops:
        broker.run(broker.node.stop())
    broker.process.kill()
    broker.disk = broker.disk.process_crash()
    broker.store.abandon()


def with_new_records(cluster: BrokerCluster) -> list[ClusterBroker]:
    """Create the topic with a record that both replicas have, and whose commit no directory knows of."""
    cluster.create(replicas=(1, 2), config={"flush.policy": "os", "min.insync.replicas": "1"})
    one, two, _ = cluster.brokers
    assert one.publish() is None
    cluster.until(lambda: two.partition().term.high_watermark == 1)
    return [one, two]


def damaged(cluster: BrokerCluster) -> Records:
    """Create the topic, stop all brokers, and damage a batch of broker 1. Returns the records of broker 2."""
    cluster.create(replicas=(1, 2))
    one, two = cluster.brokers
    assert [one.publish() for _ in range(3)] == [None] * 3
    expected = two.records()
    cluster.kill_all()
    segment = f"logs/t-0/{0:020}.log"
    one.disk.flip(segment, len(one.disk.read(segment)) // 2, 1)
    return expected


def check_that_two_leads(cluster: BrokerCluster, expected: Records) -> None:
    """Check that broker 1, which runs, does not lead, and copies the records of broker 2 once that runs."""
    assert (cluster.image().leader, cluster.image().isr) == (-1, (TWO,))
    one, two = cluster.brokers[:2]
    two.start()
    cluster.until(lambda: has_all_in_sync(cluster))
    assert one.records() == two.records() == expected
    cluster.stop()


def test_stop_before_anything_was_read_writes_nothing() -> None:
    """As when the metadata cannot be read, or is of another cluster."""
    cluster = BrokerCluster(2)
    one, two = filled(cluster, (1, 2))
    expected = one.records()
    cluster.kill_all()
    before = read_checked(one.disk, NAME)
    one.assemble()
    one.run(one.node.stop())
    assert read_checked(one.disk, NAME) == before
    one.process.kill()
    one.start()
    two.start()
    cluster.until(lambda: has_all_in_sync(cluster))
    assert one.records() == two.records() == expected
    cluster.stop()


@pytest.mark.parametrize("fail", [fail_to_open, fail_to_register])
def test_stop_after_a_failed_start_does_not_hide_a_power_cut(fail: Callable[[ClusterBroker], None]) -> None:
    cluster = BrokerCluster()
    one, two = with_new_records(cluster)
    expected = two.records()
    cluster.kill_all(one)
    fail(one)
    one.start()
    cluster.wait(5)
    check_that_two_leads(cluster, expected)


def test_power_cut_after_a_failed_start_is_noticed() -> None:
    """The start has opened no log, so its stop has flushed none."""
    cluster = BrokerCluster()
    one, two = with_new_records(cluster)
    expected = two.records()
    cluster.kill_all()
    fail_to_open(one)
    one.disk = one.disk.power_cut(LosesAll())
    one.boots += 1
    one.start()
    cluster.wait(5)
    check_that_two_leads(cluster, expected)


@pytest.mark.parametrize("stops", [True, False])
def test_start_that_ends_before_it_has_registered_does_not_hide_damaged_batches(stops: bool) -> None:
    """Its recovery has removed them, so the next start finds a sound log."""
    cluster = BrokerCluster(2)
    expected = damaged(cluster)
    one, _ = cluster.brokers
    fail_to_register(one, stops=stops)
    one.start()
    cluster.wait(5)
    check_that_two_leads(cluster, expected)


def test_log_that_cannot_be_opened_yet_is_not_trusted() -> None:
    """Its recovery has no room for the batches that it is about to remove, so nobody knows yet what is missing."""
    cluster = BrokerCluster(2)
    expected = damaged(cluster)
    one, _ = cluster.brokers
    one.assemble()
    opened = one.node.partitions.reconciler.start

    async def open_without_room() -> None:
        one.disk.faults.free_bytes = 0
        await opened()
        one.disk.faults.free_bytes = None

    one.node.partitions.reconciler.start = open_without_room  # type: ignore[method-assign]
    one.run(one.join())
    cluster.until(lambda: one.node.partitions.table.get("t", 0) is not None)
    check_that_two_leads(cluster, expected)


def test_start_under_another_id_leaves_the_directory_as_it_is() -> None:
    cluster = BrokerCluster(3)
    one, _, three = filled(cluster, (1, 2))
    cluster.kill_all()
    before = read_checked(one.disk, NAME)
    three.disk = one.disk
    three.assemble()
    with pytest.raises(StartupError, match="start with --node-id 1"):
        three.run(three.join())
    three.run(three.node.stop())
    assert read_checked(one.disk, NAME) == before
    three.process.kill()
    cluster.stop()
