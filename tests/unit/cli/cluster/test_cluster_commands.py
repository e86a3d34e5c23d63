"""`conveyor cluster`, on a broker in memory whose image shows a cluster of three.

No processes run for brokers 2 and 3: they have the address of broker 1, and nothing is replicated to them.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.cli.cluster import cluster_client
from conveyor.cluster.changes import Change, broker_registered, partition_changed
from conveyor.cluster.image import NO_LEADER, ClusterImage, PartitionImage
from conveyor.kernel.ids import LeaderEpoch, NodeId
from conveyor.testing import Broker
from tests.unit.broker.parts import propose
from tests.unit.cli.commands import Run
from tests.unit.cluster.controller.clusters import partition

Result = TypeVar("Result")


class Cluster:
    """Changes the image of a running broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @property
    def node(self) -> BrokerNode:
        server = self._broker._server
        assert server is not None
        return server.broker

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._broker._loop).result(20)

    def change(self, *changes: Change) -> ClusterImage:
        return self.run(propose(self.node, *changes))

    def put(self, topic: str, *partitions: PartitionImage) -> None:
        self.change(*(partition_changed(topic, number, image) for number, image in enumerate(partitions)))

    def register(self, node_id: int, **fields: Any) -> None:
        own = self.node.metadata.image.brokers[NodeId(1)]
        self.change(broker_registered(replace(own, node_id=NodeId(node_id), **fields)))

    def replicas(self, topic: str = "t") -> list[tuple[int, ...]]:
        return [item.replicas for item in self.node.metadata.image.topics[topic].partitions]

    def catch_up(self) -> None:
        """From now on all targets of a reassignment join the ISR as soon as it begins."""

        def observe(old: ClusterImage, new: ClusterImage) -> None:
            for topic in new.topics.values():
                for number, image in enumerate(topic.partitions):
                    if image.target:
                        done = msgspec.structs.replace(
                            image, replicas=image.target, isr=image.target, origin=(), target=()
                        )
                        led = msgspec.structs.replace(
                            done, leader=done.isr[0], leader_epoch=LeaderEpoch(image.leader_epoch + 1)
                        )
                        self.node.tasks.start(_complete(self.node, topic.name, number, image, led))

        self.run(_listen(self.node, observe))


def _change(
    topic: str, number: int, before: PartitionImage, after: PartitionImage
) -> Callable[[ClusterImage], list[Change]]:
    def decide(image: ClusterImage) -> list[Change]:
        return [partition_changed(topic, number, after)] if image.topics[topic].partitions[number] == before else []

    return decide


async def _complete(node: BrokerNode, topic: str, number: int, before: PartitionImage, after: PartitionImage) -> None:
    await node.metadata.propose(_change(topic, number, before, after))


async def _listen(node: BrokerNode, observe: Callable[[ClusterImage, ClusterImage], None]) -> None:
    node.metadata.listen(observe)


@pytest.fixture
def cluster(memory_broker: Broker, run_on_broker: Run) -> Cluster:
    """Return a cluster of three brokers, with topic `t` of two partitions, which broker 1 alone holds."""
    cluster = Cluster(memory_broker)
    run_on_broker("topic", "create", "t", "-p", "2")
    cluster.register(2, rack="r2")
    cluster.register(3)
    return cluster


