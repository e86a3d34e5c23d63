"""Whole brokers of one cluster on a loop with virtual time: each with its disk, its session and its network."""

from asyncio import Task
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, TypeVar
from unittest.mock import patch
from uuid import UUID

from conveyor.adapters.compactor import ThreadCompactor
from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.broker_ports import BrokerPorts
from conveyor.broker.metadata.metadata import Decide, Metadata
from conveyor.broker.produce.acknowledgement import ACKS_ALL
from conveyor.broker.replicas.isr_keeper import IsrKeeper
from conveyor.cluster.image import NO_EPOCH, NO_LEADER, BrokerEndpoint, ClusterImage, PartitionImage
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.access.caller import PLAINTEXT
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NodeId
from conveyor.replication.partition import Partition
from conveyor.settings.tree import from_sources
from conveyor.testing import MemoryDisk
from conveyor.testing.memory_store import MemoryStore, MemoryTree
from simulation.cluster.peer_network import PeerSwitch
from simulation.simulated_clock import SimulatedClock
from simulation.simulated_threads import SimulatedThreads
from simulation.virtual_loop import Process, VirtualLoop
from tests.callers import CALLER
from tests.unit.broker.parts import LosesAll, publish
from tests.unit.log.logs import contents

Result = TypeVar("Result")
SESSION_MS = 2_000
_ABSENT = PartitionImage(leader=NO_LEADER, leader_epoch=NO_EPOCH, replicas=(), isr=())


class ClusterBroker:
    """One start of a broker after another, on one machine. own_settings: beside those of all brokers. new_store: opens
    a session.
    """

    def __init__(self, cluster: "BrokerCluster", node_id: int) -> None:
        self.node_id = NodeId(node_id)
        self.disk = MemoryDisk()
        self.boots = 1
        self.failures: list[BaseException] = []
        self.own_settings: dict[str, object] = {}
        self.new_store: Callable[[], MemoryStore] = lambda: MemoryStore(SESSION_MS, cluster.tree)
        self._cluster = cluster
        self._chance = Random(node_id)

    def start(self) -> None:
        """Start a process."""
        self.assemble()
        self.run(self.join())

    def assemble(self) -> None:
        """Create a process and its broker, which `join` starts."""
        self.process = Process(f"broker {self.node_id}")
        self.node: BrokerNode = self.run(self._assemble())

    async def join(self) -> None:
        await self.node.start({PLAINTEXT: BrokerEndpoint(f"kafka-{self.node_id}.example", 9092)})

    def kill(self) -> None:
        """Kill the process: written records survive. The store finds out when the session expires."""
        self.die()
        self._cluster.wait(SESSION_MS / 1000)
        self.store.expire()

    def die(self, *, has_power: bool = True) -> None:
        """Kill the process. Without power, nothing survives that is not synced. The session is left to expire."""
        self.process.kill()
        self.disk = self.disk.process_crash() if has_power else self.disk.power_cut(LosesAll())
        self.boots += not has_power
        self.store.abandon()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Execute in the broker's process."""
        return self._cluster.loop.run_until_complete(self.task(work))

    def task(self, work: Coroutine[Any, Any, Result]) -> Task[Result]:
        """Begin to execute in the broker's process."""
        return self._cluster.loop.create_task(work, context=self.process.context.copy())

    def partition(self, topic: str = "t", number: int = 0) -> Partition:
        return self.node.partitions.table.find(topic, number)

    def records(self, topic: str = "t", number: int = 0) -> list[tuple[int, bytes | None]]:
        return contents(self.partition(topic, number).log)

    @contextmanager
    def busy_files(self, topic: str = "t") -> Iterator[None]:
        """The disk is busy with the files of a partition: until that ends, the broker takes no other role there."""
        partition, tasks = self.partition(topic), self.node.partitions.log_tasks
        is_busy = tasks.is_busy
        with patch.object(tasks, "is_busy", lambda other: other is partition or is_busy(other)):
            yield

        async def end() -> None:
            self.node.partitions.reconciler._log_task_ended(partition)

        self.run(end())

    def publish(self, topic: str = "t", acks: int = ACKS_ALL) -> RequestError | None:
        """Publish one batch; return the error, if there is one."""
        return self.run(self.publishing(topic, acks))

    async def publishing(self, topic: str = "t", acks: int = ACKS_ALL) -> RequestError | None:
        (published,) = await publish(self.node, (topic, 0), acks=acks)
        return published.error

    async def _assemble(self) -> BrokerNode:
        loop = self._cluster.loop
        self.store = self.new_store()
        network = self._cluster.switch.join(self.node_id)
        threads = self.threads = self.process.threads = SimulatedThreads(loop, self._chance)
        ports = BrokerPorts(
            disk=self.disk,
            store=self.store,
            clock=SimulatedClock(loop),
            threads=threads,
            new_id=lambda: UUID(int=self._chance.getrandbits(128), version=4),
            failed=self.failures.append,
            compactor=ThreadCompactor(self.disk),
            peers=network,
            boot_id=f"boot of {self.node_id}",
            cache_id=f"boot {self.boots} of {self.node_id}",
            lock_id=f"boot {self.boots} of {self.node_id}",
        )
        rack = f"rack {self.node_id}"
        settings = {**self._cluster.settings, "broker.node_id": self.node_id, "broker.rack": rack, **self.own_settings}
        return BrokerNode(from_sources(settings), ports)


