"""A replica of a compacted log has the state of all keys that its leader has: also if its copy is not complete when
another replica leads, and after an unclean election.
"""

from conveyor.broker.partitions.replica_checkpoint import INTERVAL_MS
from conveyor.cluster.controller.elections import ElectionRequest
from conveyor.cluster.controller.partition_transition import Election
from conveyor.cluster.controller.reassignments import Reassignment
from conveyor.kernel.ids import NodeId
from conveyor.records.batch import iterate_batches
from conveyor.records.record import Record, decode_records
from tests.callers import CALLER
from tests.unit.broker.publishing import message, put
from tests.unit.broker.replicas.brokers import BrokerCluster, ClusterBroker
from tests.unit.log.logs import read_bytes

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
COMPACTED = {
    "cleanup.policy": "compact", "segment.bytes": "300000", "delete.retention.ms": "0",
    "min.cleanable.dirty.ratio": "0", "compression.type": "uncompressed",
}  # fmt: skip
SMALL_ISR = COMPACTED | {"min.insync.replicas": "1"}
FILLING = bytes(90_000)


def records_of(broker: ClusterBroker, key: bytes) -> list[Record]:
    log, found = broker.partition().log, []
    offset: int = log.log_start_offset
    while content := read_bytes(log, offset):
        for position, header in iterate_batches(content):
            batch = decode_records(content[position : position + header.size])
            found += [record for record in batch if record.key == key]
            offset = header.next_offset
    return found


def fill(cluster: BrokerCluster, key: bytes, count: int) -> None:
    one = cluster.brokers[0]
    for number in range(count):
        one.run(put(one.node, message(FILLING, key=b"%s%d" % (key, number))))


def test_a_copy_begins_again_with_a_leader_that_has_removed_tombstones_above_it() -> None:
    """Broker 1 has not compacted, and dies when broker 3 has copied an old record, but not its tombstone."""
    cluster = BrokerCluster(4, **{"topics.min_insync_replicas": 1, "broker.catch_up_bytes_per_second": 1_000_000})
    cluster.create(replicas=(ONE, TWO), config=COMPACTED)
    one, two, three, _ = cluster.brokers
    for broker in cluster.brokers:
        broker.node.partitions.compaction.stop()
    one.run(put(one.node, message(b"old", key=b"a")))
    fill(cluster, b"f", 20)
    one.run(put(one.node, message(None, key=b"a")))
    for key in (b"g", b"h", b"i"):
        fill(cluster, key, 5)
        cluster.wait(2)
        two.run(two.node.partitions.compaction.run_once())
    assert (len(records_of(one, b"a")), records_of(two, b"a")) == (2, [])
    request = Reassignment(topic="t", partition=0, target=(ONE, TWO, THREE))
    assert one.run(one.node.topics.operations.reassign(CALLER, [request])) == [None]
    cluster.until(lambda: (copy := three.node.partitions.table.get("t", 0)) is not None and copy.log.log_end_offset > 0)
    cluster.switch.cut(ONE, THREE)
    assert 0 < three.partition().log.log_end_offset <= 21
    one.kill()
    cluster.switch.heal()
    cluster.until(lambda: two.partition().leader_term is not None)
    cluster.until(lambda: THREE in cluster.image(broker=two).isr)
    assert records_of(three, b"a") == records_of(two, b"a") == []
    assert (
        three.partition().log.compaction.removed_end_offset == two.partition().log.compaction.removed_end_offset == 22
    )
    three.die()
    three.start()
    assert three.partition().log.compaction.removed_end_offset == 22
    cluster.loop.end()


def compacted_by_the_only_leader(records: int, **settings: int) -> BrokerCluster:
    """Brokers 1 and 2 have the old record of a key. Then broker 2 dies, and broker 1 has a new one, and compacts."""
    cluster = BrokerCluster(3, **{"topics.min_insync_replicas": 1}, **settings)
    cluster.create(replicas=(ONE, TWO), config=SMALL_ISR)
    one, two, _ = cluster.brokers
    for broker in cluster.brokers:
        broker.node.partitions.compaction.stop()
    one.run(put(one.node, message(b"old", key=b"a")))
    fill(cluster, b"f", records)
    cluster.until(lambda: two.partition().term.high_watermark >= records + 1)
    two.kill()
    cluster.until(lambda: cluster.image(broker=one).isr == (ONE,))
    one.run(put(one.node, message(b"new", key=b"a")))
    fill(cluster, b"g", 8)
    cluster.wait(2)
    one.run(one.node.partitions.compaction.run_once())
    assert [record.value for record in records_of(one, b"a")] == [b"new"]
    return cluster


def elect_two_uncleanly(cluster: BrokerCluster) -> None:
    """Broker 1 is dead: broker 2 leads with the old record."""
    _, two, _ = cluster.brokers
    two.start()
    request = ElectionRequest(topic="t", partition=0, election=Election.UNCLEAN)
    assert two.run(two.node.topics.operations.elect(CALLER, [request])) == [None]
    cluster.until(lambda: two.partition().leader_term is not None)
    assert [record.value for record in records_of(two, b"a")] == [b"old"]


def test_clean_election_loses_no_record_that_an_unclean_one_has_kept() -> None:
    """Broker 1 returns, gives up its own records, and leads once broker 2 has stopped."""
    cluster = compacted_by_the_only_leader(4)
    one, two, _ = cluster.brokers
    cluster.wait(INTERVAL_MS / 1000 + 1)
    one.kill()
    elect_two_uncleanly(cluster)
    one.start()
    cluster.until(lambda: set(cluster.image(broker=two).isr) == {ONE, TWO})
    unclean_epoch = cluster.image(broker=two).unclean_epoch
    two.run(two.node.stop())
    cluster.until(lambda: one.partition().leader_term is not None)
    assert cluster.image(broker=one).unclean_epoch == unclean_epoch
    assert [record.value for record in records_of(one, b"a")] == [b"old"]
    cluster.loop.end()


def test_copy_of_a_compacted_log_begins_again_after_an_unclean_election() -> None:
    """Broker 3 has copied what broker 1 has compacted, without the record of the key, and does not diverge."""
    cluster = compacted_by_the_only_leader(24, **{"broker.catch_up_bytes_per_second": 1_000_000})
    one, two, three = cluster.brokers
    request = Reassignment(topic="t", partition=0, target=(ONE, TWO, THREE))
    assert one.run(one.node.topics.operations.reassign(CALLER, [request])) == [None]
    cluster.until(lambda: (copy := three.node.partitions.table.get("t", 0)) is not None and copy.log.log_end_offset > 0)
    cluster.switch.cut(ONE, THREE)
    assert 0 < three.partition().log.log_end_offset <= 25
    one.kill()
    cluster.switch.heal()
    elect_two_uncleanly(cluster)
    cluster.until(lambda: THREE in cluster.image(broker=two).isr)
    assert [record.value for record in records_of(three, b"a")] == [b"old"]
    cluster.loop.end()
