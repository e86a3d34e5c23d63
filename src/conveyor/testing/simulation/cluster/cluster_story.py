"""Plays a schedule with three brokers: one story of a cluster and its clients, with its final checks.

After the last step all faults end and all brokers run. Within 30 seconds every partition is led and has all replicas in
sync; then everything is read to its end, and the logs of all replicas are compared.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import sha256
from typing import Protocol, TypeVar

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.produce.publish import ACKS_LEADER
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NodeId
from conveyor.queues.subscription.policy import StartPosition
from conveyor.testing.simulation.actors import (
    LOG_TOPIC,
    PARTITIONS,
    QUEUE_TOPIC,
    SUBSCRIPTION,
    Committer,
    Producer,
    QueuePublisher,
    Reader,
    SimulatedDoor,
    read,
)
from conveyor.testing.simulation.cluster.cluster_checks import check_images, check_logs, unsettled
from conveyor.testing.simulation.cluster.cluster_faults import BrokerFaults, FaultCounts, MachineFaults, NetworkFaults
from conveyor.testing.simulation.cluster.cluster_queue import ClusterQueueLedger, ClusterWorker
from conveyor.testing.simulation.cluster.cluster_schedule import NODE_IDS
from conveyor.testing.simulation.cluster.simulated_cluster import SimulatedCluster
from conveyor.testing.simulation.ledger import InvariantBroken, LogLedger, OffsetLedger, Place, check_ordered_once
from conveyor.testing.simulation.simulated_broker import Disconnected
from conveyor.testing.simulation.story import StoryOutcome, play_story, steps_by_actor
from conveyor.testing.simulation.story_schedule import Step, StorySchedule
from conveyor.testing.simulation.virtual_loop import VirtualLoop

Reply = TypeVar("Reply")

_REPLICAS = len(NODE_IDS)
_SETTINGS: dict[str, object] = {
    "groups.offsets_partitions": 1,
    "groups.offsets_replication_factor": _REPLICAS,
    "topics.segment_bytes": 16_384,
    "topics.min_insync_replicas": 2,
    "topics.index_interval_bytes": 512,
}
_SETTLES_WITHIN_S = 30.0
_LONGEST_STORY_S = 3_600.0
_RETRY_S = 0.5
_LEADERS_EACH_S = 0.05


def play_cluster(schedule: StorySchedule) -> StoryOutcome:
    """Play a schedule on a new event loop."""
    return play_story(lambda loop: _ClusterStory(loop, schedule), _LONGEST_STORY_S)


class _Client(Protocol):
    """An actor that reaches the cluster through a door."""

    async def execute(self, step: Step, door: SimulatedDoor, /) -> None: ...


class _Fault(Protocol):
    """An actor that breaks the cluster which it was made with."""

    async def execute(self, step: Step, /) -> None: ...


class _ClusterStory:
    def __init__(self, loop: VirtualLoop, schedule: StorySchedule) -> None:
        self.counts = FaultCounts()
        self.digest = sha256()
        self._log, self._offsets = LogLedger(has_failovers=True), OffsetLedger()
        self._queue = ClusterQueueLedger()
        self._schedule = schedule
        self.bugs: list[BaseException] = []
        self._cluster = cluster = SimulatedCluster(loop, schedule.seed, _SETTINGS, NODE_IDS)
        self._worker = ClusterWorker(self._queue, cluster)
        self._clients: dict[str, _Client] = {
            "producer-all": Producer("all", LOG_TOPIC, self._log),
            "producer-one": Producer("one", LOG_TOPIC, self._log, acks=ACKS_LEADER),
            "producer-plain": Producer("plain", LOG_TOPIC, self._log, idempotent=False),
            "reader": Reader(self._log, has_failovers=True),
            "committer": Committer(self._offsets),
            "publisher": QueuePublisher(self._queue),
            "worker-1": self._worker,
            "worker-2": ClusterWorker(self._queue, cluster),
        }
        self._faults: dict[str, _Fault] = {
            "network": NetworkFaults(cluster, self.counts),
            "machines": MachineFaults(cluster, self.counts),
        }
        for number in NODE_IDS:
            self._faults[f"broker-{number}"] = BrokerFaults(cluster, NodeId(number), self.counts)

    @property
    def happened(self) -> Mapping[str, int]:
        return self.counts.happened

    @property
    def text_digest(self) -> str:
        return self.digest.hexdigest()

    async def run(self) -> None:
        await self._cluster.start()
        await self._repeat_until_success(_prepare)
        watch = asyncio.ensure_future(self._watch_leaders())
        parts = [
            asyncio.ensure_future(self._perform(name, steps)) for name, steps in steps_by_actor(self._schedule).items()
        ]
        try:
            await asyncio.gather(*parts)
            self._raise_bugs()
            await self._check_the_end()
            self._raise_bugs()
        finally:
            for part in (watch, *parts):
                part.cancel()

    async def _perform(self, name: str, steps: Sequence[Step]) -> None:
        loop = asyncio.get_running_loop()
        for step in steps:
            await asyncio.sleep(max(0.0, step.at_ms / 1000 - loop.time()))
            if name in self._faults:
                await self._faults[name].execute(step)
            else:
                await self._clients[name].execute(step, self._cluster)
            self._raise_bugs()

    async def _watch_leaders(self) -> None:
        while True:
            self._cluster.note_leaders()
            await asyncio.sleep(_LEADERS_EACH_S)

    async def _check_the_end(self) -> None:
        self._cluster.heal()
        await self._cluster.start()
        await self._check_settled()
        for number in range(PARTITIONS):
            place = (LOG_TOPIC, number)
            check_ordered_once(place, await self._read_all(place))
        await self._clients["committer"].execute(Step(0, "committer", "fetch_offset", 0), self._cluster)
        await self._drain_queue()
        check_images(self._nodes())
        for number in range(PARTITIONS):
            check_logs(self._nodes(), LOG_TOPIC, number)

    async def _drain_queue(self) -> None:
        while await self._repeat_until_success(_count_unsettled):
            await self._worker.lease(7)
            await self._worker.settle_all()
            await asyncio.sleep(_RETRY_S)
        self._queue.check_drained()

    async def _check_settled(self) -> None:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _SETTLES_WITHIN_S
        while differences := unsettled(self._nodes()):
            self._raise_bugs()
            if loop.time() > deadline_s:
                raise InvariantBroken("ClusterSettles", f"after {_SETTLES_WITHIN_S} s: {', '.join(differences)}")
            await asyncio.sleep(_RETRY_S)

    def _nodes(self) -> list[BrokerNode]:
        return [broker.node for broker in self._cluster.brokers.values() if broker.node is not None]

    async def _read_all(self, place: Place) -> list[tuple[int, bytes]]:
        """Return every record of a partition: offset and value."""
        values: list[tuple[int, bytes]] = []
        position = 0
        while True:
            try:
                records, fetched = await read(await self._cluster.leader(place), place, position, wait_ms=0)
            except (Disconnected, RequestError):
                await asyncio.sleep(_RETRY_S)
                continue
            if fetched.error is not None:
                if fetched.error.kind is ErrorKind.NOT_LEADER:
                    await asyncio.sleep(_RETRY_S)
                    continue
                raise InvariantBroken("NoAcknowledgedLoss", f"{place} cannot be read: {fetched.error}")
            found = [(record.offset, record.value or b"") for record in records]
            self._log.read(place, position, found, fetched.high_watermark)
            if not found:
                break
            values += found
            position = found[-1][0] + 1
        self._log.check_end(place, position)
        self.digest.update(repr(values).encode())
        return values

    async def _repeat_until_success(self, request: Callable[[BrokerNode], Awaitable[Reply]]) -> Reply:
        while True:
            try:
                return await (await self._cluster.any()).ask(request)
            except (Disconnected, RequestError):
                self._raise_bugs()
                await asyncio.sleep(_RETRY_S)

    def _raise_bugs(self) -> None:
        bugs = self.bugs + self._cluster.bugs
        if bugs:
            raise bugs[0]


async def _prepare(broker: BrokerNode) -> None:
    for name in (LOG_TOPIC, QUEUE_TOPIC):
        await broker.topics.ensure(TopicRequest(name=name, partitions=PARTITIONS, replication_factor=_REPLICAS))
    if SUBSCRIPTION not in {subscription.name for subscription in broker.subscriptions.all()}:
        start = StartPosition(kind="earliest")
        await broker.subscription_lifecycle.create(QUEUE_TOPIC, SUBSCRIPTION, start, {"max_deliveries": 0})


async def _count_unsettled(broker: BrokerNode) -> int:
    return (await broker.subscription_statistics.stats(SUBSCRIPTION)).unsettled
