"""Brokers whose disks fail or do not answer: others lead, and the broker follows again when its disk does."""

from collections.abc import Callable, Iterator
from uuid import UUID

import pytest

from conveyor.broker.produce.acknowledgement import ACKS_LEADER
from conveyor.broker.replicas import replica_repair
from conveyor.cluster.changes import Change
from conveyor.cluster.controller.alter_partition import IsrMember
from conveyor.cluster.controller.failed_leaders import FailedLeader
from conveyor.cluster.image import ClusterImage
from conveyor.kernel.errors import ErrorKind
from conveyor.kernel.ids import NodeId, TopicId
from conveyor.replication.reads import read_available
from conveyor.settings.tree import Settings, from_sources
from tests.unit.broker.parts import Storage, running_parts
from tests.unit.broker.replicas.brokers import BrokerCluster, ClusterBroker

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)


class NoChange:
    """A task that changes nothing, but waits for the disk."""

    def begin(self, now_ms: int) -> bool:
        return True

    def run(self) -> None:
        """There is nothing to change."""

    def complete(self) -> None:
        """Nothing has changed."""


@pytest.fixture
def cluster() -> Iterator[BrokerCluster]:
    made = BrokerCluster()
    yield made
    made.stop()


def test_another_replica_leads_when_the_disk_of_the_leader_hangs(cluster: BrokerCluster) -> None:
    cluster.create()
    one, two, three = cluster.brokers
    assert one.publish() is None
    one.threads.hang()
    assert one.publish(acks=ACKS_LEADER) is None
    cluster.wait(8)
    assert cluster.image().leader == ONE
    cluster.until(lambda: two.partition().leader_term is not None, seconds=6)
    assert cluster.image(broker=two).isr == (TWO, THREE)
    cluster.until(lambda: one.partition().leader_term is None, seconds=1)
    assert two.publish() is None
    cluster.wait(30)
    assert cluster.image(broker=two).isr == (TWO, THREE)
    one.threads.go_on()
    cluster.until(lambda: set(cluster.image(broker=two).isr) == {ONE, TWO, THREE}, seconds=5)
    assert one.records() == two.records() == three.records()


def test_a_follower_whose_disk_hangs_leaves_the_isr_and_joins_again(cluster: BrokerCluster) -> None:
    cluster.create()
    one, two, three = cluster.brokers
    three.threads.hang()
    assert one.publish() is None
    assert cluster.image().isr == (ONE, TWO)
    assert one.publish() is None
    three.threads.go_on()
    cluster.until(lambda: cluster.image().isr == (ONE, TWO, THREE), seconds=20)
    assert three.records() == two.records() == one.records()


def test_an_idle_follower_whose_disk_hangs_does_not_join_the_isr(cluster: BrokerCluster) -> None:
    """All records of the second topic are on its disk, and it could not store the next one."""
    cluster.create("idle")
    cluster.create("busy")
    one, _, three = cluster.brokers
    three.threads.hang()
    assert one.publish("busy") is None
    cluster.until(lambda: cluster.image("idle").isr == (ONE, TWO), seconds=40)
    cluster.wait(30)
    assert cluster.image("idle").isr == (ONE, TWO)
    three.threads.go_on()
    cluster.until(lambda: cluster.image("idle").isr == (ONE, TWO, THREE), seconds=20)


def test_the_last_in_sync_replica_leads_although_its_disk_hangs(cluster: BrokerCluster) -> None:
    cluster.create(replicas=(1, 2))
    one, two, _ = cluster.brokers
    two.kill()
    cluster.until(lambda: cluster.image().isr == (ONE,))
    one.threads.hang()
    assert one.publish(acks=ACKS_LEADER) is None
    cluster.wait(30)
    assert cluster.image().leader == ONE
    assert one.partition().leader_term is not None
    one.threads.go_on()
    two.start()
    cluster.until(lambda: cluster.image().isr == (ONE, TWO), seconds=20)


