"""A broker that stops while it follows: what it has copied is on its disk, and nothing else delays the stop."""

import asyncio

import pytest

from conveyor.broker.produce.acknowledgement import ACKS_LEADER
from simulation.cluster import peer_network
from tests.unit.broker.parts import publish
from tests.unit.broker.replicas.brokers import BrokerCluster


def test_a_follower_stops_although_its_leader_always_has_more_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each flush takes longer than the time until the next records, so one is always in progress."""
    monkeypatch.setattr(peer_network, "_LONG_SHARE", 0)
    cluster = BrokerCluster()
    cluster.create()
    one, two, _ = cluster.brokers

    async def produce() -> None:
        while True:
            await publish(one.node, ("t", 0), acks=ACKS_LEADER)
            await asyncio.sleep(0.002)

    async def flush_slowly() -> None:
        while True:
            two.threads.hang()
            await asyncio.sleep(0.02)
            two.threads.go_on()
            await asyncio.sleep(0)

    tasks = [one.task(produce()), two.task(flush_slowly())]
    cluster.wait(1)
    copied = two.partition().log
    stopping = two.task(two.node.finish_requests())
    cluster.until(stopping.done, seconds=5)
    assert 0 < copied.log_end_offset == copied.flushes.flushed_offset
    for task in tasks:
        task.cancel()
    two.threads.go_on()
    cluster.wait(0.1)
    cluster.stop()
