"""Publishes to topics that come and go, reads them, and drains their subscriptions.

A record names the topic that it was sent to by its id. Some are sent to whatever has the name.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from uuid import UUID

from conveyor.kernel.errors import RequestError
from conveyor.kernel.ids import NodeId
from conveyor.records.message_attributes import DELAY_MS
from conveyor.records.record import encode_batch
from simulation.clients.churn.churn_ledger import CHURNED, DELAYED, DUE, QUEUED, ChurnLedger
from simulation.clients.cluster_queue import ClusterWorker
from simulation.cluster.cluster_checks import check_logs
from simulation.cluster.simulated_cluster import SimulatedCluster
from simulation.doors.client_door import BrokerDoor, ClientDoor
from simulation.doors.client_network import Disconnected
from simulation.doors.kafka_requests import PublishedAt, fetch, fetch_from_id, publish, publish_to_id, show_topic
from simulation.doors.rest_requests import unsettled_count
from simulation.ledger import DelayLedger
from simulation.story_schedule import Step
from simulation.story_topics import PARTITIONS

LONGEST_DELAY_S = 20.0

_NO_REPLY = (Disconnected, RequestError)
_RETRY_S = 0.5


class TopicUser:
    def __init__(self, cluster: SimulatedCluster, ledger: ChurnLedger) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._workers: dict[str, ClusterWorker] = {}
        self._count = 0

    async def execute(self, step: Step, door: ClientDoor) -> None:
        action = {"produce": self._produce, "read": self._read, "work": self._work}[step.action]
        with suppress(*_NO_REPLY):
            await action(door, CHURNED[step.number % len(CHURNED)], step.number // len(CHURNED))

    async def check_the_end(self, door: ClientDoor) -> None:
        """Read the topics that there are, and compare their replicas. All brokers run, and all delays have passed."""
        for name in CHURNED:
            topic = self._cluster.tree.image.topics.get(name)
            for number in range(0 if topic is None else len(topic.partitions)):
                assert topic is not None
                await self._read_to_the_end(door, name, topic.topic_id, number)
                check_logs(self._cluster.nodes, name, number)
        await self._check_delays(door)
        subscription = self._ledger.newest_subscription()
        if subscription is not None:
            await self._drain(door, subscription)

    async def _produce(self, door: ClientDoor, name: str, number: int) -> None:
        topic_id, leaders = await self._shown(door, name)
        size, partition = 1 + number % 7, number // 7 % len(leaders)
        delay_ms = number % int(1000 * LONGEST_DELAY_S) if name == DELAYED else 0
        headers = ((DELAY_MS, b"%d" % delay_ms),) if delay_ms else ()
        is_for_any = number % 5 == 0 and name != DELAYED
        values = self._values("?" if is_for_any else topic_id.hex, size)
        now_ms = door.clock.now_ms()
        batch = encode_batch([(now_ms, None, value, headers) for value in values])
        if is_for_any:
            await publish(leaders[partition], name, [(partition, batch)])
            return
        self._delays_of(topic_id).due_ms |= dict.fromkeys(values, now_ms + delay_ms)
        published = await publish_to_id(leaders[partition], name, topic_id, partition, batch)
        if published.error is None:
            self._acknowledged(name, topic_id, partition, values, published)

    def _acknowledged(
        self, name: str, topic_id: UUID, partition: int, values: Sequence[bytes], published: PublishedAt
    ) -> None:
        if name == DELAYED:
            self._delays_of(topic_id).acknowledged |= set(values)
        place = self._ledger.place(name, topic_id, partition)
        self._ledger.logs.acknowledge(place, published.base_offset, values)
        ids = [f"{partition}-{published.base_offset + index}" for index in range(len(values))]
        for subscription, owner in self._ledger.subscriptions.topics.items():
            if owner == topic_id:
                self._ledger.of_subscription(subscription).published |= dict.fromkeys(ids, 0)

    async def _read(self, door: ClientDoor, name: str, number: int) -> None:
        topic_id, leaders = await self._shown(door, name)
        partition = number % len(leaders)
        await self._read_from(leaders[partition], name, topic_id, partition, 0)

    async def _read_to_the_end(self, door: ClientDoor, name: str, topic_id: UUID, partition: int) -> None:
        position, end = 0, None
        while end != position:
            position = end or position
            end = None
            with suppress(*_NO_REPLY):
                leader = (await self._shown(door, name))[1][partition]
                end = await self._read_from(leader, name, topic_id, partition, position)
            if end is None:
                await asyncio.sleep(_RETRY_S)
        self._ledger.logs.check_end(self._ledger.place(name, topic_id, partition), position)

    async def _read_from(self, leader: BrokerDoor, name: str, topic_id: UUID, partition: int, start: int) -> int | None:
        """Read once. Returns the offset after the last record; None if the partition cannot be read now."""
        fetched = await fetch_from_id(leader, topic_id, partition, start)
        if fetched.error is not None:
            return None
        values = [(record.offset, record.value or b"") for record in fetched.records(start)]
        for _, value in values:
            self._ledger.check_record(topic_id, value)
        self._ledger.logs.read(self._ledger.place(name, topic_id, partition), start, values, fetched.high_watermark)
        return max((offset for offset, _ in values), default=start - 1) + 1

    async def _work(self, door: ClientDoor, name: str, number: int) -> None:
        subscription = self._ledger.newest_subscription()
        if subscription is not None:
            worker = self._worker(subscription)
            await worker.lease(door, number)
            await worker.settle_all(door)

    async def _drain(self, door: ClientDoor, subscription: str) -> None:
        worker = self._worker(subscription)
        while True:
            with suppress(*_NO_REPLY):
                if not await unsettled_count(door.any(), subscription):
                    break
                await worker.lease(door, 7)
                await worker.settle_all(door)
            await asyncio.sleep(_RETRY_S)
        self._ledger.of_subscription(subscription).check_drained()

    def _worker(self, subscription: str) -> ClusterWorker:
        if subscription not in self._workers:
            ledger = self._ledger.of_subscription(subscription)
            self._workers[subscription] = ClusterWorker(ledger, self._cluster, QUEUED, subscription)
        return self._workers[subscription]

    async def _check_delays(self, door: ClientDoor) -> None:
        """Check what delayed topics have forwarded: the present one everything, deleted ones what they could."""
        values = [value for number in range(PARTITIONS) for value in await self._forwarded(door, number)]
        if self._ledger.is_excused(DELAYED, DUE):
            return
        now_ms = self._cluster.latest_at(self._cluster.clock.steady_ms())
        present = self._cluster.tree.image.topics.get(DELAYED)
        for topic_id, delays in self._ledger.delays.items():
            if delays.due_ms.keys() & set(values):
                delays.check([value for value in values if value in delays.due_ms], now_ms)
            if present is not None and present.topic_id == topic_id:
                delays.check_all(values)

    async def _forwarded(self, door: ClientDoor, partition: int) -> list[bytes]:
        values: list[bytes] = []
        position = 0
        while True:
            try:
                fetched = await fetch(await door.leader((DUE, partition)), (DUE, partition), position)
            except _NO_REPLY:
                continue
            if fetched.error is not None:
                await asyncio.sleep(_RETRY_S)
                continue
            records = fetched.records(position)
            if not records:
                return values
            values += [record.value or b"" for record in records]
            position = records[-1].offset + 1

    async def _shown(self, door: ClientDoor, name: str) -> tuple[UUID, list[BrokerDoor]]:
        """Return the topic that has the name, and its leaders, as any broker shows them."""
        asked = door.any()
        shown = await show_topic(asked, name)
        leaders = [NodeId(leader) for _, (_, leader) in sorted(shown.leaders.items())]
        return shown.topic_id, [asked if leader < 0 else door.broker(leader) for leader in leaders]

    def _values(self, target: str, size: int) -> list[bytes]:
        numbers = range(self._count, self._count + size)
        self._count += size
        return [f"{target}|{number}".encode() for number in numbers]

    def _delays_of(self, topic_id: UUID) -> DelayLedger:
        return self._ledger.delays.setdefault(topic_id, DelayLedger())
