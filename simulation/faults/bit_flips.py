"""One bit of one file of a broker's data directory changes while the broker does not run.

The broker finds the damage when it starts, when it uses the file, or never. Nothing that was acknowledged is lost, and
no record is read with other bytes than were written: all other invariants hold. What is promised for logs, too:

    - A flip within a sealed segment may stay unnoticed until somebody reads the batch. Clients and followers compare
      checksums, so they get no further then; queues and forwarders compare them, too, and take the partition offline.
      After some seconds an operator removes the partition's directory, and the broker copies the log again.
    - A broker that finds a damaged file, and is the last member of an ISR, stays there, offline. The operator restores
      the file then.
    - Two fields of a batch are never changed: its base offset and its leader epoch, over which Kafka's format has no
      checksum. Nor is the last batch of a segment that was not sealed: a start takes it for an interrupted write.
"""

import asyncio
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from conveyor.broker.partitions.log_directories import LOGS
from conveyor.kernel.ids import NodeId, TopicPartition
from conveyor.records.batch import HEADER_BYTES, read_header
from conveyor.testing.memory_disk import MemoryDisk
from simulation.cluster.fault_counts import FaultCounts
from simulation.cluster.simulated_cluster import SimulatedCluster
from simulation.faults.cluster_faults import duration_s
from simulation.simulated_broker import SimulatedBroker
from simulation.story_schedule import Step

_ASIDE = (".damaged", ".stray", ".deleted")
_CUT, _SEGMENT = "cut-", ".log"
_UNCHECKED = (*range(8), *range(12, 16))
"""The bytes of a batch's header over which there is no checksum, and by which nothing else is wrong."""


class _Flip(NamedTuple):
    """A file before and after its damage. partition: None for a file of the whole broker."""

    path: str
    partition: TopicPartition | None
    before: bytes
    after: bytes


class BitFlips:
    """Flips bits in the files of one broker, unless a record would have no intact replica left."""

    def __init__(self, cluster: SimulatedCluster, node_id: NodeId, counts: FaultCounts) -> None:
        self._cluster = cluster
        self._node_id = node_id
        self._counts = counts

    async def execute(self, step: Step) -> None:
        async with self._cluster.control(self._node_id) as broker:
            if broker.is_ready:
                self._counts.note(step.action)
                await self._flip(broker, step.number)

    async def _flip(self, broker: SimulatedBroker, number: int) -> None:
        inside = broker.node
        served = () if inside is None else sorted(partition.identity for partition in inside.partitions.table)
        names = {f"{identity.topic}-{identity.partition}": identity for identity in served}
        await self._end(broker, number)
        flip = self._changed(broker.disk, names, number)
        _remove_copies(broker.disk)
        await asyncio.sleep(duration_s(number) if number % 4 < 2 else 0)
        await broker.start()
        if flip is None or flip.partition is None:
            return
        await asyncio.sleep(duration_s(number * 7 % (1 << 16)))
        if self._cluster.replicas.is_rotten(self._node_id, flip.partition):
            await self._replace(broker, flip.partition, number)
        elif broker.node is not None and broker.node.partitions.table.offline_reason(*flip.partition) is not None:
            await self._restore(broker, flip, number)

    async def _end(self, broker: SimulatedBroker, number: int) -> None:
        """Stop the broker cleanly, or kill it."""
        if number % 2:
            await broker.stop()
        else:
            broker.crash()

    def _changed(self, disk: MemoryDisk, names: dict[str, TopicPartition], number: int) -> _Flip | None:
        """Change a bit of a file; each kind is as likely as any other. Returns None if no file may be damaged now."""
        chance, kinds = Random(f"flip {number}"), dict[str, list[str]]()
        for path in disk.paths():
            folder, name = path.split("/")[1:2], path.rpartition("/")[2]
            if not folder or (folder[0] in names and f"/{_CUT}" not in path):
                kinds.setdefault(name.rpartition(".")[2], []).append(path)
        if not kinds:
            return None
        path = chance.choice(kinds[chance.choice(sorted(kinds))])
        places = list(_places(disk, path))
        partition = names.get(path.split("/")[1]) if path.startswith(f"{LOGS}/") else None
        if not places or not self._may_lose(partition, is_of_segment=path.endswith(_SEGMENT)):
            return None
        before = disk.read(path)
        disk.flip(path, chance.choice(places), chance.randrange(8))
        self._counts.note(f"flipped {path.rpartition('/')[2].rpartition('.')[2]}")
        return _Flip(path, partition, before, disk.read(path))

    def _may_lose(self, partition: TopicPartition | None, *, is_of_segment: bool) -> bool:
        """Return whether there is another intact replica of what may be damaged. The damage is noted."""
        replicas, lost = self._cluster.replicas, None if partition is None else [partition]
        if not replicas.may_be_wiped(self._node_id, lost):
            return False
        if partition is not None and is_of_segment:
            replicas.note_rot(self._node_id, partition)
        else:
            replicas.lose_logs(self._cluster.loss(self._node_id)._replace(is_certain=False), lost)
        return True

    async def _replace(self, broker: SimulatedBroker, rotten: TopicPartition, number: int) -> None:
        """Remove the directory of a partition. The broker copies it again."""
        await self._end(broker, number // 2)
        self._cluster.replicas.replace(self._cluster.loss(self._node_id), rotten)
        self._counts.note("damaged log replaced")
        broker.disk.remove_tree(f"{LOGS}/{rotten.topic}-{rotten.partition}")
        _remove_copies(broker.disk)
        await broker.start()

    async def _restore(self, broker: SimulatedBroker, flip: _Flip, number: int) -> None:
        """Restore a file of a partition that is offline, as its reason says. The last member of an ISR needs this."""
        await self._end(broker, number // 2)
        if broker.disk.exists(flip.path) and broker.disk.read(flip.path) == flip.after:
            self._counts.note("damaged file restored")
            broker.disk.write_atomic(flip.path, flip.before)
        await broker.start()


def _places(disk: MemoryDisk, path: str) -> Iterator[int]:
    """Yield the positions of a file that may change."""
    content = disk.read(path)
    if not path.endswith(_SEGMENT):
        yield from range(len(content))
        return
    is_sealed, start = disk.exists(f"{path.removesuffix(_SEGMENT)}.seal"), 0
    while start + HEADER_BYTES <= len(content):
        end = start + read_header(content, start).size
        if end < len(content) or (end == len(content) and is_sealed):
            yield from (position for position in range(start, end) if position - start not in _UNCHECKED)
        start = end


def _remove_copies(disk: MemoryDisk) -> None:
    """Make room for copies of damaged logs, as an operator does."""
    for name in disk.list(LOGS):
        if name.endswith(_ASIDE):
            disk.remove_tree(f"{LOGS}/{name}")
