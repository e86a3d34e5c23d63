"""Faults of one broker's data directory: parts of it are lost, an older copy replaces it, it is cloned.

Each fault ends with the broker running on what is left of its data.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from conveyor.broker.partitions.log_directories import LOGS
from conveyor.kernel.ids import NodeId, TopicPartition
from conveyor.testing.memory_disk import MemoryDisk
from simulation.cluster.fault_counts import FaultCounts
from simulation.cluster.simulated_cluster import SimulatedCluster
from simulation.doors.client_network import Disconnected
from simulation.doors.kafka_requests import elect_leaders
from simulation.faults.clones import run_beside
from simulation.faults.cluster_faults import DAMAGED, duration_s
from simulation.simulated_broker import SimulatedBroker
from simulation.story_schedule import Step
from simulation.story_topics import DELAY_TOPIC, DUE_TOPIC

_ALL_LOGS_EACH = 4


class DataFaults:
    """Executes the faults of one broker's data directory, most of them unless a record would have no replica left."""

    def __init__(self, cluster: SimulatedCluster, node_id: NodeId, counts: FaultCounts) -> None:
        self._cluster = cluster
        self._node_id = node_id
        self._counts = counts
        self._actions: dict[str, Callable[[SimulatedBroker, int], Awaitable[None]]] = {
            "lose_logs": self._lose_logs,
            "lose_files": self._lose_file,
            "lose_delayed": self._lose_delayed,
            "drop_writes": self._drop_writes,
            "restore_copy": self._restore_copy,
            "clone": self._clone,
        }

    async def execute(self, step: Step) -> None:
        async with self._cluster.control(self._node_id) as broker:
            if broker.is_ready:
                self._counts.note(step.action)
                await self._actions[step.action](broker, step.number)

    async def _lose_logs(self, broker: SimulatedBroker, number: int) -> None:
        """Remove the directory of a partition; every fourth time, those of all partitions."""
        logs = self._logs(broker)
        chosen = list(logs) if number % _ALL_LOGS_EACH == 0 else _chosen(list(logs), number)
        await self._end(broker, number)
        if self._may_lose([logs[name] for name in chosen]):
            for name in chosen:
                broker.disk.remove_tree(f"{LOGS}/{name}")
        await self._begin(broker, number)

    async def _lose_file(self, broker: SimulatedBroker, number: int) -> None:
        """Remove one file of the directory of a partition that is on the disk.

        No other file proves one that was never flushed, except `replica-checkpoint` some seconds later.
        """
        logs = self._logs(broker)
        chosen = _chosen(list(logs), number)
        await self._end(broker, number)
        if self._may_lose([logs[name] for name in chosen], is_certain=False):
            for name in chosen:
                paths = [path for path in broker.disk.paths() if path.rpartition("/")[0] == f"{LOGS}/{name}"]
                synced = [path for path in paths if _is_synced(broker.disk, path)]
                for file in _chosen(synced, number // 256):
                    broker.disk.remove(file)
        await self._begin(broker, number)

    async def _lose_delayed(self, broker: SimulatedBroker, number: int) -> None:
        """Remove the log of the delayed topic, but not its forwarder's state, from the only broker. An operator gives
        the records up. Only directed stories have this.
        """
        lost = [identity for identity in self._logs(broker).values() if identity.topic == DELAY_TOPIC]
        await self._end(broker, number)
        self._cluster.replicas.lose_logs(self._cluster.loss(self._node_id), lost)
        for identity in lost:
            broker.disk.remove_tree(f"{LOGS}/{identity.topic}-{identity.partition}")
        await self._begin(broker, number)
        door, places = self._cluster.clients.client("operator"), [(DUE_TOPIC, one.partition) for one in lost]
        with contextlib.suppress(Disconnected):
            await elect_leaders(door.any(), places, is_unclean=True)

    async def _drop_writes(self, broker: SimulatedBroker, number: int) -> None:
        """Let the disk be slow, then have no room for a moment when it writes back. The broker opens its logs again.
        Only directed stories have this.
        """
        self._cluster.replicas.note_failing_disk(self._node_id)
        self._cluster.lose_refused(self._node_id)
        broker.disk.faults.drops_writes = True
        slow_s = duration_s(number) / 20
        broker.hang_threads(slow_s)
        await asyncio.sleep(slow_s + 0.05)
        broker.disk.faults.heal()

    async def _restore_copy(self, broker: SimulatedBroker, number: int) -> None:
        """Copy the data directory, register again, and start with the copy some time later.

        A copy that is put back within one registration would look like the disk after a power cut.
        """
        await self._end(broker, number)
        copy = broker.disk.process_crash()
        await broker.start()
        await asyncio.sleep(duration_s(number * 7 % (1 << 16)))
        if not self._cluster.replicas.may_be_wiped(self._node_id):
            return
        self._cluster.replace_disk(self._node_id, copy, has_power=number % 4 < 2)
        await asyncio.sleep(0 if number % 8 < 4 else duration_s(number))
        await broker.start()

    async def _clone(self, broker: SimulatedBroker, number: int) -> None:
        clone = self._cluster.clone(self._node_id, self._counts.happened["clone"], is_elsewhere=number % 2 == 0)
        await run_beside(broker, clone, self._cluster)

    async def _end(self, broker: SimulatedBroker, number: int) -> None:
        """Stop the broker cleanly, or kill it."""
        if number % 2:
            await broker.stop()
        else:
            broker.crash()

    def _may_lose(self, lost: list[TopicPartition], *, is_certain: bool = True) -> bool:
        """Return whether the broker, which does not run, may lose these logs now. The loss is noted.

        is_certain: otherwise it may do without what is lost.
        """
        replicas = self._cluster.replicas
        if not replicas.may_be_wiped(self._node_id, lost):
            return False
        replicas.lose_logs(self._cluster.loss(self._node_id)._replace(is_certain=is_certain), lost)
        return True

    async def _begin(self, broker: SimulatedBroker, number: int) -> None:
        """Start the broker, once there is room for copies of damaged logs, as an operator does."""
        for name in broker.disk.list(LOGS):
            if name.endswith(DAMAGED):
                broker.disk.remove_tree(f"{LOGS}/{name}")
        await asyncio.sleep(duration_s(number) if number % 4 < 2 else 0)
        await broker.start()

    def _logs(self, broker: SimulatedBroker) -> dict[str, TopicPartition]:
        """Return the logs that the broker serves, by the names of their directories."""
        inside = broker.node
        identities = () if inside is None else (partition.identity for partition in inside.partitions.table)
        return {f"{identity.topic}-{identity.partition}": identity for identity in sorted(identities)}


def _is_synced(disk: MemoryDisk, path: str) -> bool:
    with disk.faults.observed():
        return disk.open(path).synced_bytes > 0


def _chosen(names: list[str], number: int) -> list[str]:
    """Return one of the names, if there are any."""
    return [names[number % len(names)]] if names else []
