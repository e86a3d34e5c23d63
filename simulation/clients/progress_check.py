"""A check in the middle of a story: where enough of the cluster is sound, it makes progress.

Invariants, by the names that failures report:

    AcksKeepComing    a partition acknowledges records within a bound while it is whole: a majority of the brokers is
                      sound, and the others are away; enough of the sound ones for `min.insync.replicas` have a replica,
                      and one of these is in sync or eligible

A broker is sound if it serves, reaches the metadata store and the other sound brokers, and its disk works. It is away
if the others must soon do without it: it is dead, paused or cut off, or its disk does not answer. A broker that reaches
the store, but no other broker, leads on, as in Kafka. No new fault begins while the check lasts, except its own: most
checks let one broker be away.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import cycle, permutations

from conveyor.kernel.ids import NodeId, TopicPartition
from conveyor.records.record import encode_batch
from simulation.cluster.fault_counts import FaultCounts
from simulation.cluster.machines import SESSION_TIMEOUT_MS
from simulation.cluster.simulated_cluster import SimulatedCluster
from simulation.doors.client_network import Disconnected
from simulation.doors.kafka_requests import publish
from simulation.ledger import InvariantBroken, LogLedger, Place
from simulation.story_schedule import Step
from simulation.story_topics import LOG_TOPIC, PARTITIONS
from simulation.troubles import STALL_TIMEOUT_MS

_BOUND_S = 5.0
"""Two to four seconds are usual after the death of a leader. A broker that is away without being dead adds the time
until that is noticed. In 90 checks a bound that was five seconds lower was enough.
"""
_LONGEST_S = 60.0
"""The disk of a broker hangs this long, unless the check ends earlier."""
_PATIENCE_S = 10.0
"""Faults may last this long during the check."""
_PAUSE_S = 0.2
_ATTEMPT_S = 2.0
"""A client waits this long for a reply: a broker that is away gives none."""
_WAYS = ("none", "crash", "crash", "pause", "cut_off", "hang")
"""The ways in which a check lets a broker be away."""


class ProgressCheck:
    """See the module's docstring. lag_s: after which time a replica that is behind leaves the ISR."""

    def __init__(self, cluster: SimulatedCluster, ledger: LogLedger, counts: FaultCounts, lag_s: float) -> None:
        self.calm = asyncio.Event()
        """Set while faults may begin."""
        self.calm.set()
        self._cluster = cluster
        self._ledger = ledger
        self._counts = counts
        self._bound_s = _BOUND_S + lag_s + (SESSION_TIMEOUT_MS + STALL_TIMEOUT_MS) / 1000
        self._sent = 0
        self._doors = [cluster.clients.client(f"prober {number}") for number in range(PARTITIONS)]

    async def execute(self, step: Step) -> None:
        if not self.calm.is_set():
            return
        self._counts.note(step.action)
        self.calm.clear()
        try:
            async with self._one_away(step.number):
                await asyncio.gather(*(self._wait_for_ack((LOG_TOPIC, number)) for number in range(PARTITIONS)))
        finally:
            self.calm.set()

    @asynccontextmanager
    async def _one_away(self, number: int) -> AsyncIterator[None]:
        """Let a broker be away, unless another fault has just killed it, and let it return afterwards."""
        node_ids = sorted(self._cluster.brokers)
        node_id, way = node_ids[number % len(node_ids)], _WAYS[number // len(node_ids) % len(_WAYS)]
        async with self._cluster.control(node_id) as broker:
            if broker.is_ready:
                self._send_away(node_id, way)
            yield
            broker.hang_threads(0)
            broker.resume()
            self._cluster.switch.heal(*self._cuts(node_id))
            self._cluster.machines[node_id].session.regain_contact("cut off")
            if not broker.is_running:
                await broker.start()

    def _send_away(self, node_id: NodeId, way: str) -> None:
        broker = self._cluster.brokers[node_id]
        self._counts.note(f"{way} in the middle")
        if way == "crash":
            broker.crash()
        elif way == "pause":
            broker.pause()
        elif way == "hang":
            broker.hang_threads(_LONGEST_S)
        elif way == "cut_off":
            self._cluster.machines[node_id].session.lose_contact("cut off")
            for cut in self._cuts(node_id):
                self._cluster.switch.cut(*cut)

    def _cuts(self, node_id: NodeId) -> list[tuple[NodeId, NodeId]]:
        """Return the ways between a broker and all others."""
        return [pair for pair in permutations(self._cluster.brokers, 2) if node_id in pair]

    async def _wait_for_ack(self, place: Place) -> None:
        """Return once a partition has acknowledged a record, or can hardly be expected to."""
        loop = asyncio.get_running_loop()
        acknowledged = asyncio.ensure_future(self._publish(place))
        whole_s = broken_s = loop.time()
        try:
            while not acknowledged.done() and broken_s - whole_s < _PATIENCE_S:
                await asyncio.sleep(_PAUSE_S)
                if not self._is_whole(place):
                    broken_s = loop.time()
                    continue
                whole_s = loop.time()
                if whole_s - broken_s > self._bound_s:
                    image = self._cluster.tree.image.partition(*place)
                    detail = f"{place} has acknowledged nothing for {self._bound_s} s: {image}"
                    raise InvariantBroken("AcksKeepComing", detail)
            if acknowledged.done():
                acknowledged.result()
                self._counts.note("acknowledged in the middle")
        finally:
            acknowledged.cancel()

    async def _publish(self, place: Place) -> None:
        """Send records until one is acknowledged."""
        door = self._doors[place[1]]
        for asked in cycle(self._cluster.brokers):
            self._sent += 1
            value = b"probe:%d" % self._sent
            with suppress(Disconnected, TimeoutError):
                async with asyncio.timeout(_ATTEMPT_S):
                    broker = await door.leader(place, door.broker(asked))
                    batch = encode_batch([(broker.clock.now_ms(), None, value, ())])
                    (published,) = await publish(broker, place[0], [(place[1], batch)])
                if published.error is None:
                    self._ledger.acknowledge(place, published.base_offset, [value])
                    return
            await asyncio.sleep(_PAUSE_S)

    def _is_whole(self, place: Place) -> bool:
        identity, image = TopicPartition(*place), self._cluster.tree.image
        partition, topic = image.partition(*identity), image.topics.get(identity.topic)
        present = {node_id for node_id in self._cluster.brokers if not self._cluster.is_away(node_id)}
        if partition is None or topic is None or self._cluster.replicas.is_excused(identity):
            return False
        is_majority = len(present) > len(self._cluster.brokers) // 2
        if not is_majority or not all(self._cluster.is_sound(node_id, present) for node_id in present):
            return False
        holders = present & {*partition.replicas}
        needed = min(self._cluster.replicas.policies.of(topic).min_insync, partition.replication_factor)
        return len(holders) >= needed and not holders.isdisjoint((*partition.isr, *partition.elr))
