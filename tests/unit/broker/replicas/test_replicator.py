"""Brokers that copy partitions from each other: what is stored where, and who is in sync."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any
from uuid import uuid4

import pytest

from conveyor.broker.fetch.list_offsets import has_committed_epoch
from conveyor.broker.metadata.cluster_secret import cluster_secret
from conveyor.broker.metadata.metadata import Decide, Metadata
from conveyor.broker.produce.acknowledgement import ACKS_LEADER
from conveyor.broker.replicas import isr_keeper
from conveyor.broker.replicas.links_from_followers import LinksFromFollowers
from conveyor.cluster.changes import Change
from conveyor.cluster.image import QUEUE_STATE, ClusterImage, companion
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ids import NodeId
from conveyor.kernel.peers import PeerAddress, PeerCredentials, PeerIdentity, PeerService, PeerUnreachable
from conveyor.replication.partition import Partition
from conveyor.replication.streams import leader_end
from conveyor.replication.streams.frames import Follow, FollowRefusal
from conveyor.settings.tree import Settings
from tests.callers import CALLER
from tests.unit.broker.replicas.brokers import BrokerCluster, ClusterBroker, UnavailableStore, keeper_of
from tests.unit.replication.parts import led

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)


class SlowStore:
    """The metadata of a broker whose first proposal comes after another broker's change."""

    def __init__(self, metadata: Metadata, change: Callable[[], Awaitable[object]]) -> None:
        self.isr: tuple[NodeId, ...] = ()
        """Of topic `t`, after the first proposal."""
        self._metadata = metadata
        self._change = change

    def __getattr__(self, name: str) -> object:
        return getattr(self._metadata, name)

    async def propose(self, decide: Decide) -> ClusterImage:
        if self.isr:
            return await self._metadata.propose(decide)
        await self._change()
        image = await self._metadata.propose(decide)
        self.isr = image.topics["t"].partitions[0].isr
        return image


@pytest.fixture
def cluster() -> Iterator[BrokerCluster]:
    made = BrokerCluster()
    yield made
    made.stop()


def create_without_three(cluster: BrokerCluster) -> tuple[ClusterBroker, ClusterBroker]:
    """Create the topic, kill broker 3, and wait until it has left the ISR. Returns the leader and broker 3."""
    cluster.create()
    one, _, three = cluster.brokers
    three.kill()
    cluster.until(lambda: cluster.image().isr == (ONE, TWO))
    return one, three


def test_records_are_stored_by_all_replicas_before_they_are_acknowledged(cluster: BrokerCluster) -> None:
    cluster.create()
    assert cluster.brokers[0].publish() is None
    for broker in cluster.brokers:
        assert broker.records() == cluster.brokers[0].records()
        assert broker.partition().log.flushes.flushed_offset == 1
    cluster.until(lambda: all(broker.partition().term.high_watermark == 1 for broker in cluster.brokers))


def test_partitions_with_one_replica_have_no_observer(cluster: BrokerCluster) -> None:
    cluster.create(replicas=(1,), config={"min.insync.replicas": "1"})
    assert cluster.brokers[0].publish() is None
    assert cluster.brokers[0].partition().observer is None


def test_a_follower_leads_when_the_leader_is_killed_and_the_old_leader_follows(cluster: BrokerCluster) -> None:
    cluster.create()
    one, two, three = cluster.brokers
    assert one.publish() is None
    one.kill()
    cluster.until(lambda: two.partition().leader_term is not None)
    cluster.until(lambda: has_committed_epoch(led(two.partition())))
    assert cluster.image(broker=two).isr == (TWO, THREE)
    assert two.publish() is None
    one.start()
    cluster.until(lambda: cluster.image(broker=two).isr == (ONE, TWO, THREE))
    assert two.publish() is None
    assert [offset for offset, _ in one.records()] == [0, 1, 2]
    assert one.records() == two.records() == three.records()


def test_a_deposed_leader_removes_what_its_successor_lacks(cluster: BrokerCluster) -> None:
    cluster.create()
    one, two, three = cluster.brokers
    assert one.publish() is None
    for follower in (TWO, THREE):
        cluster.switch.cut(ONE, follower)
    assert one.publish(acks=ACKS_LEADER) is None
    assert one.partition().log.log_end_offset == 2
    one.kill()
    cluster.switch.heal()
    cluster.until(lambda: two.partition().leader_term is not None)
    assert two.publish() is None
    one.start()
    cluster.until(lambda: cluster.image(broker=two).isr == (ONE, TWO, THREE))
    assert one.records() == two.records() == three.records()
    assert one.partition().log.leader_epochs.entries == two.partition().log.leader_epochs.entries


