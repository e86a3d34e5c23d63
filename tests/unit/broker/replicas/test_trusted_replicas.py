"""A replica counts by what its data directory can prove: what is missing there is missing in no election."""

from collections.abc import Iterator

import pytest

from conveyor.broker.partitions.replica_checkpoint import INTERVAL_MS
from conveyor.broker.topics.cluster_operations import Outcomes
from conveyor.cluster.controller.elections import ElectionRequest
from conveyor.cluster.controller.partition_transition import Election
from conveyor.cluster.controller.reassignments import Reassignment
from conveyor.cluster.topic_change import ConfigChange, Operation
from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ids import NodeId
from conveyor.log.checked_file import read_checked, write_checked
from conveyor.records.batch import iterate_batches
from conveyor.replication.replica_facts import NAME, DirectoryFacts, decode_facts, encode_facts
from tests.callers import CALLER
from tests.unit.broker.parts import publish as send
from tests.unit.broker.publishing import message, put
from tests.unit.broker.replicas.brokers import BrokerCluster, ClusterBroker

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
SEGMENT = f"logs/t-0/{0:020}.log"
ASIDE = "logs/t-0.damaged"


@pytest.fixture
def cluster() -> Iterator[BrokerCluster]:
    made = BrokerCluster()
    yield made
    made.stop()


def filled(cluster: BrokerCluster, replicas: tuple[int, ...] = (1, 2, 3), **config: str) -> list[ClusterBroker]:
    """Create the topic with records that all replicas have, and whose commit all directories know of."""
    cluster.create(replicas=replicas, config={name.replace("_", "."): value for name, value in config.items()})
    publish(cluster, 3)
    return cluster.brokers


def publish(cluster: BrokerCluster, count: int) -> None:
    leader = cluster.brokers[cluster.image().leader - 1]
    end = leader.partition().log.log_end_offset + count
    assert [leader.publish() for _ in range(count)] == [None] * count
    holders = [broker for broker in cluster.brokers if broker.node_id in cluster.image().isr]
    cluster.until(lambda: all(broker.partition().term.high_watermark == end for broker in holders))
    cluster.wait(INTERVAL_MS / 1000 + 0.5)


def facts(broker: ClusterBroker) -> DirectoryFacts:
    found = decode_facts(read_checked(broker.disk, NAME))
    assert found is not None
    return found


def has_all_in_sync(cluster: BrokerCluster) -> bool:
    return set(cluster.image().isr) == set(cluster.image().replicas)


def start_brokers(cluster: BrokerCluster) -> None:
    for broker in cluster.brokers:
        broker.start()


def remove_segments(broker: ClusterBroker) -> None:
    broker.disk.remove(SEGMENT)
    broker.disk.remove("logs/t-0/leader-epoch-checkpoint")


