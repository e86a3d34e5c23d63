"""Consumers that name their rack: which replica they read from, and what a follower serves (KIP-392)."""

from collections.abc import Iterator
from typing import Any

import pytest

from conveyor.broker.fetch.fetcher import Fetched, FetchPosition, FetchWait
from conveyor.broker.fetch.replica_reads import NO_REPLICA
from conveyor.broker.produce.acknowledgement import ACKS_LEADER
from conveyor.kernel.errors import ErrorKind
from conveyor.kernel.ids import NodeId, Offset
from conveyor.records.batch import TRANSACTIONAL
from conveyor.records.checked_batch import own_batch
from conveyor.records.record import encode_batch
from conveyor.records.transaction_marker import TransactionMarker
from conveyor.replication.transactions import append_marker
from tests.callers import CALLER
from tests.unit.broker.replicas.brokers import BrokerCluster, ClusterBroker

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)


@pytest.fixture
def cluster() -> Iterator[BrokerCluster]:
    settings: dict[str, Any] = {"broker.replica_selector": "rack"}
    made = BrokerCluster(**settings)
    made.create()
    yield made
    made.stop()


def fetch(
    broker: ClusterBroker, offset: int, rack: str = "rack 3", epoch: int = -1, *, reads_committed: bool = False
) -> Fetched:
    """Fetch at once."""

    async def fetched() -> Fetched:
        wait = FetchWait(0, 1, 1 << 20, broker.node.fetch.replica_reads.from_rack(rack), reads_committed)
        answers: list[Fetched] = []
        broker.node.fetch.fetcher.fetch(CALLER, [FetchPosition("t", 0, offset, 1 << 20, epoch)], wait, answers.extend)
        return answers[0]

    return broker.run(fetched())


def kind(fetched: Fetched) -> ErrorKind | None:
    return None if fetched.error is None else fetched.error.kind


def publish_everywhere(cluster: BrokerCluster) -> None:
    one = cluster.brokers[0]
    assert one.publish() is None
    cluster.until(lambda: all(broker.partition().term.high_watermark == 1 for broker in cluster.brokers))


def test_a_leader_proposes_the_replica_in_the_rack_of_the_consumer(cluster: BrokerCluster) -> None:
    publish_everywhere(cluster)
    proposed = fetch(cluster.brokers[0], 0)
    assert (proposed.preferred_replica, proposed.records, proposed.high_watermark) == (THREE, None, 1)
    assert fetch(cluster.brokers[0], 0, "rack 2").preferred_replica == TWO


@pytest.mark.parametrize("rack", ["rack 1", "nowhere"])
def test_a_leader_serves_consumers_in_its_rack_and_in_racks_without_a_replica(
    cluster: BrokerCluster, rack: str
) -> None:
    publish_everywhere(cluster)
    served = fetch(cluster.brokers[0], 0, rack)
    assert served.preferred_replica == NO_REPLICA
    assert served.records is not None


def test_a_leader_proposes_no_replica_that_lacks_the_offset(cluster: BrokerCluster) -> None:
    publish_everywhere(cluster)
    cluster.switch.cut(ONE, THREE)
    assert cluster.brokers[0].publish(acks=ACKS_LEADER) is None
    assert fetch(cluster.brokers[0], 2).preferred_replica == NO_REPLICA
    assert fetch(cluster.brokers[0], 1).preferred_replica == THREE
    assert (
        cluster.brokers[0].run(cluster.brokers[0].node.partitions.retention.trim(cluster.brokers[0].partition(), 1))
        == 1
    )
    cluster.switch.heal()


def test_a_leader_proposes_no_replica_out_of_sync(cluster: BrokerCluster) -> None:
    publish_everywhere(cluster)
    one, _, three = cluster.brokers
    cluster.switch.cut(ONE, THREE)
    cluster.until(lambda: cluster.image(broker=three).isr == (ONE, TWO))
    assert fetch(one, 0).preferred_replica == NO_REPLICA
    assert kind(fetch(three, 0)) is ErrorKind.NOT_LEADER
    cluster.switch.heal()