def test_a_replica_that_was_refused_and_then_has_to_truncate_is_copied_again(
    cluster: BrokerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create()
    one, two, _ = cluster.brokers
    for follower in (TWO, THREE):
        cluster.switch.cut(ONE, follower)
    assert one.publish(acks=ACKS_LEADER) is None
    one.kill()
    cluster.switch.heal()
    cluster.until(lambda: two.partition().leader_term is not None)
    assert two.publish() is None
    find, refused = LinksFromFollowers._find, set[NodeId]()

    def refuse_once(
        links: LinksFromFollowers, peer: PeerIdentity, node: NodeId, follow: Follow
    ) -> Partition | FollowRefusal:
        if node in refused:
            return find(links, peer, node, follow)
        refused.add(node)
        return FollowRefusal.NOT_LEADER

    monkeypatch.setattr(LinksFromFollowers, "_find", refuse_once)
    one.start()
    cluster.until(lambda: cluster.image(broker=two).isr == (ONE, TWO, THREE))
    assert refused
    assert one.records() == two.records()


def test_another_replica_leads_when_the_log_of_the_leader_fails(cluster: BrokerCluster) -> None:
    cluster.create()
    one, two, three = cluster.brokers
    assert one.publish() is None
    one.disk.faults.fail("append")
    assert one.publish() is not None
    cluster.until(lambda: two.partition().leader_term is not None, seconds=5)
    assert cluster.image(broker=two).isr == (TWO, THREE)
    assert two.publish() is None
    assert two.records() == three.records()


def test_another_replica_leads_when_the_leader_cannot_write_a_companion(cluster: BrokerCluster) -> None:
    cluster.create()
    one, two, three = cluster.brokers
    one.run(one.node.topics.ensure_companion(QUEUE_STATE, "t"))
    name = companion(QUEUE_STATE, "t")
    cluster.until(lambda: all(broker.node.partitions.table.get(name, 0) is not None for broker in cluster.brokers))
    one.partition(name).go_offline(StorageFailure("a bad sector"))
    cluster.until(lambda: two.partition().leader_term is not None, seconds=5)
    cluster.until(lambda: two.publish() is None)
    assert two.records() == three.records()


def test_an_idle_follower_leaves_the_isr_when_its_log_fails(cluster: BrokerCluster) -> None:
    cluster.create()
    one, two, _ = cluster.brokers
    assert one.publish() is None
    cluster.wait(1)
    two.partition().go_offline(StorageFailure("a bad sector"))
    cluster.until(lambda: cluster.image().isr == (ONE, THREE), seconds=20)


def test_a_killed_follower_leaves_the_isr_and_joins_again_when_it_has_caught_up(cluster: BrokerCluster) -> None:
    one, three = create_without_three(cluster)
    for _ in range(20):
        assert one.publish() is None
    three.start()
    cluster.until(lambda: cluster.image().isr == (ONE, TWO, THREE))
    assert three.records() == one.records()
    cluster.brokers[1].kill()
    cluster.until(lambda: cluster.image().isr == (ONE, THREE))
    assert one.publish() is None


def test_a_follower_that_cannot_be_reached_leaves_after_the_lag_time(cluster: BrokerCluster) -> None:
    cluster.create()
    one = cluster.brokers[0]
    cluster.switch.cut(ONE, THREE)
    cluster.switch.cut(THREE, ONE)
    cluster.wait(8)
    assert cluster.image().isr == (ONE, TWO, THREE)
    cluster.until(lambda: cluster.image().isr == (ONE, TWO))
    assert one.publish() is None
    cluster.switch.heal()
    cluster.until(lambda: cluster.image().isr == (ONE, TWO, THREE))


def test_a_waiting_producer_is_answered_when_the_lagging_follower_has_left(cluster: BrokerCluster) -> None:
    cluster.create()
    one = cluster.brokers[0]
    cluster.switch.cut(ONE, THREE)
    assert one.publish() is None
    assert cluster.image().isr == (ONE, TWO)


def test_too_few_in_sync_replicas_accept_nothing_with_acks_all(cluster: BrokerCluster) -> None:
    cluster.create()
    one, two, three = cluster.brokers
    two.kill()
    three.kill()
    cluster.until(lambda: cluster.image().isr == (ONE,))
    error = one.publish()
    assert error is not None
    assert error.kind is ErrorKind.NOT_ENOUGH_REPLICAS
    assert one.publish(acks=ACKS_LEADER) is None
    cluster.wait(1)
    assert one.partition().term.high_watermark == 0
    two.start()
    cluster.until(lambda: one.partition().term.high_watermark == 1)


def test_broken_links_are_opened_again(cluster: BrokerCluster) -> None:
    cluster.create()
    one = cluster.brokers[0]
    for number in range(10):
        cluster.switch.reset(ONE, cluster.brokers[1 + number % 2].node_id)
        assert one.publish() is None
    cluster.until(lambda: all(broker.records() == one.records() for broker in cluster.brokers))
    assert cluster.image().isr == (ONE, TWO, THREE)


def test_all_partitions_of_a_bundle_are_copied(cluster: BrokerCluster) -> None:
    cluster.create()
    one, two, _ = cluster.brokers
    one.run(one.node.topics.create(CALLER, TopicRequest(name="later", config={"delay.target": "t"})))
    assert one.publish("later") is None
    cluster.until(lambda: len(two.records()) == 1)
    for name in ("later", "__delay_state.later"):
        assert two.records(name) == one.records(name)
    one.kill()
    cluster.until(lambda: two.partition("later").leader_term is not None)
    assert two.publish("later") is None
    assert two.publish() is None
    cluster.until(lambda: two.partition().term.high_watermark == 3)


def test_followers_delete_what_their_leader_deletes(cluster: BrokerCluster) -> None:
    cluster.create()
    one = cluster.brokers[0]
    for _ in range(3):
        assert one.publish() is None
    one.run(one.node.partitions.retention.trim(one.partition(), 2))
    cluster.until(lambda: all(broker.partition().log.log_start_offset == 2 for broker in cluster.brokers))


def test_a_producer_is_answered_when_its_records_lose_the_replicas_that_they_need() -> None:
    cluster = BrokerCluster(2)
    cluster.create(replicas=(1, 2))
    one, two = cluster.brokers
    cluster.switch.cut(TWO, ONE)
    error = one.publish()
    assert error is not None
    assert error.kind is ErrorKind.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    refused = one.publish()
    assert refused is not None
    assert refused.kind is ErrorKind.NOT_ENOUGH_REPLICAS
    cluster.switch.heal()
    cluster.until(lambda: one.partition().term.high_watermark == 1)
    assert two.records() == one.records()
    cluster.stop()


def test_a_follower_that_connects_again_learns_the_high_watermark_of_an_idle_leader(cluster: BrokerCluster) -> None:
    cluster.create()
    one, two, three = cluster.brokers
    cluster.switch.cut(THREE, ONE)
    assert one.publish(acks=ACKS_LEADER) is None
    cluster.until(lambda: two.partition().log.log_end_offset == 1)
    cluster.until(lambda: cluster.image().isr == (ONE, TWO))
    cluster.switch.heal()
    cluster.until(lambda: three.partition().term.high_watermark == 1)


def test_a_replica_that_lost_its_disk_is_copied_again(cluster: BrokerCluster) -> None:
    cluster.create()
    one, _, three = cluster.brokers
    for _ in range(3):
        assert one.publish() is None
    one.run(one.node.partitions.retention.trim(one.partition(), 2))
    three.kill()
    three.disk = type(three.disk)()
    three.start()
    cluster.until(lambda: cluster.image().isr == (ONE, TWO, THREE))
    assert three.records() == one.records()
    assert three.partition().log.log_start_offset == 2


def test_many_records_are_copied_to_a_new_replica(cluster: BrokerCluster) -> None:
    one, three = create_without_three(cluster)
    for _ in range(200):
        assert one.publish(acks=ACKS_LEADER) is None
    three.start()
    cluster.until(lambda: cluster.image().isr == (ONE, TWO, THREE))
    assert three.records() == one.records()


def test_a_throttled_replica_catches_up_slowly_and_does_not_delay_in_sync_replicas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leader_end, "PORTION_BYTES", 500)
    settings: dict[str, Any] = {"broker.catch_up_bytes_per_second": 1_000}
    cluster = BrokerCluster(**settings)
    one, three = create_without_three(cluster)
    for _ in range(200):
        assert one.publish(acks=ACKS_LEADER) is None
    missing_bytes = one.partition().log.segments.size_bytes
    cluster.until(lambda: one.partition().term.high_watermark == 200)
    three.start()
    cluster.create("prompt", config={"min.insync.replicas": "3"})
    before = cluster.loop.time()
    assert one.publish("prompt") is None
    assert cluster.loop.time() - before < 1
    cluster.until(lambda: cluster.image().isr == (ONE, TWO, THREE))
    assert cluster.loop.time() - before > missing_bytes / 1_000 - 2
    assert missing_bytes > 5_000
    assert three.records() == one.records()
    cluster.stop()


