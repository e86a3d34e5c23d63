"""A sync that has failed stays failed: the next process can still read the records, and must not believe them."""

from dataclasses import replace

import pytest

from conveyor.cluster.changes import topic_put
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind
from tests.callers import CALLER
from tests.unit.broker.parts import LosesNothing, Storage, publish, running_parts
from tests.unit.broker.replicas.brokers import BrokerCluster
from tests.unit.log.logs import contents, idempotent_batch


async def test_lone_replica_keeps_what_it_acknowledges_after_a_failed_sync_and_a_restart() -> None:
    storage = Storage()
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t"))
        assert (await publish(broker, ("t", 0), batch=idempotent_batch(0, b"0")))[0].error is None
        storage.disk.faults.fail("sync")
        failed = (await publish(broker, ("t", 0), batch=idempotent_batch(1, b"1")))[0].error
        assert failed is not None
        assert failed.kind is ErrorKind.PARTITION_OFFLINE
        storage.disk.faults.heal()
        killed = storage.disk.process_crash()
    storage.disk = killed
    async with running_parts(storage=storage) as broker:
        for number in range(1, 5):
            sent = (await publish(broker, ("t", 0), batch=idempotent_batch(number, b"%d" % number)))[0]
            assert sent.error is None
        cut = storage.disk.power_cut(LosesNothing())
    storage.disk = cut
    async with running_parts(storage=storage) as broker:
        partition = broker.partitions.table.find("t", 0)
        assert [value for _, value in contents(partition.log)] == [b"0", b"1", b"2", b"3", b"4"]


def test_follower_does_not_report_what_its_disk_has_refused_before_a_restart() -> None:
    cluster = BrokerCluster()
    one, two, three = cluster.brokers
    cluster.create(replicas=(1, 2), config={"min.insync.replicas": "1"})
    for _ in range(3):
        assert one.publish() is None
    cluster.wait(6)
    two.disk.faults.fail("sync")
    pending = one.task(one.publishing())
    cluster.until(lambda: two.partition().offline.reason is not None)
    two.disk.faults.heal()
    two.die()
    two.start()
    cluster.until(pending.done)
    assert pending.result() is None
    cluster.until(lambda: set(cluster.image().isr) == {1, 2})
    cluster.kill_all(*cluster.brokers)
    three.start()
    two.start()
    cluster.wait(5)
    one.start()
    cluster.until(lambda: len(two.records()) == len(one.records()) == 4)
    cluster.stop()


@pytest.mark.parametrize("policy", ["os", "ack"])
def test_replica_that_has_lost_what_it_reported_is_not_elected_whatever_the_policy_is_now(policy: str) -> None:
    cluster = BrokerCluster()
    one, two, three = cluster.brokers
    cluster.create(replicas=(1, 2), config={"min.insync.replicas": "1", "flush.policy": "os"})
    for _ in range(3):
        assert one.publish() is None
    cluster.wait(6)  # Until the checkpoint has the high watermark.
    lost_from = two.partition().log.segments.active.size
    for _ in range(2):
        assert one.publish() is None
    cluster.until(lambda: len(two.records()) == 5)
    two.disk.open(f"logs/t-0/{0:020}.log").lose(lost_from)  # The system has failed to write them by itself.
    cluster.kill_all()
    three.start()
    topic = three.node.metadata.image.topics["t"]
    changed = replace(topic, config={**topic.config, "flush.policy": policy})
    three.run(three.node.metadata.propose(lambda _: [topic_put(changed)]))
    two.start()
    cluster.wait(5)
    one.start()
    cluster.until(lambda: len(two.records()) == len(one.records()) == 5)
    cluster.stop()