def test_a_paused_process_gives_up_nothing(cluster: BrokerCluster) -> None:
    """Its monotonic clock went on, but its disk had no time to answer."""
    cluster.create()
    one = cluster.brokers[0]
    one.threads.hang()
    assert one.publish(acks=ACKS_LEADER) is None
    cluster.wait(2)
    one.process.pause()
    cluster.wait(20)
    one.process.resume()
    one.threads.go_on()
    cluster.wait(5)
    assert cluster.image().leader == ONE


def test_a_change_of_files_that_hangs_delays_no_other_role(cluster: BrokerCluster) -> None:
    """Broker 2 is to lead two partitions; it is still removing records of one of them."""
    cluster.create("t", replicas=(1, 2, 3))
    cluster.create("u", replicas=(1, 2, 3))
    one, two, _ = cluster.brokers
    assert one.publish("t") is None
    two.threads.hang()

    two.run(_called(lambda: two.node.partitions.log_tasks.start(two.partition("t"), NoChange())))
    one.kill()
    cluster.until(lambda: two.partition("u").leader_term is not None, seconds=5)
    assert two.partition("t").leader_term is None
    two.threads.go_on()
    cluster.until(lambda: two.partition("t").leader_term is not None, seconds=5)
    assert two.publish("t") is None


async def _called(work: Callable[[], None]) -> None:
    work()


def test_a_follower_with_a_full_disk_leaves_the_isr_until_it_has_room(cluster: BrokerCluster) -> None:
    cluster.create()
    one, two, three = cluster.brokers
    assert one.publish() is None
    three.disk.faults.free_bytes = 0
    assert one.publish() is None
    cluster.until(lambda: cluster.image().isr == (ONE, TWO), seconds=40)
    for _ in range(5):
        assert one.publish() is None
        cluster.wait(10)
    assert cluster.image().isr == (ONE, TWO)
    three.disk.faults.free_bytes = None
    cluster.until(lambda: cluster.image().isr == (ONE, TWO, THREE), seconds=40)
    assert three.records() == two.records() == one.records()


def test_a_leader_with_a_full_disk_refuses_only_producers_until_it_has_room(cluster: BrokerCluster) -> None:
    cluster.create()
    one, two, three = cluster.brokers
    assert one.publish() is None
    one.disk.faults.free_bytes = 0
    assert one.publish() is not None
    cluster.until(lambda: is_refused_for_want_of_room(one), seconds=5)
    cluster.wait(40)
    assert is_refused_for_want_of_room(one)
    assert read_available(one.partition(), 0, 1 << 20, at_least_one=True) is not None
    one.disk.faults.free_bytes = None
    cluster.until(lambda: one.publish() is None, seconds=40)
    cluster.until(lambda: cluster.image().isr == (ONE, TWO, THREE), seconds=40)
    assert one.records() == two.records() == three.records()
    assert not one.disk.exists("logs/t-0.damaged")


def is_refused_for_want_of_room(broker: ClusterBroker) -> bool:
    error = broker.publish()
    return error is not None and error.kind is ErrorKind.DISK_FULL


async def test_leadership_is_given_up_by_the_settings_of_the_image_that_decides(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another broker may change the minimum while the proposal waits. By the old one, a replica that leaves the ISR
    would stay eligible, although the next leader commits without it.
    """
    async with running_parts(storage=storage) as broker:
        decided_by: list[Settings] = []
        lowered = from_sources({"topics.min_insync_replicas": 1})

        async def propose(decide: Callable[[ClusterImage], object]) -> ClusterImage:
            broker._services.settings = lowered
            decide(broker.metadata.image)
            return broker.metadata.image

        def decide_later(image: ClusterImage, request: FailedLeader, settings: Settings) -> list[Change]:
            decided_by.append(settings)
            return []

        monkeypatch.setattr(replica_repair, "replaced_leader", decide_later)
        monkeypatch.setattr(broker.metadata, "propose", propose)
        request = FailedLeader(leader=IsrMember(ONE, 1), topic_id=TopicId(UUID(int=1)), partition=0)
        await broker.replicas._repair._give_up([request])
        assert decided_by == [lowered]