def test_an_idle_cluster_sends_no_replication_frames(cluster: BrokerCluster) -> None:
    cluster.create()
    assert cluster.brokers[0].publish() is None
    cluster.wait(1)
    frames = []
    for broker in cluster.brokers:
        replicator = broker.node.replicas
        assert replicator is not None
        for link in replicator._links_to_leaders.values():
            link._push = lambda: frames.append("follower")  # type: ignore[method-assign]
        for end in replicator._links_from_followers._links.values():
            end.push_offsets = lambda: frames.append("leader")  # type: ignore[method-assign]
    cluster.wait(30)
    assert not frames


def test_a_start_that_is_not_registered_does_not_end_the_link_of_the_registered_one(cluster: BrokerCluster) -> None:
    """Such as that of a copy of the data directory, which refuses to start only some seconds later."""
    cluster.create()
    one, two, _ = cluster.brokers
    replicator, broker = one.node.replicas, one.node.metadata.image.brokers[ONE]
    assert replicator is not None
    present = replicator._links_from_followers._links[TWO].link
    secret = two.run(cluster_secret(two.store, uuid4))
    network = cluster.switch.join(TWO, "copy.example")
    network.open(PeerCredentials(one.node.metadata.image.cluster_id, secret, lambda: PeerIdentity(TWO, "copy")))
    address = PeerAddress(PeerIdentity(ONE, broker.incarnation), broker.peer_host, broker.peer_port)
    with pytest.raises(PeerUnreachable):
        two.run(network.dial(address, PeerService.REPLICATION, lambda link: pytest.fail(f"{link} is accepted")))
    assert replicator._links_from_followers._links[TWO].link is present


