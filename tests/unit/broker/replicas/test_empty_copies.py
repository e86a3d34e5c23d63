"""Brokers whose logs have parted below an offset up to which records were deleted since: no epoch tells where."""

import pytest

from conveyor.broker.produce.acknowledgement import ACKS_ALL
from conveyor.cluster.controller.elections import ElectionRequest
from conveyor.cluster.controller.partition_transition import Election
from tests.callers import CALLER
from tests.unit.broker.parts import publish
from tests.unit.broker.replicas.brokers import BrokerCluster, ClusterBroker
from tests.unit.log.logs import idempotent_batch


def elect_uncleanly(cluster: BrokerCluster, broker: ClusterBroker) -> None:
    """Return once a broker leads that is the only live one."""
    request = ElectionRequest(topic="t", partition=0, election=Election.UNCLEAN)
    assert broker.run(broker.node.topics.operations.elect(CALLER, [request])) == [None]
    cluster.until(lambda: broker.partition().leader_term is not None)


def test_clean_election_loses_no_record_that_the_uncleanly_elected_leader_has_acknowledged() -> None:
    cluster = BrokerCluster(2, **{"topics.min_insync_replicas": 1})
    cluster.create(replicas=(1, 2))
    one, two = cluster.brokers
    for _ in range(4):
        assert one.publish() is None
    cluster.until(lambda: two.partition().term.high_watermark == one.partition().log.log_end_offset)
    two.kill()
    cluster.until(lambda: cluster.image(broker=one).isr == (1,))
    for _ in range(6):
        assert one.publish() is None
    one.run(one.node.partitions.retention.delete_records(CALLER, "t", 0, -1, 10_000))
    one.run(one.node.stop())
    two.start()
    elect_uncleanly(cluster, two)
    for _ in range(12):
        assert two.publish() is None
    acknowledged, unclean_epoch = two.records(), cluster.image(broker=two).unclean_epoch
    one.start()
    cluster.until(lambda: 1 in cluster.image(broker=two).isr)
    two.run(two.node.stop())
    cluster.until(lambda: one.partition().leader_term is not None)
    assert cluster.image(broker=one).unclean_epoch == unclean_epoch
    assert one.records() == acknowledged
    cluster.loop.end()


def test_clean_election_loses_no_record_after_a_cut_that_has_emptied_the_log() -> None:
    """Broker 2 has led since the logs have parted, and has deleted records up to above that offset."""
    cluster = BrokerCluster(2, **{"topics.min_insync_replicas": 1})
    cluster.create(replicas=(1, 2))
    one, two = cluster.brokers
    for _ in range(5):
        assert one.publish() is None
    cluster.until(lambda: two.partition().log.flushes.flushed_offset == 5)
    cluster.switch.cut(one.node_id, two.node_id)
    for _ in range(3):
        one.task(one.publishing())
    cluster.until(lambda: one.partition().log.flushes.flushed_offset == 8)
    one.kill()
    cluster.switch.heal()
    cluster.until(lambda: cluster.image(broker=two).isr == (2,) and two.partition().leader_term is not None)
    for _ in range(4):
        assert two.publish() is None
    two.run(two.node.partitions.retention.delete_records(CALLER, "t", 0, 7, 10_000))
    two.kill()
    one.start()
    elect_uncleanly(cluster, one)
    for _ in range(2):
        assert one.publish() is None
    acknowledged, unclean_epoch = one.records(), cluster.image(broker=one).unclean_epoch
    two.start()
    cluster.until(lambda: 2 in cluster.image(broker=one).isr)
    one.run(one.node.stop())
    cluster.until(lambda: two.partition().leader_term is not None)
    assert cluster.image(broker=two).unclean_epoch == unclean_epoch
    assert two.records() == acknowledged
    cluster.loop.end()


def test_retry_of_a_batch_that_only_a_deposed_leader_had_is_stored() -> None:
    """Broker 2 has deleted the records that it has in place of the batch. All elections are clean."""
    cluster = BrokerCluster(2, **{"topics.min_insync_replicas": 1})
    cluster.create(replicas=(1, 2))
    one, two = cluster.brokers
    assert one.publish() is None
    cluster.until(lambda: two.partition().term.high_watermark == 1)
    batch = idempotent_batch(0, b"of a producer")
    cluster.switch.cut(one.node_id, two.node_id)
    one.task(publish(one.node, ("t", 0), acks=ACKS_ALL, batch=batch))
    cluster.until(lambda: one.partition().log.flushes.flushed_offset == 2)
    one.kill()
    cluster.switch.heal()
    cluster.until(lambda: cluster.image(broker=two).isr == (2,) and two.partition().leader_term is not None)
    for _ in range(3):
        assert two.publish() is None
    two.run(two.node.partitions.retention.delete_records(CALLER, "t", 0, 2, 10_000))
    one.start()
    cluster.until(lambda: 1 in cluster.image(broker=two).isr)
    two.run(two.node.stop())
    cluster.until(lambda: one.partition().leader_term is not None)
    (published,) = one.run(publish(one.node, ("t", 0), acks=ACKS_ALL, batch=batch))
    assert published.base_offset == 4
    assert one.records() == [(2, b"value"), (3, b"value"), (4, b"of a producer")]
    cluster.loop.end()


def test_epochs_survive_a_kill_before_the_first_flush_of_an_epoch(caplog: pytest.LogCaptureFixture) -> None:
    """With `flush.policy=os` records are committed before the file of the epochs is written."""
    cluster = BrokerCluster(2, **{"topics.min_insync_replicas": 1})
    cluster.create(replicas=(1, 2), config={"flush.policy": "os"})
    one, two = cluster.brokers
    assert one.publish() is None
    one.run(one.node.stop())
    one.start()
    cluster.until(lambda: len(cluster.image(broker=one).isr) == 2)
    two.run(two.node.stop())
    cluster.until(lambda: one.partition().leader_term is not None)
    assert one.publish() is None
    cluster.wait(7)
    one.kill()
    one.start()
    assert not [record for record in caplog.records if "older copy" in record.getMessage()]
    cluster.loop.end()
