"""Clients of a queue with key order, and their end.

produce     a few messages with keys, to one partition
lease       lease messages for a short time
settle      ack some of the leases, or nack them
ack_late    ack the leases that have expired by now, and have them accepted
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from conveyor.kernel.errors import RequestError
from conveyor.kernel.ids import TopicPartition
from conveyor.records.record import encode_batch
from simulation.clients.cluster_queue import ClusterWorker
from simulation.clients.keys.ordered_keys_ledger import OrderedKeysLedger
from simulation.cluster.fault_counts import FaultCounts
from simulation.cluster.simulated_cluster import SimulatedCluster
from simulation.doors.client_door import ClientDoor
from simulation.doors.client_network import Disconnected
from simulation.doors.kafka_requests import publish
from simulation.doors.rest_requests import ClientLease, unsettled_count
from simulation.story_schedule import Step
from simulation.story_topics import PARTITIONS
from simulation.troubles import ORDERED_TOPIC

ORDERED_SUBSCRIPTION = "ordered-workers"
"""The subscription of ORDERED_TOPIC, which is created before the story begins."""
ORDERED_POLICY = {"ordering": "key", "max_in_flight_per_key": 3}
_KEYS = "ab"
_NO_REPLY = (Disconnected, RequestError)
_DRAIN_EACH_S = 0.5
_VISIBILITY_STEP = 20_000
"""A worker asks for a visibility timeout of 1 s and what is left of the number by this."""


class OrderedKeysClients:
    """See the module's docstring. clients: by the name of the actor."""

    def __init__(self, cluster: SimulatedCluster, counts: FaultCounts) -> None:
        self._cluster = cluster
        self._ledger = OrderedKeysLedger(self._is_excused, cluster.latest_at)
        self._last = OrderedKeysWorker(self._ledger, cluster, counts)
        self.clients: dict[str, OrderedKeysPublisher | OrderedKeysWorker] = {
            "keys-publisher": OrderedKeysPublisher(self._ledger),
            "keys-worker-1": OrderedKeysWorker(self._ledger, cluster, counts),
            "keys-worker-2": OrderedKeysWorker(self._ledger, cluster, counts),
        }

    async def check_the_end(self, door: ClientDoor) -> None:
        """Drain the queue. All brokers run."""
        while True:
            with suppress(*_NO_REPLY):
                if not await unsettled_count(door.any(), ORDERED_SUBSCRIPTION):
                    return self._ledger.check_drained()
            await self._last.lease(door, 7)
            await self._last.ack_all(door)
            await asyncio.sleep(_DRAIN_EACH_S)

    def _is_excused(self) -> bool:
        replicas = self._cluster.replicas
        return any(replicas.is_excused(TopicPartition(ORDERED_TOPIC, number)) for number in range(PARTITIONS))


class OrderedKeysPublisher:
    """Publishes messages with keys; see the module's docstring. It sends each once."""

    def __init__(self, ledger: OrderedKeysLedger) -> None:
        self._ledger = ledger
        self._count = 0

    async def execute(self, step: Step, door: ClientDoor) -> None:
        partition, size = step.number % PARTITIONS, 1 + step.number // PARTITIONS % 6
        keys = [_KEYS[(step.number >> 4 + index) % len(_KEYS)] for index in range(size)]
        now_ms = door.clock.now_ms()
        values = [(key, f"{key}:{self._count + index}") for index, key in enumerate(keys)]
        batch = encode_batch([(now_ms, key.encode(), value.encode(), ()) for key, value in values])
        self._count += size
        try:
            broker = await door.leader((ORDERED_TOPIC, partition))
            (published,) = await publish(broker, ORDERED_TOPIC, [(partition, batch)])
        except Disconnected:
            return
        if published.error is None:
            self._ledger.publish(partition, published.base_offset, keys)


class OrderedKeysWorker:
    """Processes messages; see the module's docstring."""

    def __init__(self, ledger: OrderedKeysLedger, cluster: SimulatedCluster, counts: FaultCounts) -> None:
        self._ledger = ledger
        self._cluster = cluster
        self._counts = counts
        self._worker = ClusterWorker(ledger, cluster, ORDERED_TOPIC, ORDERED_SUBSCRIPTION)
        self._leases: list[ClientLease] = []

    async def execute(self, step: Step, door: ClientDoor) -> None:
        if step.action == "lease":
            return await self.lease(door, step.number % 1_500 + step.number % 7 * _VISIBILITY_STEP)
        if step.action == "ack_late":
            return await self._ack_late(door)
        count = 1 + step.number % 4
        chosen, self._leases = self._leases[:count], self._leases[count:]
        if step.number % 3:
            await self._ack(door, chosen)
        else:
            await self._worker.settle(door, "nack", chosen, delay=f"{step.number % 500}ms")

    async def lease(self, door: ClientDoor, number: int) -> None:
        """Lease a few messages."""
        if await self._worker.lease(door, number):
            leases = self._worker.take_all()
            self._ledger.response(leases)
            self._leases += leases
            if len({lease.payload[0] for lease in leases}) < len(leases):
                self._counts.note("batches of a key leased")

    async def ack_all(self, door: ClientDoor) -> None:
        """Ack all current leases."""
        chosen, self._leases = self._leases, []
        await self._ack(door, chosen)

    async def _ack_late(self, door: ClientDoor) -> None:
        now_ms = self._now_ms()
        chosen = [lease for lease in self._leases if self._ends_ms(lease) < now_ms]
        self._leases = [lease for lease in self._leases if lease not in chosen]
        for lease in await self._ack(door, chosen, accept_late=True):
            self._counts.note("late acks accepted")
            self._ledger.late_ack(lease, now_ms)

    async def _ack(self, door: ClientDoor, chosen: Sequence[ClientLease], **fields: object) -> list[ClientLease]:
        """Returns the leases whose acks were confirmed."""
        self._ledger.begin_ack(chosen)
        return await self._worker.ack(door, chosen, **fields)

    def _ends_ms(self, lease: ClientLease) -> int:
        return self._ledger.leases_of(lease.message_id)[lease.ack_id].ends_ms[1]

    def _now_ms(self) -> int:
        return self._cluster.clock.steady_ms()
