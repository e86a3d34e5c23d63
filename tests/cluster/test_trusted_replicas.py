"""Brokers whose data directories have lost something: no acknowledged record is lost in a clean election."""

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from urllib.error import HTTPError

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from conveyor.adapters.disk import RealDisk
from conveyor.log.checked_file import read_checked
from conveyor.replication.replica_facts import NAME, decode_facts
from tests.cluster.broker_cluster import BrokerCluster, ClusterNode
from tests.cluster.one_partition import PATIENCE_S, TOPIC, OnePartition, until

FIRST, SECOND = [f"first-{number}" for number in range(100)], [f"second-{number}" for number in range(100)]


@pytest.fixture
def partition(cluster: BrokerCluster) -> OnePartition:
    """All three brokers have its 100 records. Broker 1 leads."""
    partition = OnePartition(cluster).create([1, 2, 3], {"min.insync.replicas": "2"})
    assert len(partition.acknowledged(FIRST)) == 100
    return partition


def kill_all(cluster: BrokerCluster) -> None:
    """At once, so that broker 1 remains in sync."""
    for node in reversed(cluster.nodes):
        node.pause()
    for node in cluster.nodes:
        node.kill()


def replace_data(node: ClusterNode, copy: Path) -> None:
    shutil.rmtree(node.data)
    copy.rename(node.data)


def until_others_know(cluster: BrokerCluster) -> None:
    """Wait until the directories of brokers 2 and 3 show that all records of the partition are committed."""

    def known(node: ClusterNode) -> bool:
        facts = decode_facts(read_checked(RealDisk(node.data, max_open_files=1), NAME))
        return facts is not None and 200 in [replica.high_watermark for replica in facts.replicas]

    until(lambda: all(map(known, cluster.nodes[1:])))


def ask(node: ClusterNode, path: str) -> str:
    try:
        with urllib.request.urlopen(f"http://{node.http}{path}", timeout=PATIENCE_S) as answer:
            return str(answer.read().decode())
    except HTTPError as error:
        with error:
            return error.read().decode()


def offline(node: ClusterNode) -> dict[str, str]:
    """Return why partitions are offline on a broker, by their names."""
    reasons: dict[str, str] = json.loads(ask(node, "/readyz"))["offline_partitions"]
    return reasons


def conveyor(node: ClusterNode, *arguments: str) -> str:
    command = [sys.executable, "-m", "conveyor.cli.main", *arguments, "--bootstrap", node.kafka]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def set_flush_policy(partition: OnePartition, policy: str) -> None:
    change = ConfigEntry("flush.policy", policy, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, TOPIC, incremental_configs=[change])
    partition.admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)


def test_partition_whose_directory_is_missing_is_copied_and_not_elected(
    cluster: BrokerCluster, partition: OnePartition
) -> None:
    one, two, three = cluster.nodes
    kill_all(cluster)
    shutil.rmtree(one.data / "logs" / f"{TOPIC}-0")
    one.start()
    status = conveyor(one, "cluster", "status")  # Also while the brokers that have died are in the lists of clients.
    until(lambda: partition.leader == -1)
    assert 1 not in partition.isr
    assert one.kafka in status
    # It begins again as soon as another broker leads, which may be one that has died and is not known to have.
    assert "flights-0 is missing, and was used before" in cluster.log(0)
    two.start()
    three.start()
    until(lambda: partition.isr == [1, 2, 3])
    assert partition.values() == FIRST
    until(lambda: offline(one) == {})


def test_older_copy_of_a_data_directory_is_not_elected(
    cluster: BrokerCluster, partition: OnePartition, tmp_path: Path
) -> None:
    one, two, three = cluster.nodes
    assert one.stop() == 0
    copy = shutil.copytree(one.data, tmp_path / "copy")
    one.start()
    until(lambda: partition.isr == [1, 2, 3])
    assert len(partition.acknowledged(SECOND)) == 100
    kill_all(cluster)
    replace_data(one, copy)
    one.start()
    until(lambda: partition.leader == -1)
    assert 1 not in partition.isr
    two.start()
    three.start()
    until(lambda: partition.isr == [1, 2, 3])
    assert partition.values() == FIRST + SECOND


