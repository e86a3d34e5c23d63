"""Changes of followers' logs that block: how often they are started, and what must have happened before."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import cast
from uuid import uuid4

import pytest

from conveyor.broker.partitions.log_task_runner import LogTaskRunner
from conveyor.broker.partitions.replica_checkpoint import ReplicaCheckpoint
from conveyor.broker.services import Services
from conveyor.broker.tasks import Tasks
from conveyor.kernel.errors import Remedy, StorageFailure, TransientFailure
from conveyor.replication.partition import Partition
from conveyor.replication.streams.log_tasks import LogTask
from conveyor.settings.tree import Settings
from conveyor.testing import ManualClock
from conveyor.testing.memory_store import MemoryStore
from tests.unit.broker.parts import loaded_metadata
from tests.unit.broker.replicas.brokers import BrokerCluster, ClusterBroker
from tests.unit.replication.parts import Owner


@pytest.fixture
def cluster() -> Iterator[BrokerCluster]:
    made = BrokerCluster()
    yield made
    made.stop()


def count_log_tasks(broker: ClusterBroker, monkeypatch: pytest.MonkeyPatch) -> list[Partition]:
    """Return the list to which each task that the broker starts from now on adds its partition; 50 are too many."""
    runner, started = broker.node.partitions.log_tasks, list[Partition]()
    start = runner.start

    def counted(partition: Partition, task: LogTask) -> None:
        started.append(partition)
        if len(started) < 50:
            start(partition, task)

    monkeypatch.setattr(runner, "start", counted)
    return started


def test_a_follower_that_goes_offline_while_it_deletes_does_not_begin_again(
    cluster: BrokerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create()
    one, two, _ = cluster.brokers
    for _ in range(3):
        assert one.publish() is None
    cluster.until(lambda: two.partition().term.high_watermark == 3)
    started = count_log_tasks(two, monkeypatch)
    two.threads.hang()
    for offset in (1, 2):
        one.run(one.node.partitions.retention.trim(one.partition(), offset))
        cluster.wait(0.1)
    failed = two.partition()
    failed.go_offline(StorageFailure("injected"))
    two.threads.go_on()
    cluster.wait(0.5)
    assert started.count(failed) == 1


class Noted:
    """A task that notes what is called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def begin(self, now_ms: int) -> bool:
        self.calls.append("begin")
        return True

    def run(self) -> None:
        self.calls.append("run")

    def complete(self) -> None:
        self.calls.append("complete")


async def test_log_task_does_not_run_before_the_directory_has_been_told() -> None:
    owner, task, ended = Owner(), Noted(), asyncio.Queue[Partition]()

    async def lowered(partition: Partition) -> None:
        task.calls.append("lowered")
        if len(task.calls) == 2:
            raise TransientFailure("the disk is full")

    with ThreadPoolExecutor(1) as threads:
        services = Services(
            settings=Settings(),
            clock=ManualClock(0),
            threads=threads,
            tasks=Tasks(lambda _: None),
            metadata=await loaded_metadata(MemoryStore()),
            new_id=uuid4,
        )
        runner = LogTaskRunner(services, cast("ReplicaCheckpoint", SimpleNamespace(lower=lowered)))
        runner.ended.listen(ended.put_nowait)
        runner.start(owner.partition, task)
        await ended.get()
        assert task.calls == ["begin", "lowered"]
        assert owner.partition.offline.remedy is Remedy.REOPEN
        runner.start(Owner().partition, task)
        await ended.get()
    assert task.calls[2:] == ["begin", "lowered", "run", "complete"]