def table(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_status_counts_partitions_that_need_attention(run_on_broker: Run, cluster: Cluster) -> None:
    """A partition without a leader is not under-replicated: no replica of it can catch up."""
    cluster.put("t", partition((2, 3), (2,), NO_LEADER), partition((1, 2), (1,)))
    cluster.register(3, is_fenced=True)
    status = run_on_broker("cluster", "status")
    lines = table(status.out)
    assert lines[0][0] == "cluster"
    assert lines[0][2:] == ["controller", "1"]
    assert status.out.splitlines()[1] == (
        "1 topic, 2 partitions: 1 without a leader, 1 under-replicated, 0 being reassigned"
    )
    assert lines[3] == ["broker", "address", "rack", "state", "leads", "replicas"]
    assert [line[0] + line[2] + line[3] + line[4] + line[5] for line in lines[4:7]] == [
        "1-live11",
        "2r2live02",
        "3-fenced01",
    ]
    assert lines[9:] == [["t", "0", "-", "2,3", "2", "-", "-", "-"], ["t", "1", "1", "1,2", "1", "-", "-", "-"]]
    document = json.loads(run_on_broker("cluster", "status", "--json").out)
    assert (document["controller"], document["leaderless"], document["under_replicated"]) == (1, 1, 1)
    assert [row["partition"] for row in document["attention"]] == [0, 1]


def test_status_says_what_to_do_about_lost_disks(run_on_broker: Run, cluster: Cluster) -> None:
    cluster.put("t", partition((2,), (), NO_LEADER), partition((1,)))
    last = run_on_broker("cluster", "status").out.splitlines()[-1]
    assert last.startswith("1 partition without any in-sync replica: ")
    assert "'conveyor cluster elect --unclean'" in last


def test_status_shows_who_can_lead_without_a_loss(run_on_broker: Run, cluster: Cluster) -> None:
    waiting = msgspec.structs.replace(partition((2, 3), (), NO_LEADER), elr=(NodeId(3),))
    cluster.put("t", waiting, partition((1,)))
    last = run_on_broker("cluster", "status").out.splitlines()[-1]
    assert last.split() == ["t", "0", "-", "2,3", "-", "3", "-", "-"]
    elected = table(run_on_broker("cluster", "elect", "--unclean", "--yes").out)
    assert elected[1] == ["t", "0", "-", "2,3", "-", "3"]


def test_partitions_of_many_pages_are_shown(
    run_on_broker: Run, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_client, "_PAGE_PARTITIONS", 1)
    run_on_broker("topic", "create", "u", "-p", "3")
    assert json.loads(run_on_broker("cluster", "status", "--json").out)["partitions"] == 5


def test_a_healthy_cluster_lists_no_partitions(run_on_broker: Run, cluster: Cluster) -> None:
    assert len(table(run_on_broker("cluster", "status").out)) == 7
    rows = json.loads(run_on_broker("cluster", "brokers", "--json").out)
    assert [(row["broker"], row["leads"], row["replicas"]) for row in rows] == [(1, 2, 2), (2, 0, 0), (3, 0, 0)]
    assert table(run_on_broker("cluster", "brokers").out)[0][0] == "broker"


def test_a_plan_is_shown_and_changes_nothing_without_a_yes(run_on_broker: Run, cluster: Cluster) -> None:
    ended = run_on_broker("cluster", "reassign", "t", "--to", "2,3", given=b"n\n")
    assert ended.exit_code == 1
    assert table(ended.out) == [
        ["topic", "partition", "replicas", "planned"],
        ["t", "0", "1", "2,3"],
        ["t", "1", "1", "3,2"],
    ]
    assert "nothing has been changed" in ended.error
    assert cluster.replicas() == [(1,), (1,)]


def test_partitions_are_reassigned_when_the_targets_have_caught_up(run_on_broker: Run, cluster: Cluster) -> None:
    cluster.catch_up()
    ended = run_on_broker("cluster", "reassign", "t", "--to", "2,3", "--parallel", "1", given=b"yes\n")
    assert (ended.exit_code, ended.out.splitlines()[-1]) == (0, "reassigned 2 partitions")
    assert cluster.replicas() == [(2, 3), (3, 2)]
    again = run_on_broker("cluster", "reassign", "t", "--to", "2,3", "--yes")
    assert again.out == "nothing to do: the partitions have these replicas already\n"


def test_reassignments_are_started_and_cancelled(run_on_broker: Run, cluster: Cluster) -> None:
    started = run_on_broker("cluster", "reassign", "t", "-p", "1", "--to", "2", "--yes", "--no-wait")
    assert started.out.splitlines()[-1] == "started 1 reassignment: 'conveyor cluster status' shows them"
    assert "1 being reassigned" in run_on_broker("cluster", "status").out
    assert table(run_on_broker("cluster", "status").out)[-1] == ["t", "1", "1", "2,1", "1", "-", "2", "1"]
    cancelled = run_on_broker("cluster", "reassign", "--cancel", "--yes")
    assert cancelled.out.splitlines()[-2:] == ["t              1  2,1       1", "cancelled 1 reassignment"]
    assert cluster.replicas() == [(1,), (1,)]
    nothing = run_on_broker("cluster", "reassign", "t", "--cancel", "--yes")
    assert nothing.out == "nothing to do: no reassignment is in progress\n"


def test_the_number_of_replicas_changes(run_on_broker: Run, cluster: Cluster) -> None:
    cluster.catch_up()
    assert run_on_broker("cluster", "reassign", "t", "--replicas", "3", "--yes").exit_code == 0
    assert [sorted(replicas) for replicas in cluster.replicas()] == [[1, 2, 3]] * 2
    assert run_on_broker("cluster", "reassign", "t", "--replicas", "1", "--yes").exit_code == 0
    assert cluster.replicas() == [(1,), (1,)]
    refused = run_on_broker("cluster", "reassign", "t", "--replicas", "4", "--yes")
    assert (refused.exit_code, "replication factor 4" in refused.error) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("t",), "give one of --to, --replicas and --cancel"),
        (("t", "--to", "2", "--cancel"), "give one of"),
        (("--to", "2"), "the topic is missing"),
        (("nothing", "--to", "2"), "unknown topic 'nothing'"),
        (("t", "--to", "2,x"), "expected the ids of different brokers"),
        (("t", "--to", "2,2"), "expected the ids of different brokers"),
        (("t", "--to", "9"), "there is no broker 9"),
        (("t", "--to", str(1 << 20)), "1048576 is the id of a gateway"),
        (("t", "--to", "3"), "broker 3 is fenced"),
        (("t", "-p", "2", "--to", "2"), "has no partition 2: it has 2 partitions"),
    ],
)
def test_invalid_reassignments_are_refused(
    run_on_broker: Run, cluster: Cluster, arguments: tuple[str, ...], error: str
) -> None:
    cluster.register(3, is_fenced=True)
    ended = run_on_broker("cluster", "reassign", *arguments, "--yes")
    assert ended.exit_code == 1
    assert error in ended.error


