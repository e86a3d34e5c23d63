"""A replica whose copy is not complete does not keep deleted keys when another replica leads."""

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