def test_a_replica_does_not_join_a_companion_that_it_has_not_copied(
    cluster: BrokerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader asks before the companion exists, so it has neither checked it nor waited for the replica there."""
    one, three = create_without_three(cluster)
    slow = SlowStore(one.node.metadata, lambda: one.node.topics.ensure_companion(QUEUE_STATE, "t"))
    monkeypatch.setattr(keeper_of(one), "_metadata", slow)
    three.start()
    cluster.until(lambda: bool(slow.isr))
    assert slow.isr == (ONE, TWO)
    cluster.until(lambda: cluster.image(companion(QUEUE_STATE, "t")).isr == (ONE, TWO, THREE))


def test_a_join_that_was_refused_is_asked_for_again(cluster: BrokerCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The replica has nothing new to report."""
    _, three = create_without_three(cluster)
    altered, refused = isr_keeper._altered, list[Any]()

    def refuse_first(image: ClusterImage, request: Any, settings: Settings) -> Sequence[Change]:
        if request.joining and len(refused) < 3:
            refused.append(request)
            raise RequestError(ErrorKind.INVALID_UPDATE_VERSION, "it has another companion now")
        return altered(image, request=request, settings=settings)

    monkeypatch.setattr(isr_keeper, "_altered", refuse_first)
    three.start()
    cluster.until(lambda: cluster.image().isr == (ONE, TWO, THREE), seconds=60)
    assert len(refused) == 3


def test_a_join_counts_while_the_store_does_not_answer(cluster: BrokerCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    one, three = create_without_three(cluster)

    with monkeypatch.context() as unavailable:
        unavailable.setattr(keeper_of(one), "_metadata", UnavailableStore(one.node.metadata))
        three.start()
        cluster.until(lambda: THREE in led(one.partition()).replicas.joining)
        cluster.wait(3)
        cluster.switch.cut(ONE, THREE)
        assert one.publish(acks=ACKS_LEADER) is None
        cluster.wait(1)
        assert (one.partition().term.high_watermark, cluster.image().isr) == (0, (ONE, TWO))
    cluster.switch.heal()
    cluster.until(lambda: cluster.image().isr == (ONE, TWO, THREE))
    cluster.until(lambda: one.partition().term.high_watermark == 1)
    assert led(one.partition()).replicas.joining == {}


def test_a_join_is_withdrawn_when_the_replica_has_gone_before_the_store_answers(
    cluster: BrokerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, three = create_without_three(cluster)
    with monkeypatch.context() as unavailable:
        unavailable.setattr(keeper_of(one), "_metadata", UnavailableStore(one.node.metadata))
        three.start()
        cluster.until(lambda: THREE in led(one.partition()).replicas.joining)
        three.kill()
    assert one.publish(acks=ACKS_LEADER) is None
    cluster.until(lambda: one.partition().term.high_watermark == 1, seconds=10)
    assert led(one.partition()).replicas.joining == {}
    three.start()
    cluster.until(lambda: cluster.image().isr == (ONE, TWO, THREE))
