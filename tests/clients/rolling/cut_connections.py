"""Groups of franz-go read and commit every record although each connection of each client is cut after a while.

The producers are of another client: franz-go's gives up if its first connections end before an answer, which it takes
for a sign that it has to log in.
"""

import gc
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from tests.clients.programs import Line
from tests.clients.rebalances import QUICK_GROUPS, STEP, Group, committed, numbers_read
from tests.clients.rolling.cutting_proxies import CuttingProxies
from tests.clients.toolchains import go_program, python_program
from tests.cluster.broker_cluster import BrokerCluster

PROTOCOLS = ("eager", "cooperative", "consumer")
BROKERS = 3
MEMBERS = 2
STEPS = 5
CUTS_PER_STEP = 20
PATIENCE_S = 240
SETTINGS = QUICK_GROUPS | {"broker.default_replication_factor": 3, "topics.min_insync_replicas": 2}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[CuttingProxies]:
    """Three brokers, which tell their clients the addresses of the proxies."""
    proxies = CuttingProxies(BROKERS, seed=1)
    advertised = {number: ("--set", f"network.advertised={proxy.address}") for number, proxy in proxies.by_id.items()}
    options = tuple(word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}"))
    brokers = BrokerCluster(tmp_path, BROKERS, options, advertised)
    try:
        brokers.start()
        try:
            for proxy, node in zip(proxies.by_id.values(), brokers.nodes, strict=True):
                proxy.target = node.kafka
            yield proxies
        finally:
            brokers.end()
    finally:
        proxies.end()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # Of connections that were cut on both sides.
            gc.collect()


def until_committed(cluster: CuttingProxies, topic: str, count: int) -> None:
    """Return once a group has committed so many records. Its own connections are cut, too."""
    deadline = time.monotonic() + PATIENCE_S
    found: object = None
    while found != count:
        assert time.monotonic() < deadline, f"{topic}: {count} records, committed: {found}"
        try:
            found = committed(cluster, topic)
        except KafkaException as failure:
            found = failure


def refusals(lines: list[Line]) -> list[str]:
    return [line["refused"] for line in lines if "refused" in line]


def test_groups_lose_nothing_while_their_connections_are_cut(cluster: CuttingProxies, topic: str) -> None:
    with ExitStack() as running:
        groups = {
            name: running.enter_context(Group(go_program(), cluster, name, protocol, python_program("confluent")))
            for protocol in PROTOCOLS
            for name in [f"{topic}-{protocol}"]
        }
        members = {name: [group.join() for _ in range(MEMBERS)] for name, group in groups.items()}
        for step in range(STEPS):
            for group in groups.values():
                group.produce(range(step * STEP, (step + 1) * STEP))
            cluster.await_cuts(CUTS_PER_STEP)
        for name in groups:
            until_committed(cluster, name, STEPS * STEP)
        for name, of_group in members.items():
            lines = [member.finish() for member in of_group]
            print(name, [refusals(of_member) for of_member in lines])
            assert set().union(*map(numbers_read, of_group)) == set(range(STEPS * STEP))
    print(f"{cluster.cuts_count} cuts")
