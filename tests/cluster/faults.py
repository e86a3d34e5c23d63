"""Faults of a cluster: each is applied, lasts for a while, and is healed."""

import time
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from tests.cluster.broker_cluster import BrokerCluster, ClusterNode

Heal = Callable[[], None]


class Fault(NamedTuple):
    """weight: how often it is chosen. seconds: the shortest and longest time that it lasts.

    begin: applies it and returns the function that heals it.
    """

    name: str
    weight: int
    seconds: tuple[float, float]
    begin: Callable[[BrokerCluster, Random], Heal]


def _kill(cluster: BrokerCluster, chance: Random) -> Heal:
    node = chance.choice(cluster.nodes)
    node.kill()
    return node.start


def _stop(cluster: BrokerCluster, chance: Random) -> Heal:
    node = chance.choice(cluster.nodes)
    code = node.stop()
    assert code == 0, f"a broker stopped with exit code {code}: {node.process.log()[-2000:]}"
    return node.start


def _pause(cluster: BrokerCluster, chance: Random) -> Heal:
    node = chance.choice(cluster.nodes)
    node.pause()
    return node.resume


def _cut_zookeeper(cluster: BrokerCluster, chance: Random) -> Heal:
    node = chance.choice(cluster.nodes)
    node.cut_zookeeper()
    return node.heal_zookeeper


def _stall_zookeeper(cluster: BrokerCluster, chance: Random) -> Heal:
    node = chance.choice(cluster.nodes)
    node.stall_zookeeper()
    return node.heal_zookeeper


def _restart_zookeeper(cluster: BrokerCluster, _: Random) -> Heal:
    cluster.zookeeper.kill()
    return lambda: void(cluster.zookeeper.start())


def _kill_two(cluster: BrokerCluster, chance: Random) -> Heal:
    return _kill_nodes(chance.sample(cluster.nodes, 2))


def _kill_all(cluster: BrokerCluster, _: Random) -> Heal:
    return _kill_nodes(cluster.nodes)


def _kill_nodes(nodes: list[ClusterNode]) -> Heal:
    for node in nodes:
        node.kill()

    def start() -> None:
        for node in nodes:
            node.start()

    return start


def void(_: object) -> None:
    """Make a function that returns something a healing one."""


FAULTS = (
    Fault("kill -9", 6, (0.1, 5), _kill),
    Fault("stop and start", 2, (0.1, 3), _stop),
    Fault("pause (SIGSTOP)", 4, (0.3, 7), _pause),
    Fault("cut from ZooKeeper", 3, (0.3, 7), _cut_zookeeper),
    Fault("stalled connection to ZooKeeper", 2, (0.3, 7), _stall_zookeeper),
    Fault("ZooKeeper restarted", 2, (0.5, 8), _restart_zookeeper),
    Fault("kill -9 of two", 1, (0.1, 4), _kill_two),
    Fault("kill -9 of all", 1, (0.1, 2), _kill_all),
)


def play(cluster: BrokerCluster, chance: Random, told: Callable[[str], None]) -> str:
    """Apply one fault, wait, and heal it. Returns its name."""
    fault = chance.choices(FAULTS, [fault.weight for fault in FAULTS])[0]
    seconds = chance.uniform(*fault.seconds)
    told(f"{fault.name} for {seconds:.1f} s")
    heal = fault.begin(cluster, chance)
    time.sleep(seconds)
    heal()
    return fault.name
