"""Metadata of brokers whose leader has just been killed: the answer waits for the next leader."""

from collections.abc import Iterator
from typing import Any

import pytest

from conveyor.broker.liveness.lost_leaders import PATIENCE_MS
from tests.unit.broker.replicas.brokers import SESSION_MS, BrokerCluster, ClusterBroker
from tests.unit.kafka_api.client import MemoryClient
from tests.unit.kafka_api.requests import METADATA

AT_ONCE_S = 0.05


@pytest.fixture
def cluster() -> Iterator[BrokerCluster]:
    """Yield a cluster of which broker 1 leads the topic `t`."""
    made = BrokerCluster()
    made.create()
    assert made.brokers[0].publish() is None  # All replicas follow the leader.
    yield made
    made.stop()


def asked(cluster: BrokerCluster, broker: ClusterBroker, *topics: str) -> tuple[Any, float]:
    """Ask a broker about topics. Returns the response, and the seconds until it came."""
    fields = dict.fromkeys(("include_cluster_authorized_operations", "include_topic_authorized_operations"), False)
    named = [{"name": name, "topic_id": None} for name in topics]
    began = cluster.loop.time()
    client = broker.run(_client(broker))
    answer = broker.run(client.ask(METADATA, 12, topics=named, allow_auto_topic_creation=False, **fields))
    return answer, cluster.loop.time() - began


def notice_lost_leader(cluster: BrokerCluster, broker: ClusterBroker) -> None:
    """Let time pass until a broker has noticed that its link to a leader has ended."""
    for _ in range(1_000):
        if broker.node.liveness.lost_leaders:
            return
        cluster.wait(0.001)
    raise AssertionError("no leader is lost")


async def _client(broker: ClusterBroker) -> MemoryClient:
    return MemoryClient(broker.node)


def leader(answer: Any) -> int:
    return int(answer.topics[0].partitions[0].leader_id)


@pytest.mark.parametrize("asked_broker", [2, 3])
def test_the_answer_names_the_next_leader_and_still_lists_the_killed_one(
    cluster: BrokerCluster, asked_broker: int
) -> None:
    one, broker = cluster.brokers[0], cluster.brokers[asked_broker - 1]
    one.process.kill()
    notice_lost_leader(cluster, broker)
    answer, seconds = asked(cluster, broker, "t")
    assert leader(answer) == 2
    assert 0 < seconds < PATIENCE_MS / 1000
    assert [node.node_id for node in answer.brokers] == [1, 2, 3]
    assert leader(asked(cluster, broker, "t")[0]) == 2


def test_a_leader_whose_links_were_reset_is_named_after_it_was_reached_again(cluster: BrokerCluster) -> None:
    one, two, _ = cluster.brokers
    cluster.switch.reset(one.node_id, two.node_id)
    notice_lost_leader(cluster, two)
    answer, seconds = asked(cluster, two, "t")
    assert leader(answer) == 1
    assert seconds < PATIENCE_MS / 1000


def test_the_answer_does_not_wait_for_the_session_of_a_leader_without_power(cluster: BrokerCluster) -> None:
    one, two, _ = cluster.brokers
    cluster.switch.lose_power(one.node_id)
    one.process.kill()
    answer, seconds = asked(cluster, two, "t")
    assert leader(answer) == 1
    assert seconds < SESSION_MS / 1000


def test_a_request_without_topics_is_answered_at_once(cluster: BrokerCluster) -> None:
    cluster.brokers[0].process.kill()
    _, seconds = asked(cluster, cluster.brokers[1])
    assert seconds < AT_ONCE_S