def test_directories_without_checkpoints_lose_no_records(cluster: BrokerCluster, partition: OnePartition) -> None:
    """The broker that was stopped last has all records, and is elected by the operator."""
    one, two, three = cluster.nodes
    assert three.stop() == 0
    assert len(partition.acknowledged(SECOND)) == 100
    assert (two.stop(), one.stop()) == (0, 0)
    for node in cluster.nodes:
        (node.data / NAME).unlink()
    one.start()
    until(lambda: partition.leader == -1)
    assert partition.isr == []
    assert "elected 1 leader" in conveyor(one, "cluster", "elect", TOPIC, "--unclean", "--yes")
    two.start()
    three.start()
    until(lambda: partition.isr == [1, 2, 3])
    assert partition.values() == FIRST + SECOND


def test_copy_of_the_directory_of_a_live_broker_does_not_start(
    cluster: BrokerCluster, partition: OnePartition, tmp_path: Path
) -> None:
    one = cluster.nodes[0]
    clone = cluster.clone(1, shutil.copytree(one.data, tmp_path / "clone" / "data"))
    with pytest.raises(AssertionError, match="this data directory is a copy of its own"):
        clone.start()
    assert clone.wait() == 1
    assert len(partition.acknowledged(SECOND)) == 100
    assert (partition.leader, partition.isr) == (1, [1, 2, 3])
    assert one.process.log().count("broker registered") == 1


def test_replicas_keep_what_an_elected_copy_lacks(
    cluster: BrokerCluster, partition: OnePartition, tmp_path: Path
) -> None:
    """Nothing tells a copy that was made since the last start from the original."""
    one, two, three = cluster.nodes
    copy = shutil.copytree(one.data, tmp_path / "copy")
    assert len(partition.acknowledged(SECOND)) == 100
    until_others_know(cluster)
    kill_all(cluster)
    replace_data(one, copy)
    one.start()
    until(lambda: partition.leader == 1)
    two.start()
    three.start()
    until(lambda: bool(offline(two) and offline(three)))
    reason = "flights-0: broker 1, the leader in epoch"
    assert all(reason in offline(node)[f"{TOPIC}-0"] for node in (two, three))
    assert "\nconveyor_partitions_offline 1.0\n" in ask(two, "/metrics")
    assert f"partition offline partition={TOPIC}-0 reason={reason}" in two.process.log()
    one.stop()
    until(lambda: partition.leader in (2, 3))
    shutil.rmtree(one.data)
    one.start()
    until(lambda: partition.isr == [1, 2, 3])
    assert partition.values() == FIRST + SECOND


def test_power_cut_counts_by_the_flush_policy_that_held_when_records_were_written(cluster: BrokerCluster) -> None:
    """Broker 3 is the controller. Broker 1 has the last record only in the page cache, which its power cut removes."""
    one, two, _ = cluster.nodes
    config = {"min.insync.replicas": "2", "flush.policy": "os"}
    partition = OnePartition(cluster).create([1, 2], config)
    assert len(partition.acknowledged(FIRST)) == 100
    segment = one.data / "logs" / f"{TOPIC}-0" / f"{0:020}.log"
    one.break_disk("hang")
    flushed_bytes = segment.stat().st_size
    assert len(partition.acknowledged(SECOND)) == 100
    two.kill()
    until(lambda: partition.isr == [1])
    one.kill()
    one.reboot()
    os.truncate(segment, flushed_bytes)
    set_flush_policy(partition, "ack")
    one.start()
    until(lambda: 1 not in partition.isr)
    assert partition.leader == -1
    status = conveyor(one, "cluster", "status")
    assert status.splitlines()[-1].split() == ["flights", "0", "-", "1,2", "-", "2", "-", "-"]
    two.start()
    until(lambda: partition.isr == [1, 2])
    assert partition.values() == FIRST + SECOND