class UnavailableStore:
    """The metadata of a broker, without the store."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    def __getattr__(self, name: str) -> object:
        return getattr(self._metadata, name)

    async def propose(self, _: Decide) -> ClusterImage:
        raise RequestError(ErrorKind.METADATA_UNAVAILABLE, "no answer")


class BrokerCluster:
    """Some brokers, all started, each in its own rack. `stop` fails if one of them had a bug."""

    def __init__(self, count: int = 3, **settings: object) -> None:
        self.loop = VirtualLoop()
        self.tree = MemoryTree()
        self.switch = PeerSwitch(self.loop, Random(1))
        self.settings = {"topics.min_insync_replicas": 2, **settings}
        self.brokers = [ClusterBroker(self, node_id) for node_id in range(1, count + 1)]
        for broker in self.brokers:
            broker.start()

    def create(
        self, name: str = "t", replicas: tuple[int, ...] = (1, 2, 3), config: dict[str, str] | None = None
    ) -> None:
        """Create a topic with one partition, and wait until all its replicas are open and in sync."""
        assignment = {0: tuple(map(NodeId, replicas))}
        request = TopicRequest(name=name, assignment=assignment, config=config or {})
        self.brokers[0].run(self.brokers[0].node.topics.create(CALLER, request))
        self.until(lambda: all(len(self.image(name, broker).isr) == len(replicas) for broker in self.brokers))
        holders = [broker for broker in self.brokers if broker.node_id in replicas]
        self.until(lambda: all(broker.node.partitions.table.get(name, 0) is not None for broker in holders))

    def image(self, name: str = "t", broker: ClusterBroker | None = None) -> PartitionImage:
        topic = (broker or self.brokers[0]).node.metadata.image.topics.get(name)
        return _ABSENT if topic is None else topic.partitions[0]

    def wait(self, seconds: float) -> None:
        self.loop.call_later(seconds, self.loop.stop)
        self.loop.run_forever()

    def until(self, condition: Callable[[], bool], seconds: float = 60) -> None:
        """Let virtual time pass until a condition holds."""
        for _ in range(int(seconds * 100)):
            if condition():
                return
            self.wait(0.01)
        raise AssertionError("the condition never holds")

    def kill_all(self, *without_power: ClusterBroker) -> None:
        """Kill all brokers at once, some by a power cut. Their sessions have expired on return."""
        for broker in self.brokers:
            broker.die(has_power=broker not in without_power)
        self.wait(SESSION_MS / 1000)
        for broker in self.brokers:
            broker.store.expire()

    def stop(self) -> None:
        self.loop.end()
        assert not [failure for broker in self.brokers for failure in broker.failures]


def keeper_of(broker: ClusterBroker) -> IsrKeeper:
    assert broker.node.replicas is not None
    return broker.node.replicas._keeper
