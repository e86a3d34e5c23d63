"""The faults of a simulated cluster: of one broker, of the network, of all machines at once.

Each fault ends after a time that the number of its step determines, and its broker starts again. Most faults are short.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from itertools import permutations

from conveyor.broker.partitions.log_directories import LOGS
from conveyor.kernel.ids import NodeId, TopicPartition
from conveyor.testing.memory_disk import MemoryDisk
from simulation.cluster.fault_counts import FaultCounts
from simulation.cluster.simulated_cluster import SimulatedCluster
from simulation.simulated_broker import SimulatedBroker
from simulation.story_schedule import Step

DAMAGED = ".damaged"
_LONGEST_S = 9.0
_NUMBERS = 1 << 16


def duration_s(number: int) -> float:
    """Return how long the fault of a step lasts: every other one less than a quarter of the longest."""
    return _LONGEST_S * (number / _NUMBERS) ** 2


class BrokerFaults:
    """Executes the faults of one broker."""

    def __init__(self, cluster: SimulatedCluster, node_id: NodeId, counts: FaultCounts) -> None:
        self._cluster = cluster
        self._node_id = node_id
        self._counts = counts
        self._actions: dict[str, Callable[[SimulatedBroker, int], Awaitable[None]]] = {
            "crash": self._crash,
            "cut_power": self._cut_power,
            "cut_power_within": self._cut_power_within,
            "restart": self._restart,
            "pause": self._pause,
            "wipe": self._wipe,
            "hang_disk": self._hang_disk,
            "fail_syncs": self._fail_syncs,
            "fail_appends": self._fail_appends,
            "fill_disk": self._fill_disk,
            "fail_renames": self._fail_renames,
        }

    async def execute(self, step: Step) -> None:
        async with self._cluster.control(self._node_id) as broker:
            if broker.is_ready:
                self._counts.note(step.action)
                await self._actions[step.action](broker, step.number)

    async def _crash(self, broker: SimulatedBroker, number: int) -> None:
        """Kill the process; every other time it is back before anybody can have noticed."""
        broker.crash()
        await asyncio.sleep(0 if number % 2 else duration_s(number))
        await broker.start()

    async def _cut_power(self, broker: SimulatedBroker, number: int) -> None:
        broker.cut_power()
        await asyncio.sleep(duration_s(number))
        await broker.start()

    async def _cut_power_within(self, broker: SimulatedBroker, number: int) -> None:
        """Cut the power in the middle of the broker's disk operations, after a number of them."""
        died = asyncio.Event()
        broker.cut_power_after(number % 200, died.set)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                await died.wait()
        if not died.is_set():
            broker.cut_power()
        await asyncio.sleep(duration_s(number))
        await broker.start()

    async def _restart(self, broker: SimulatedBroker, number: int) -> None:
        """Stop cleanly; every third time the power is cut soon after the start, before new records are flushed."""
        await broker.stop()
        await asyncio.sleep(duration_s(number))
        await broker.start()
        if number % 3 == 0:
            await asyncio.sleep(number % 1_000 / 1_000)
            await self._cut_power(broker, number)

    async def _wipe(self, broker: SimulatedBroker, number: int) -> None:
        """Replace the machine by a new one, if the records of all partitions survive that."""
        if not self._cluster.replicas.may_be_wiped(self._node_id):
            return
        self._counts.note("disk lost")
        self._cluster.wipe(self._node_id)
        await asyncio.sleep(0 if number % 2 else duration_s(number))
        await broker.start()

    async def _hang_disk(self, broker: SimulatedBroker, number: int) -> None:
        broker.hang_threads(duration_s(number))

    async def _pause(self, broker: SimulatedBroker, number: int) -> None:
        broker.pause()
        await asyncio.sleep(duration_s(number))
        broker.resume()

    async def _fail_syncs(self, broker: SimulatedBroker, number: int) -> None:
        await self._fail(broker, "sync", number)

    async def _fail_appends(self, broker: SimulatedBroker, number: int) -> None:
        await self._fail(broker, "append", number)

    async def _fail_renames(self, broker: SimulatedBroker, number: int) -> None:
        """Let deleted topics keep the names of their directories until topics of these names are created again."""
        await self._fail(broker, "rename", number)

    async def _fail(self, broker: SimulatedBroker, operation: str, number: int) -> None:
        """Take partitions offline by a disk fault, then heal the disk and restart the broker."""
        self._cluster.replicas.note_failing_disk(self._node_id)
        broker.disk.faults.fail(operation)
        await asyncio.sleep(duration_s(number) / 3)
        if operation == "sync":
            self._cluster.lose_refused(self._node_id)
        await self._replace(broker)

    async def _fill_disk(self, broker: SimulatedBroker, number: int) -> None:
        self._cluster.replicas.note_failing_disk(self._node_id)
        broker.disk.faults.free_bytes = number % 2_000
        await asyncio.sleep(duration_s(number) / 3)
        await self._replace(broker)

    async def _replace(self, broker: SimulatedBroker) -> None:
        broker.disk.faults.heal()
        broker.crash()
        self._make_room(broker.disk)
        await broker.start()

    def _make_room(self, disk: MemoryDisk) -> None:
        """Make room for copies of the logs that have lost records, as an operator does. The broker needs no copy of
        others: they have all that it has reported.
        """
        for name in disk.list(LOGS):
            topic, _, number = name.removesuffix(DAMAGED).rpartition("-")
            if name.endswith(DAMAGED) and self._cluster.replicas.has_lost(
                self._node_id, TopicPartition(topic, int(number))
            ):
                self._counts.note("damaged log removed")
                disk.remove_tree(f"{LOGS}/{name}")


class NetworkFaults:
    """Executes the faults of the network between the brokers."""

    def __init__(self, cluster: SimulatedCluster, counts: FaultCounts) -> None:
        self._cluster = cluster
        self._counts = counts
        self._pairs = list(permutations(cluster.brokers, 2))

    async def isolate(self, node_id: NodeId, number: int) -> None:
        """Cut all connections between a broker and the other brokers for a while."""
        place = next(place for place, pair in enumerate(self._pairs) if pair[0] == node_id)
        number = min(number, _NUMBERS - len(self._pairs))
        await self.execute(Step(0, "network", "isolate", number - number % len(self._pairs) + place))

    async def execute(self, step: Step) -> None:
        self._counts.note(step.action)
        pairs = self._pairs
        first, second = pairs[step.number % len(pairs)]
        if step.action == "reset":
            return self._cluster.switch.reset(first, second)
        cuts = {
            "cut_one_way": [(first, second)],
            "cut_both_ways": [(first, second), (second, first)],
            "isolate": [pair for pair in pairs if first in pair],
        }[step.action]
        for pair in cuts:
            self._cluster.switch.cut(*pair)
        await asyncio.sleep(duration_s(step.number))
        self._cluster.switch.heal(*cuts)


class MachineFaults:
    """Executes the faults of all machines at once."""

    def __init__(self, cluster: SimulatedCluster, counts: FaultCounts) -> None:
        self._cluster = cluster
        self._counts = counts

    async def execute(self, step: Step) -> None:
        """Cut the power of all machines, once no other fault is in progress."""
        self._counts.note(step.action)
        async with self._cluster.control_all() as brokers:
            for broker in brokers:
                broker.cut_power()
            await asyncio.sleep(step.number % 3_000 / 1000)
            starts = [self._start_later(broker, step.number >> place) for place, broker in enumerate(brokers)]
            await asyncio.gather(*starts)

    async def _start_later(self, broker: SimulatedBroker, number: int) -> None:
        await asyncio.sleep(number % 3_000 / 1000)
        await broker.start()
