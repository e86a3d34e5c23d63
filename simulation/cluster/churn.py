"""A topic that is made, grown, deleted and made again under the same name, and clients that use it meanwhile.

Invariants, by the names that failures report:

    NoLostTopic           a topic whose creation or growth was acknowledged stays, with its partitions, until a client
                          asks for its deletion
    NoResurrectedTopic    a topic whose deletion was acknowledged does not come back, and no topic of its name shows its
                          records

The stored image decides what has become of a request without a reply. A record names the topic that it was sent to.
"""

import asyncio
from contextlib import suppress

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.produce.publish import ACKS_ALL
from conveyor.cluster.image import NO_LEADER, ClusterImage
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NodeId, TopicId, TopicPartition
from conveyor.records.record import encode_batch
from simulation.actors import append, fetch
from simulation.callers import CALLER
from simulation.cluster.cluster_checks import check_logs
from simulation.cluster.fault_counts import FaultCounts
from simulation.cluster.simulated_cluster import SimulatedCluster
from simulation.ledger import InvariantBroken, LogLedger, Place
from simulation.simulated_broker import Disconnected, SimulatedBroker
from simulation.story_schedule import Step

CHURNED = "churned"
"""The name of the topic."""

_NO_REPLY = (Disconnected, RequestError)
_REPLICAS = 3
_MOST_PARTITIONS = 4
_RETRY_S = 0.5