def cut_log(broker: ClusterBroker) -> None:
    file = broker.disk.open(SEGMENT)
    file.truncate(file.size // 3)


@pytest.mark.parametrize(
    "lose",
    [
        lambda broker: broker.disk.remove_tree("logs/t-0"),
        lambda broker: broker.disk.remove_tree("logs"),
        remove_segments,
        cut_log,
        lambda broker: broker.disk.open(SEGMENT).truncate(0),
    ],
    ids=["directory", "all directories", "segment", "end", "content"],
)
def test_what_is_missing_at_a_start_is_copied_from_the_others(cluster: BrokerCluster, lose: object) -> None:
    """All brokers have died. The first one to return would be elected, and the others would cut what they have."""
    assert callable(lose)
    one, two, three = filled(cluster)
    expected = one.records()
    cluster.kill_all()
    lose(one)
    one.start()
    cluster.wait(5)
    assert (cluster.image().leader, ONE in cluster.image().isr) == (-1, False)
    two.start()
    three.start()
    cluster.until(lambda: has_all_in_sync(cluster), seconds=60)
    assert one.records() == two.records() == three.records() == expected


def test_segment_that_is_lost_before_another_file_knows_its_records_is_missed(cluster: BrokerCluster) -> None:
    cluster.create(config={"flush.policy": "os"})
    cluster.wait(INTERVAL_MS / 1000 + 0.5)
    leader = cluster.brokers[cluster.image().leader - 1]
    assert leader.publish() is None
    cluster.until(lambda: all(broker.partition().log.log_end_offset == 1 for broker in cluster.brokers))
    one, two, three = cluster.brokers
    expected = one.records()
    cluster.kill_all()
    one.disk.remove(SEGMENT)
    one.start()
    one.kill()  # No start may make the segment before the broker has left the ISR.
    one.start()
    cluster.wait(5)
    assert (cluster.image().leader, ONE in cluster.image().isr) == (-1, False)
    two.start()
    three.start()
    cluster.until(lambda: has_all_in_sync(cluster), seconds=60)
    assert one.records() == two.records() == three.records() == expected


def test_power_failure_just_after_the_creation_leaves_a_leader(cluster: BrokerCluster) -> None:
    """It takes the names of the first segments, which no flush has made durable."""
    cluster.create()
    cluster.kill_all(*cluster.brokers)
    start_brokers(cluster)
    cluster.until(lambda: has_all_in_sync(cluster), seconds=60)


def test_deletion_survives_the_loss_of_the_file_of_the_log_start(cluster: BrokerCluster) -> None:
    one, two, three = filled(cluster)
    leader = cluster.brokers[cluster.image().leader - 1]
    assert leader.node is not None
    assert leader.run(leader.node.partitions.retention.delete_records(CALLER, "t", 0, 2, 10_000)) == 2
    cluster.wait(INTERVAL_MS / 1000 + 0.5)
    cluster.kill_all()
    one.disk.remove("logs/t-0/log-start-offset")
    one.start()
    cluster.wait(5)
    assert one.partition().log.start.flushed_offset == 2
    two.start()
    three.start()
    cluster.until(lambda: has_all_in_sync(cluster), seconds=60)
    assert [len(broker.records()) for broker in cluster.brokers] == [1, 1, 1]


def test_leader_that_returns_at_once_without_its_directory_does_not_lead(cluster: BrokerCluster) -> None:
    one, two, three = filled(cluster)
    expected = one.records()
    one.die()
    one.disk.remove_tree("logs/t-0")
    one.start()
    cluster.until(lambda: has_all_in_sync(cluster), seconds=60)
    assert cluster.image().leader != ONE
    assert one.records() == two.records() == three.records() == expected


def test_eligible_replica_that_returns_without_its_directory_is_not_elected(cluster: BrokerCluster) -> None:
    one, two, three = filled(cluster)
    expected = one.records()
    two.kill()
    three.kill()
    cluster.until(lambda: (cluster.image().isr, cluster.image().elr) == ((ONE,), (THREE,)))
    one.kill()
    three.disk.remove_tree("logs/t-0")
    two.start()
    three.start()
    cluster.wait(5)
    assert (cluster.image(broker=three).leader, cluster.image(broker=three).elr) == (-1, ())
    one.start()
    cluster.until(lambda: has_all_in_sync(cluster), seconds=60)
    assert one.records() == two.records() == three.records() == expected


def test_directory_that_disappears_before_it_was_ever_used_is_made_again(cluster: BrokerCluster) -> None:
    """As when the broker dies between the creation of a topic and that of its directory: the file does not list it."""
    one, _, _ = filled(cluster)
    one.die()
    listed = facts(one)
    write_checked(one.disk, NAME, encode_facts(without_replicas(listed)))
    one.disk.remove_tree("logs/t-0")
    one.start()
    cluster.until(lambda: has_all_in_sync(cluster), seconds=60)
    assert one.node.partitions.table.offline() == {}


def without_replicas(listed: DirectoryFacts) -> DirectoryFacts:
    return DirectoryFacts(incarnations=listed.incarnations, cache_id=listed.cache_id)


@pytest.mark.parametrize("damage", ["flip", "remove"])
def test_directory_that_has_lost_its_checkpoint_is_not_trusted(cluster: BrokerCluster, damage: str) -> None:
    one, two, three = filled(cluster)
    expected = one.records()
    cluster.kill_all()
    if damage == "flip":
        one.disk.open(NAME).written[30] ^= 1
    else:
        one.disk.remove(NAME)
    one.start()
    cluster.wait(5)
    assert ONE not in cluster.image().isr
    two.start()
    three.start()
    cluster.until(lambda: has_all_in_sync(cluster), seconds=60)
    assert one.records() == expected
    assert not one.disk.exists(ASIDE)


def test_older_copy_of_a_directory_is_not_trusted(cluster: BrokerCluster) -> None:
    one, two, three = filled(cluster)
    one.kill()
    copy = one.disk.process_crash()
    one.start()
    cluster.until(lambda: has_all_in_sync(cluster), seconds=60)
    publish(cluster, 3)
    expected = two.records()
    cluster.kill_all()
    one.disk = copy
    one.start()
    cluster.wait(5)
    assert ONE not in cluster.image().isr
    two.start()
    three.start()
    cluster.until(lambda: has_all_in_sync(cluster), seconds=60)
    assert one.records() == two.records() == three.records() == expected


def set_policy(cluster: BrokerCluster, policy: str, by: ClusterBroker) -> None:
    set_config(by, "flush.policy", policy)


def set_config(broker: ClusterBroker, name: str, value: str) -> None:
    change = ConfigChange(name=name, operation=Operation.SET, value=value)
    broker.run(broker.node.topics.change_config(CALLER, "t", [change]))


def test_unflushed_records_that_a_power_cut_has_removed_are_missed_under_a_stricter_policy() -> None:
    """The policy changes while both replicas are down: what was lost before is judged by what held then."""
    cluster = BrokerCluster()
    one, two, three = filled(cluster, (1, 2), flush_policy="os", min_insync_replicas="1")
    expected = two.records()
    one.die(has_power=False)
    two.die()
    cluster.wait(2)
    one.store.expire()
    two.store.expire()
    set_policy(cluster, "ack", by=three)
    one.start()
    cluster.wait(5)
    assert cluster.image().isr == (TWO,)
    two.start()
    cluster.until(lambda: has_all_in_sync(cluster), seconds=60)
    assert one.records() == two.records() == expected
    cluster.stop()


@pytest.mark.parametrize("has_power", [True, False])
def test_replica_is_trusted_after_a_power_cut_once_all_up_to_the_stricter_policy_is_flushed(has_power: bool) -> None:
    cluster = BrokerCluster()
    one, two, three = filled(cluster, (1, 2), flush_policy="os", min_insync_replicas="1")
    assert [replica.is_unflushed for replica in facts(one).replicas] == [True]
    set_policy(cluster, "ack", by=three)
    cluster.until(lambda: not facts(one).replicas[0].is_unflushed)
    expected = one.records()
    one.die(has_power=has_power)
    two.die()
    cluster.wait(2)
    one.store.expire()
    two.store.expire()
    one.start()
    cluster.until(lambda: one.partition().leader_term is not None)
    assert one.records() == expected
    cluster.stop()


def test_softer_policy_waits_until_the_directory_says_so(cluster: BrokerCluster) -> None:
    one, two, three = filled(cluster)
    two.disk.faults.fail("write_atomic")
    set_policy(cluster, "os", by=one)
    cluster.until(lambda: facts(one).replicas[0].is_unflushed and facts(three).replicas[0].is_unflushed)
    cluster.wait(10)
    assert two.partition().log.topic.flush_policy == "ack"
    assert one.partition().log.topic.flush_policy == "os"
    two.disk.faults.heal()
    cluster.until(lambda: two.partition().log.topic.flush_policy == "os", seconds=20)
    assert facts(two).replicas[0].is_unflushed


def test_leader_with_a_softer_policy_does_not_count_what_a_follower_may_lose_unknowingly(
    cluster: BrokerCluster,
) -> None:
    one, two, three = filled(cluster)
    for follower in (two, three):
        follower.disk.faults.fail("write_atomic")
    set_policy(cluster, "os", by=one)
    cluster.until(lambda: one.partition().log.topic.flush_policy == "os")
    for follower in (two, three):
        follower.threads.hang()
    before = one.partition().term.high_watermark
    publishing = one.task(send(one.node, ("t", 0)))
    cluster.wait(2)
    assert two.partition().log.written_offset > before
    assert one.partition().term.high_watermark == before
    for follower in (two, three):
        follower.threads.go_on()
    cluster.until(publishing.done)


def test_end_of_a_log_with_gaps_that_was_not_flushed_is_missed() -> None:
    """Broker 3 has copied a compacted log. It would lead without records that all three have acknowledged."""
    cluster = BrokerCluster(**{"topics.min_insync_replicas": 1})
    config = {"flush_policy": "os", "cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0"}
    one, two, three = filled(cluster, (1, 2), **config, segment_bytes="1024")
    for number in range(30):
        one.run(put(one.node, message(b"value", key=b"%d" % (number % 2))))
    one.run(one.node.partitions.compaction.run_once())
    set_config(one, "segment.bytes", str(1 << 30))
    request = Reassignment(topic="t", partition=0, target=(ONE, TWO, THREE))
    assert one.run(one.node.topics.operations.reassign(CALLER, [request])) == [None]
    cluster.until(lambda: THREE in cluster.image().isr)
    publish(cluster, 3)
    expected, log = three.records(), three.partition().log
    assert log.flushes.flushed_offset < log.copying.gap_offset
    cluster.kill_all()
    file = three.disk.open(SEGMENT)
    *_, (last_batch, _) = iterate_batches(file.read(0, file.size))
    file.truncate(last_batch)
    three.start()
    cluster.wait(5)
    assert (cluster.image(broker=three).leader, THREE in cluster.image(broker=three).isr) == (-1, False)
    one.start()
    two.start()
    cluster.until(lambda: has_all_in_sync(cluster), seconds=60)
    assert three.records() == expected
    cluster.stop()


def test_replica_that_is_in_sync_again_after_a_power_cut_stays_so_through_a_crash() -> None:
    cluster = BrokerCluster()
    one, two, _ = filled(cluster, (1, 2), flush_policy="os", min_insync_replicas="1")
    two.die(has_power=False)
    two.store.expire()
    cluster.until(lambda: cluster.image().isr == (ONE,))
    two.start()
    cluster.until(lambda: has_all_in_sync(cluster))
    cluster.wait(0.1)
    one.die()
    two.die()
    one.store.expire()
    two.store.expire()
    cluster.wait(2)
    two.start()
    cluster.until(lambda: two.partition().leader_term is not None)
    cluster.stop()


def test_power_cut_that_removes_unflushed_records_leaves_no_leader_even_of_the_last_member() -> None:
    """`flush.policy=os` on all machines that lose their power is too much: an operator decides."""
    cluster = BrokerCluster(2)
    one, two = filled(cluster, (1, 2), flush_policy="os", min_insync_replicas="1")
    cluster.kill_all(one, two)
    one.start()
    two.start()
    cluster.wait(5)
    assert (cluster.image().leader, cluster.image().isr) == (-1, ())
    assert elect_uncleanly(one) == [None]
    cluster.until(lambda: has_all_in_sync(cluster), seconds=60)
    cluster.stop()


def test_only_replica_leads_after_a_power_cut_with_what_is_left() -> None:
    cluster = BrokerCluster(2)
    one, _ = filled(cluster, (1,), flush_policy="os", min_insync_replicas="1")
    cluster.kill_all(one)
    start_brokers(cluster)
    cluster.until(lambda: one.partition().leader_term is not None)
    cluster.stop()


def elect_uncleanly(broker: ClusterBroker, topic: str = "t") -> Outcomes:
    request = ElectionRequest(topic=topic, partition=0, election=Election.UNCLEAN)
    return broker.run(broker.node.topics.operations.elect(CALLER, [request]))


def test_lost_log_of_the_last_member_begins_again_only_after_an_unclean_election() -> None:
    """Another replica is preferred, if one is live."""
    cluster = BrokerCluster(2)
    one, two = filled(cluster, (1, 2), min_insync_replicas="1")
    two.kill()
    publish(cluster, 2)
    assert cluster.image().isr == (ONE,)
    one.kill()
    one.disk.remove_tree("logs/t-0")
    one.start()
    cluster.wait(5)
    assert (cluster.image().leader, cluster.image().isr) == (-1, ())
    assert "logs/t-0 is missing, and was used before" in str(one.node.partitions.table.offline_reason("t", 0))
    assert not one.disk.exists("logs/t-0")
    assert elect_uncleanly(one) == [None]
    cluster.until(lambda: one.node.partitions.table.get("t", 0) is not None)
    assert one.partition().log.log_end_offset == 0
    assert one.publish() is None
    two.start()
    cluster.until(lambda: has_all_in_sync(cluster), seconds=60)
    assert two.records() == one.records()
    cluster.stop()


def test_damaged_log_begins_again_after_an_unclean_election_of_its_broker() -> None:
    """It was elected because no other replica was live."""
    cluster = BrokerCluster(2)
    one, two = filled(cluster, (1, 2), min_insync_replicas="1", segment_bytes="1024")
    publish(cluster, 40)
    two.kill()
    first = next(name for name in two.disk.list("logs/t-0") if name.endswith(".seal"))
    two.disk.remove(f"logs/t-0/{first.replace('.seal', '.log')}")
    publish(cluster, 1)
    one.kill()
    two.start()
    cluster.wait(5)
    assert "the log has a hole" in str(two.node.partitions.table.offline_reason("t", 0))
    assert not two.disk.exists(ASIDE)
    assert elect_uncleanly(two) == [None]
    cluster.until(lambda: two.node.partitions.table.get("t", 0) is not None)
    assert (two.partition().log.log_end_offset, two.disk.exists(ASIDE)) == (0, True)
    assert two.publish() is None
    one.start()
    cluster.until(lambda: has_all_in_sync(cluster), seconds=60)
    assert one.records() == two.records()
    cluster.stop()


def test_unclean_election_prefers_a_replica_that_has_not_lost_its_log(cluster: BrokerCluster) -> None:
    one, two, three = filled(cluster, min_insync_replicas="1")
    expected = two.records()
    two.kill()
    three.kill()
    publish(cluster, 1)
    one.kill()
    one.disk.remove_tree("logs/t-0")
    start_brokers(cluster)
    cluster.wait(5)
    assert (cluster.image().leader, cluster.image().isr) == (-1, ())
    assert elect_uncleanly(one) == [None]
    cluster.until(lambda: has_all_in_sync(cluster), seconds=60)
    assert one.records() == two.records() == three.records() == expected


@pytest.mark.parametrize("dies", [False, True])
def test_log_begins_again_only_when_the_directory_has_forgotten_it(cluster: BrokerCluster, dies: bool) -> None:
    """Otherwise a crash would make the new log look incomplete. The old one is set aside before: a crash in between
    leaves no damaged log under the name of the new one.
    """
    one, _, three = filled(cluster)
    three.disk.faults.fail("write_atomic")
    three.partition().go_offline(StorageFailure("a bad sector"))
    cluster.wait(10)
    assert (three.disk.exists(ASIDE), three.disk.exists("logs/t-0")) == (True, False)
    three.disk.faults.heal()
    if dies:
        three.kill()
        three.start()
    cluster.until(lambda: has_all_in_sync(cluster), seconds=100)
    assert three.disk.exists(ASIDE)
    assert three.records() == one.records()
