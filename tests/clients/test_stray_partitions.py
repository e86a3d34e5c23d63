"""The statistics in which librdkafka tells that it reads a partition from a broker that does not lead it."""

import json

import pytest

from tests.clients.python.stray_partitions import StrayPartitions

ENOUGH = 10


def statistics(*, leader: int, asked: int, state: str = "UP") -> str:
    """Of a consumer with one partition, as far as they are looked at."""
    reads = {"orders-0": {"topic": "orders", "partition": 0}}
    brokers = {
        "127.0.0.1:1/1": {"nodeid": asked, "state": state, "toppars": reads},
        "127.0.0.1:2/2": {"nodeid": 7, "state": "UP", "toppars": {}},
    }
    topics = {"orders": {"partitions": {"0": {"leader": leader}, "-1": {"leader": -1}}}}
    return json.dumps({"brokers": brokers, "topics": topics})


@pytest.fixture
def strays() -> StrayPartitions:
    return StrayPartitions()


def look(strays: StrayPartitions, count: int, told: str) -> list[str]:
    for _ in range(count):
        strays.look(told)
    return strays.found


def test_a_partition_that_stays_on_the_wrong_broker_has_strayed(strays: StrayPartitions) -> None:
    told = statistics(leader=3, asked=1)
    assert look(strays, ENOUGH - 1, told) == []
    assert look(strays, 1, told) == ["orders 0"]


def test_a_partition_that_follows_its_leader_has_not(strays: StrayPartitions) -> None:
    assert look(strays, ENOUGH - 1, statistics(leader=3, asked=1)) == []
    assert look(strays, ENOUGH - 1, statistics(leader=2, asked=1)) == []
    assert look(strays, 1, statistics(leader=2, asked=2)) == []
    assert look(strays, ENOUGH - 1, statistics(leader=2, asked=1)) == []


@pytest.mark.parametrize(
    "told",
    [
        pytest.param(statistics(leader=3, asked=3), id="read from its leader"),
        pytest.param(statistics(leader=3, asked=1, state="TRY_CONNECT"), id="the broker is gone"),
        pytest.param(statistics(leader=3, asked=-1), id="with no broker"),
        pytest.param(statistics(leader=-1, asked=1), id="no leader is known"),
    ],
)
def test_librdkafka_still_looks_for_a_leader(strays: StrayPartitions, told: str) -> None:
    assert look(strays, 2 * ENOUGH, told) == []