class TopicChurn:
    """The admin and the user of the topic. See the module's docstring."""

    def __init__(self, cluster: SimulatedCluster, counts: FaultCounts) -> None:
        self._cluster = cluster
        self._counts = counts
        self._logs = LogLedger(has_failovers=True)
        self._kept: tuple[TopicId, int] | None = None
        """The topic that must exist, and how many partitions it must have."""
        self._deleted: set[TopicId] = set()
        self._count = 0
        cluster.tree.observe(self._stored)

    async def execute(self, step: Step, _: object) -> None:
        action = {
            "create": self._create,
            "grow": self._grow,
            "delete": self._delete,
            "recreate": self._recreate,
            "produce": self._produce,
            "read": self._read,
        }[step.action]
        with suppress(*_NO_REPLY):
            await action(step.number)

    async def check_the_end(self) -> None:
        """Read the topic, if there is one, and compare its replicas. All brokers run, and nothing changes any more."""
        topic = self._cluster.tree.image.topics.get(CHURNED)
        for number in range(0 if topic is None else len(topic.partitions)):
            assert topic is not None
            position = 0
            while (end := await self._read_from(number, position)) != position:
                position = position if end is None else end
            self._logs.check_end(_place(topic.topic_id, number), position)
            check_logs(self._cluster.nodes, CHURNED, number)

    def _stored(self, old: ClusterImage, new: ClusterImage) -> None:
        if old.topics is new.topics:
            return
        returned = self._deleted & new.names_by_id.keys()
        if returned:
            self._break("NoResurrectedTopic", f"image {new.seq} has deleted topics {returned}")
        topic = new.topics.get(CHURNED)
        if self._kept is not None:
            topic_id, partitions = self._kept
            if topic is None or topic.topic_id != topic_id or len(topic.partitions) < partitions:
                self._break("NoLostTopic", f"image {new.seq} has {topic}, not {topic_id} of {partitions} partitions")

    async def _create(self, number: int) -> None:
        wanted = TopicRequest(name=CHURNED, partitions=1 + number % 2, replication_factor=_REPLICAS)
        made = await (await self._cluster.any()).ask(lambda inside: inside.topics.create(CALLER, wanted))
        self._keep(made.topic_id, wanted.partitions)
        self._counts.note("topic made")

    async def _grow(self, number: int) -> None:
        count = 2 + number % (_MOST_PARTITIONS - 1)

        async def request(inside: BrokerNode) -> TopicId:
            await inside.topics.add_partitions(CALLER, CHURNED, count, None)
            return inside.topics.existing(CHURNED).topic_id

        self._keep(await (await self._cluster.any()).ask(request), count)
        self._counts.note("topic grown")

    async def _delete(self, number: int) -> None:
        async def request(inside: BrokerNode) -> TopicId:
            topic_id = inside.topics.existing(CHURNED).topic_id
            self._kept = None
            await inside.topics.delete(CALLER, CHURNED)
            return topic_id

        topic_id = await (await self._cluster.any()).ask(request)
        self._deleted.add(topic_id)
        self._counts.note("topic deleted")
        if topic_id in self._cluster.tree.image.names_by_id:
            self._break("NoResurrectedTopic", f"{topic_id} was deleted, and is in the stored image")

    async def _recreate(self, number: int) -> None:
        with suppress(*_NO_REPLY):
            await self._delete(number)
        await self._create(number)

    async def _produce(self, number: int) -> None:
        size, partition = 1 + number % 7, number // 7 % _MOST_PARTITIONS
        numbers = range(self._count, self._count + size)
        self._count += size
        broker = await self._leader(partition)

        async def request(inside: BrokerNode) -> None:
            topic_id = inside.topics.existing(CHURNED).topic_id
            values = [b"%s|%d" % (topic_id.hex.encode(), value) for value in numbers]
            batch = encode_batch([(broker.clock.now_ms(), None, value, ()) for value in values])
            (published,) = await append(broker, inside, CHURNED, [(partition, batch)], ACKS_ALL)
            if published.error is None:
                self._logs.acknowledge(self._excused(topic_id, partition), published.base_offset, values)

        await broker.ask(request)

    async def _read(self, number: int) -> None:
        await self._read_from(number % _MOST_PARTITIONS, 0)

    async def _read_from(self, partition: int, start: int) -> int | None:
        """Read once. Returns the offset after the last record; None if the partition cannot be read now."""

        async def request(inside: BrokerNode) -> int | None:
            topic_id = inside.topics.existing(CHURNED).topic_id
            records, fetched = await fetch(inside, (CHURNED, partition), start, wait_ms=0)
            present = inside.metadata.image.topics.get(CHURNED)
            if fetched.error is not None or present is None or present.topic_id != topic_id:
                return None
            values = [(record.offset, record.value or b"") for record in records]
            for offset, value in values:
                if value.partition(b"|")[0] != topic_id.hex.encode():
                    detail = f"{topic_id} shows {value!r} at offset {offset} of partition {partition}"
                    raise InvariantBroken("NoResurrectedTopic", detail)
            self._logs.read(self._excused(topic_id, partition), start, values, fetched.high_watermark)
            return max((offset for offset, _ in values), default=start - 1) + 1

        try:
            return await (await self._leader(partition)).ask(request)
        except _NO_REPLY:
            await asyncio.sleep(_RETRY_S)
            return None

    async def _leader(self, partition: int) -> SimulatedBroker:
        """Return the leader as any broker shows it."""

        async def request(inside: BrokerNode) -> NodeId:
            found = inside.metadata.image.partition(CHURNED, partition)
            if found is None:
                raise RequestError(ErrorKind.UNKNOWN_TOPIC, f"there is no partition {partition}")
            return found.leader

        asked = await self._cluster.any()
        node_id = await asked.ask(request)
        return asked if node_id == NO_LEADER else self._cluster.brokers[node_id]

    def _excused(self, topic_id: TopicId, partition: int) -> Place:
        """Return the place of a partition in the ledger, after noting whether its records may be lost."""
        place, is_present = _place(topic_id, partition), topic_id in self._cluster.tree.image.names_by_id
        if is_present and self._cluster.replicas.is_excused(TopicPartition(CHURNED, partition)):
            self._logs.excuse(place)
        return place

    def _keep(self, topic_id: TopicId, partitions: int) -> None:
        self._kept = topic_id, partitions
        self._stored(ClusterImage(), self._cluster.tree.image)

    def _break(self, invariant: str, detail: str) -> None:
        self._cluster.broken.append(InvariantBroken(invariant, detail))


def _place(topic_id: TopicId, partition: int) -> Place:
    return f"{CHURNED} {topic_id}", partition