def test_a_broker_is_drained(run_on_broker: Run, cluster: Cluster) -> None:
    cluster.catch_up()
    cluster.put("t", partition((1, 2)), partition((1, 3)))
    ended = run_on_broker("cluster", "drain", "1", "--yes")
    assert (ended.exit_code, ended.out.splitlines()[-1]) == (0, "reassigned 2 partitions")
    assert cluster.replicas() == [(3, 2), (2, 3)]
    assert run_on_broker("cluster", "drain", "1", "--yes").out == "broker 1 holds no replicas\n"
    assert "there is no broker 9" in run_on_broker("cluster", "drain", "9", "--yes").error
    cluster.register(2, is_fenced=True)
    assert "no live broker" not in run_on_broker("cluster", "drain", "2", "--yes").error


def test_a_broker_is_drained_of_partitions_without_a_leader_without_an_end(
    run_on_broker: Run, cluster: Cluster
) -> None:
    """Their reassignments are started, and complete with an election."""
    cluster.register(3, is_fenced=True)
    cluster.put("t", partition((1,)), partition((3,), (3,), NO_LEADER))
    ended = run_on_broker("cluster", "drain", "3", "--yes")
    assert (ended.exit_code, ended.error) == (1, "conveyor: 1 partition not changed\n")
    assert "reassigned 0 partitions" in ended.out
    assert "no leader to copy from: start a broker of its isr" in ended.out
    assert run_on_broker("cluster", "elect", "--unclean", "--yes").exit_code == 0
    assert run_on_broker("cluster", "drain", "3", "--yes").out == "broker 3 holds no replicas\n"
    assert "0 being reassigned" in run_on_broker("cluster", "status").out


def test_a_broker_is_unregistered(run_on_broker: Run, cluster: Cluster) -> None:
    cluster.put("t", partition((1, 2)), partition((1,)))
    for broker, reason in ((1, "is live"), (9, "there is no broker 9: see 'conveyor cluster brokers'")):
        refused = run_on_broker("cluster", "unregister", str(broker), "--yes")
        assert (refused.exit_code, reason in refused.error) == (1, True)
    cluster.register(2, is_fenced=True)
    cluster.register(3, is_fenced=True)
    assert "holds 1 partitions" in run_on_broker("cluster", "unregister", "2", "--yes").error
    assert "nothing has been changed" in run_on_broker("cluster", "unregister", "3", given=b"no\n").error
    assert run_on_broker("cluster", "unregister", "3", "--yes") == (0, "removed broker 3\n", "")
    assert cluster.node.metadata.image.brokers.keys() == {1, 2}