def test_a_follower_serves_what_is_committed(cluster: BrokerCluster) -> None:
    publish_everywhere(cluster)
    three = cluster.brokers[2]
    served = fetch(three, 0)
    assert served.records is not None
    assert (served.error, served.high_watermark, served.preferred_replica) == (None, 1, NO_REPLICA)
    three.partition().term.high_watermark = Offset(0)
    assert (fetch(three, 0).records, fetch(three, 1).records) == (None, None)
    assert kind(fetch(three, 2)) is ErrorKind.OFFSET_NOT_AVAILABLE


def test_a_follower_refuses_what_it_no_longer_has_and_other_epochs(cluster: BrokerCluster) -> None:
    publish_everywhere(cluster)
    one, _, three = cluster.brokers
    assert one.publish() is None
    assert one.run(one.node.partitions.retention.delete_records(CALLER, "t", 0, 1, 5_000)) == 1
    assert kind(fetch(three, 0)) is ErrorKind.OFFSET_OUT_OF_RANGE
    assert kind(fetch(three, 1, epoch=9)) is ErrorKind.UNKNOWN_LEADER_EPOCH


def test_a_follower_serves_only_consumers_that_name_a_rack(cluster: BrokerCluster) -> None:
    publish_everywhere(cluster)
    three = cluster.brokers[2]

    async def fetched() -> Fetched:
        answers: list[Fetched] = []
        three.node.fetch.fetcher.fetch(
            CALLER, [FetchPosition("t", 0, 0, 1 << 20)], FetchWait(0, 1, 1 << 20), answers.extend
        )
        return answers[0]

    assert kind(three.run(fetched())) is ErrorKind.NOT_LEADER


def test_a_waiting_reader_of_a_follower_is_woken(cluster: BrokerCluster) -> None:
    publish_everywhere(cluster)
    one, _, three = cluster.brokers
    answers: list[Fetched] = []

    async def wait() -> None:
        limits = FetchWait(30_000, 1, 1 << 20, three.node.fetch.replica_reads.from_rack("rack 3"))
        three.node.fetch.fetcher.fetch(CALLER, [FetchPosition("t", 0, 1, 1 << 20)], limits, answers.extend)

    three.run(wait())
    assert not answers
    assert one.publish() is None
    cluster.until(lambda: bool(answers), seconds=2)
    assert answers[0].records is not None


def test_leaders_propose_nothing_by_default() -> None:
    cluster = BrokerCluster()
    cluster.create()
    publish_everywhere(cluster)
    assert fetch(cluster.brokers[0], 0).preferred_replica == NO_REPLICA
    cluster.stop()


def test_follower_stops_readers_of_committed_records_at_its_own_last_stable_offset(cluster: BrokerCluster) -> None:
    publish_everywhere(cluster)
    one, _, three = cluster.brokers
    marker = TransactionMarker(producer_id=7, producer_epoch=0, coordinator_epoch=0, commits=False)
    content = encode_batch(
        [(0, None, b"v", ())], attributes=TRANSACTIONAL, producer_id=7, producer_epoch=0, base_sequence=0
    )

    async def send() -> None:
        one.partition().append(own_batch(content), 0)

    async def end() -> None:
        append_marker(one.partition(), marker, 1, 0)

    one.run(send())
    cluster.until(lambda: three.partition().term.high_watermark == 2)
    unstable = fetch(three, 1, reads_committed=True)
    assert (unstable.error, unstable.records, unstable.last_stable_offset) == (None, None, 1)
    one.run(end())
    cluster.until(lambda: three.partition().term.high_watermark == 3)
    stable = fetch(three, 1, reads_committed=True)
    assert stable.records is not None
    assert [(aborted.producer_id, aborted.first_offset) for aborted in stable.aborted] == [(7, 1)]
