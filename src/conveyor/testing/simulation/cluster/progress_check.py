"""A check in the middle of a story: where enough of the cluster is sound, it makes progress.

Invariants, by the names that failures report:

    AcksKeepComing    a partition acknowledges records within a bound while it is whole: all running brokers are sound,
                      enough of them for `min.insync.replicas` have a replica, and one of these is in sync or eligible

A broker is sound if it serves, reaches the metadata store and the other running brokers, and its disk works. No new
fault begins while the check lasts, except its own: most checks kill one broker first.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from conveyor.broker.produce.publish import ACKS_ALL
from conveyor.kernel.ids import TopicPartition
from conveyor.records.record import encode_batch
from conveyor.testing.simulation.actors import LOG_TOPIC, PARTITIONS, publish
from conveyor.testing.simulation.cluster.fault_counts import FaultCounts
from conveyor.testing.simulation.cluster.simulated_cluster import SimulatedCluster
from conveyor.testing.simulation.ledger import InvariantBroken, LogLedger, Place
from conveyor.testing.simulation.simulated_broker import Disconnected
from conveyor.testing.simulation.story_schedule import Step

_BOUND_S = 8.0
"""Two to four seconds are usual after the death of a leader, and no more were seen in 350 checks."""
_PATIENCE_S = 10.0
"""How long faults may still last."""
_PAUSE_S = 0.2


class ProgressCheck:
    """See the module's docstring. lag_s: after which time a replica that is behind leaves the ISR."""

    def __init__(self, cluster: SimulatedCluster, ledger: LogLedger, counts: FaultCounts, lag_s: float) -> None:
        self.calm = asyncio.Event()
        """Set while faults may begin."""
        self.calm.set()
        self._cluster = cluster
        self._ledger = ledger
        self._counts = counts
        self._bound_s = _BOUND_S + lag_s
        self._sent = 0

    async def execute(self, step: Step) -> None:
        if not self.calm.is_set():
            return
        self._counts.note(step.action)
        self.calm.clear()
        try:
            async with self._one_killed(step.number):
                await asyncio.gather(*(self._wait_for_ack((LOG_TOPIC, number)) for number in range(PARTITIONS)))
        finally:
            self.calm.set()

    @asynccontextmanager
    async def _one_killed(self, number: int) -> AsyncIterator[None]:
        """Kill a broker, unless another fault has just done so, and start it again afterwards."""
        node_ids = sorted(self._cluster.brokers)
        async with self._cluster.control(node_ids[number % len(node_ids)]) as broker:
            if number // len(node_ids) % 4 and broker.is_ready:
                broker.crash()
            yield
            if not broker.is_running:
                await broker.start()

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
        while True:
            self._sent += 1
            value, broker = b"probe:%d" % self._sent, await self._cluster.leader(place)
            batch = encode_batch([(broker.clock.now_ms(), None, value, ())])
            try:
                (published,) = await publish(broker, place[0], [(place[1], batch)], ACKS_ALL)
            except Disconnected:
                published = None
            if published is not None and published.error is None:
                return self._ledger.acknowledge(place, published.base_offset, [value])
            await asyncio.sleep(_PAUSE_S)

    def _is_whole(self, place: Place) -> bool:
        identity, image = TopicPartition(*place), self._cluster.tree.image
        partition, topic = image.partition(*identity), image.topics.get(identity.topic)
        running = {node_id for node_id, broker in self._cluster.brokers.items() if broker.is_running}
        if partition is None or topic is None or self._cluster.replicas.is_excused(identity):
            return False
        if not all(self._cluster.is_sound(node_id, running) for node_id in running):
            return False
        holders = running & {*partition.replicas}
        needed = min(self._cluster.replicas.policies.of(topic).min_insync, partition.replication_factor)
        return len(holders) >= needed and not holders.isdisjoint((*partition.isr, *partition.elr))