def test_a_broker_is_not_drained_without_a_substitute(run_on_broker: Run, cluster: Cluster) -> None:
    cluster.put("t", partition((1, 2)), partition((1, 2, 3)))
    ended = run_on_broker("cluster", "drain", "1", "--yes")
    assert (ended.exit_code, "no live broker can take the place of broker 1" in ended.error) == (1, True)


def test_a_cluster_is_rebalanced(run_on_broker: Run, cluster: Cluster) -> None:
    cluster.catch_up()
    cluster.put("t", partition((1, 2)), partition((1, 2)))
    ended = run_on_broker("cluster", "rebalance", "--yes")
    assert ended.exit_code == 0, ended.error
    assert len({leader for leader, _ in cluster.replicas()}) == 2
    assert run_on_broker("cluster", "rebalance").out == "nothing to do: the replicas are balanced\n"


def test_preferred_leaders_are_elected(run_on_broker: Run, cluster: Cluster) -> None:
    cluster.put("t", partition((2, 1), leader=1), partition((2, 1), (1,)))
    ended = run_on_broker("cluster", "elect", "--yes")
    assert ended.out.splitlines()[-1] == "elected 1 leader"
    assert [item.leader for item in cluster.node.metadata.image.topics["t"].partitions] == [2, 1]
    assert "nothing to do" in run_on_broker("cluster", "elect").out


def test_an_unclean_election_needs_its_option(run_on_broker: Run, cluster: Cluster) -> None:
    cluster.register(3, is_fenced=True)
    cluster.put("t", partition((3, 2), (3,), NO_LEADER), partition((3,), (3,), NO_LEADER))
    assert "nothing to do" in run_on_broker("cluster", "elect", "t").out
    assert "Acknowledged records may be lost" in run_on_broker("cluster", "elect", "t", "--unclean").error
    ended = run_on_broker("cluster", "elect", "t", "--unclean", "--yes")
    assert ended.exit_code == 1
    assert "elected 1 leader" in ended.out
    assert "t-1 has no live replica" in ended.out
    assert cluster.node.metadata.image.topics["t"].partitions[0].leader == 2


def test_settings_of_all_brokers_are_listed_and_changed(run_on_broker: Run, cluster: Cluster) -> None:
    assert run_on_broker("cluster", "settings").out == "no setting was changed for all brokers\n"
    changed = run_on_broker("cluster", "settings", "-c", "min.insync.replicas=2", "-c", "num.partitions=7")
    assert table(changed.out) == [["setting", "value"], ["min.insync.replicas", "2"], ["num.partitions", "7"]]
    assert cluster.node.settings.topics.min_insync_replicas == 2
    left = run_on_broker("cluster", "settings", "--unset", "num.partitions", "--json")
    assert json.loads(left.out) == {"min.insync.replicas": "2"}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("-c", "min.insync.replicas"), "expected NAME=VALUE"),
        (("-c", "num.partitions=2", "--unset", "num.partitions"), "both name 'num.partitions'"),
        (("-c", "min.insync.replicas=0"), "it must be at least 1 replicas"),
        (("-c", "no.such=1"), "there is no setting 'no.such'"),
    ],
)
def test_settings_that_cannot_be_changed(
    run_on_broker: Run, cluster: Cluster, options: tuple[str, ...], reason: str
) -> None:
    ended = run_on_broker("cluster", "settings", *options)
    assert ended.exit_code == 1
    assert ended.error.startswith("conveyor: ")
    assert reason in ended.error
    assert "[Error" not in ended.error


def test_a_topic_is_created_with_replicas_and_described_without_a_leader(run_on_broker: Run, cluster: Cluster) -> None:
    assert run_on_broker("topic", "create", "new", "--replicas", "3").exit_code == 0
    assert cluster.replicas("new") == [(2, 3, 1)]
    assert "replication factor" in run_on_broker("topic", "create", "more", "--replicas", "4").error.lower()
    cluster.put("t", partition((2, 3), (2,), NO_LEADER), partition((1, 2)))
    described = table(run_on_broker("topic", "describe", "t").out)
    assert described[1:3] == [["0", "-", "2,3", "2", "-", "-", "-"], ["1", "1", "1,2", "1,2", "0", "0", "0"]]
