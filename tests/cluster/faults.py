"""Faults of a cluster: each is applied, lasts for a while, and is healed."""

import time
from collections.abc import Callable
from functools import partial
from http.client import HTTPConnection, HTTPException
from random import Random
from typing import NamedTuple

from tests.cluster.broker_cluster import BrokerCluster, ClusterNode, void

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


def _cut_link(cluster: BrokerCluster, chance: Random) -> Heal:
    cluster.cut_link(*_pair(cluster, chance))
    return cluster.heal_links


def _mute_link(cluster: BrokerCluster, chance: Random) -> Heal:
    cluster.mute_link(*_pair(cluster, chance))
    return cluster.heal_links


def _isolate(cluster: BrokerCluster, chance: Random) -> Heal:
    """The broker reaches the ZooKeeper and clients, but no other broker."""
    alone = chance.randint(1, len(cluster.nodes))
    for other in range(1, len(cluster.nodes) + 1):
        if other != alone:
            cluster.cut_link(alone, other)
    return cluster.heal_links


def _delay_links(cluster: BrokerCluster, chance: Random) -> Heal:
    one, other = _pair(cluster, chance)
    cluster.delay_link(one, other, chance.uniform(0.01, 0.3))
    return cluster.heal_links


def _reset_link(cluster: BrokerCluster, chance: Random) -> Heal:
    cluster.reset_link(*_pair(cluster, chance))
    return cluster.heal_links


def _pair(cluster: BrokerCluster, chance: Random) -> tuple[int, int]:
    one, other = chance.sample(range(1, len(cluster.nodes) + 1), 2)
    return one, other


def _break_disk(fault: str, cluster: BrokerCluster, chance: Random) -> Heal:
    node = chance.choice(cluster.nodes)
    node.break_disk(fault)
    return partial(_heal_disk, node)


def _slow_disk(cluster: BrokerCluster, chance: Random) -> Heal:
    return _break_disk(f"slow {chance.uniform(0.02, 0.5):.3f}", cluster, chance)


def _heal_disk(node: ClusterNode) -> None:
    """Repair the disk, as an operator does who then restarts a broker that has partitions offline."""
    node.break_disk("heal")
    ends = time.monotonic() + _OFFLINE_S
    while _has_offline_partitions(node):
        node.remove_set_aside()
        if time.monotonic() > ends:
            node.kill()
            return node.start()
        time.sleep(0.5)
    node.remove_set_aside()
    return None


def _has_offline_partitions(node: ClusterNode) -> bool:
    connection = HTTPConnection(node.http, timeout=5)
    try:
        connection.request("GET", "/readyz")
        return b'"offline_partitions":{}' not in connection.getresponse().read()
    except (OSError, HTTPException):
        return True
    finally:
        connection.close()


_OFFLINE_S = 20
"""How long a broker gets to bring its partitions back by itself."""

FAULTS = (
    Fault("kill -9", 6, (0.1, 5), _kill),
    Fault("stop and start", 2, (0.1, 3), _stop),
    Fault("pause (SIGSTOP)", 4, (0.3, 7), _pause),
    Fault("cut from ZooKeeper", 3, (0.3, 7), _cut_zookeeper),
    Fault("stalled connection to ZooKeeper", 2, (0.3, 7), _stall_zookeeper),
    Fault("ZooKeeper restarted", 2, (0.5, 8), _restart_zookeeper),
    Fault("kill -9 of two", 1, (0.1, 4), _kill_two),
    Fault("kill -9 of all", 1, (0.1, 2), _kill_all),
    Fault("link between two brokers cut", 3, (0.3, 12), _cut_link),
    Fault("link between two brokers one-way", 2, (0.3, 12), _mute_link),
    Fault("broker cut from the other brokers", 2, (0.3, 12), _isolate),
    Fault("slow link between two brokers", 2, (0.3, 6), _delay_links),
    Fault("links between two brokers reset", 2, (0, 0), _reset_link),
    Fault("disk whose flushes hang", 3, (1, 18), partial(_break_disk, "hang")),
    Fault("disk whose writes hang", 2, (0.5, 8), partial(_break_disk, "block")),
    Fault("slow disk", 2, (0.5, 6), _slow_disk),
    Fault("one flush fails", 2, (0.5, 3), partial(_break_disk, "fail once")),
    Fault("disk whose flushes fail", 2, (0.5, 5), partial(_break_disk, "fail")),
    Fault("full disk", 3, (0.5, 8), partial(_break_disk, "full")),
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
