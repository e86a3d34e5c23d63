"""A marker counts as repeated only if no other replica may have what it would end."""

from functools import partial

import pytest

from conveyor.broker.answers import answered
from conveyor.kernel.errors import RequestError
from conveyor.kernel.ids import NodeId
from conveyor.records.batch import TRANSACTIONAL
from conveyor.records.checked_batch import own_batch
from conveyor.records.record import encode_batch
from conveyor.records.transaction_marker import TransactionMarker
from conveyor.replication.transactions import append_marker, last_stable_offset
from tests.unit.broker.parts import NOW_MS
from tests.unit.broker.replicas.brokers import BrokerCluster, ClusterBroker

ONE, TWO, THREE = map(NodeId, (1, 2, 3))
PRODUCER = 77


async def append(broker: ClusterBroker, sequence: int, value: bytes) -> None:
    """Append a record of a transaction; the coordinator is not asked."""
    batch = encode_batch(
        [(NOW_MS, None, value, ())],
        attributes=TRANSACTIONAL, producer_id=PRODUCER, producer_epoch=0, base_sequence=sequence,
    )  # fmt: skip
    broker.partition().append(own_batch(batch), NOW_MS)


async def end(broker: ClusterBroker, *, commits: bool) -> None:
    """Write the marker of a transaction of version 1, whose epoch is that of its records."""
    partition = broker.partition()
    marker = TransactionMarker(producer_id=PRODUCER, producer_epoch=0, coordinator_epoch=0, commits=commits)
    append_marker(partition, marker, 1, NOW_MS)
    await answered(partial(partition.term.when_acknowledged, partition.log.log_end_offset))


def test_marker_for_a_record_that_an_in_sync_replica_alone_has() -> None:
    """The next leader, which lacks the record, has the marker of the producer's transaction before it."""
    cluster = BrokerCluster(4)
    cluster.create()
    one, two, three, other = cluster.brokers
    one.run(append(one, 0, b"committed"))
    one.run(end(one, commits=True))
    one.run(end(one, commits=True))
    cluster.wait(2)
    assert one.partition().log.log_end_offset == 2, "the repeated marker is not appended"
    cluster.switch.cut(ONE, TWO)
    one.run(append(one, 1, b"aborted"))
    cluster.until(lambda: three.partition().log.log_end_offset == 3)
    with three.busy_files():
        one.kill()
        cluster.until(lambda: cluster.image(broker=other).leader == TWO and two.partition().leader_term is not None)
        ended = two.task(end(two, commits=False))
        cluster.wait(0.2)
        assert not ended.done()
        two.kill()
        cluster.until(lambda: cluster.image(broker=other).leader == THREE)
    one.start()
    cluster.until(lambda: three.partition().leader_term is not None and len(cluster.image(broker=other).isr) == 2)
    three.run(end(three, commits=False))
    partition = three.partition()
    assert last_stable_offset(partition) == partition.log.log_end_offset == 4
    cluster.stop()


def test_marker_that_ends_nothing_is_appended_once_in_an_epoch() -> None:
    """Its coordinator sends it again as long as the ISR is too small."""
    cluster = BrokerCluster(3)
    cluster.create()
    one = cluster.brokers[0]
    one.run(append(one, 0, b"committed"))
    one.run(end(one, commits=True))
    two = cluster.brokers[1]
    one.kill()
    cluster.brokers[2].kill()
    cluster.until(lambda: two.partition().leader_term is not None)
    for _ in range(5):
        with pytest.raises(RequestError):
            two.run(end(two, commits=True))
    assert two.partition().log.log_end_offset == 3
    cluster.stop()
