"""The partitions that this broker holds, by name, and why some are not served. Only the reconciler changes the table.

After a failure has passed, the partition is reopened as another `Partition`.
"""

import asyncio
import logging
from collections.abc import Collection, Iterator
from concurrent.futures import Executor
from typing import NamedTuple

from conveyor.broker.metadata.metadata import Metadata
from conveyor.broker.partitions.disk_room import DiskRoom
from conveyor.cluster.image import TopicImage, is_companion
from conveyor.kernel.errors import ErrorKind, NotLeader, Remedy, RequestError, StorageFailure, remedy_of
from conveyor.kernel.ids import TopicPartition
from conveyor.kernel.signal import Signal
from conveyor.replication.partition import Partition

log = logging.getLogger(__name__)


class _Unopened(NamedTuple):
    """The reason why a log could not be opened. The exception is not kept: its traceback would keep files open."""

    reason: str
    remedy: Remedy


class PartitionTable:
    """All partitions of this broker, by (topic, number). went_offline: a partition has failed."""

    def __init__(self, metadata: Metadata, room: DiskRoom) -> None:
        self.went_offline: Signal[StorageFailure] = Signal()
        self._metadata = metadata
        self._room = room
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._unopened: dict[tuple[str, int], _Unopened] = {}

    def __len__(self) -> int:
        return len(self._partitions)

    def __iter__(self) -> Iterator[Partition]:
        """Iterate over the partitions of this moment, while others may be removed."""
        return iter(list(self._partitions.values()))

    def find(self, topic: str, number: int) -> Partition:
        """Return a partition. Raises RequestError: UNKNOWN_TOPIC, PARTITION_OFFLINE, NOT_LEADER."""
        partition = self._partitions.get((topic, number))
        if partition is None:
            raise self._missing(topic, number)
        return partition

    def get(self, topic: str, number: int) -> Partition | None:
        """Return the partition if it was opened; it may be offline."""
        return self._partitions.get((topic, number))

    def log_sizes(self, wanted: Collection[tuple[str, int]] | None) -> list[tuple[TopicPartition, int]]:
        """Return the bytes in the segments of the requested partitions, or of all for None, online or offline."""
        return [
            (partition.identity, partition.log.segments.size_bytes)
            for partition in self
            if wanted is None or partition.identity in wanted
        ]

    def find_for_producer(self, topic: str, number: int) -> Partition:
        """Return a partition to append a producer's records to. Raises RequestError: as `find`, DISK_FULL."""
        partition = self.find(topic, number)
        if self._room.is_low:
            raise RequestError(ErrorKind.DISK_FULL, self._room.explanation)
        return partition

    def offline_reason(self, topic: str, number: int) -> str | None:
        """Return why a partition is not served; None if it is served."""
        partition = self._partitions.get((topic, number))
        if partition is not None:
            return partition.offline.reason
        unopened = self._unopened.get((topic, number))
        return None if unopened is None else unopened.reason

    def unopened(self, topic: str, number: int) -> str | None:
        """Return why a partition could not be opened since the broker's start; None if it was opened."""
        unopened = self._unopened.get((topic, number))
        return None if unopened is None else unopened.reason

    def is_empty(self, topic: TopicImage) -> bool:
        """Return whether all partitions of a topic are here and online, and never had a record."""
        partitions = [self._partitions.get((topic.name, number)) for number in range(len(topic.partitions))]
        return all(partition is not None and partition.log.log_end_offset == 0 for partition in partitions)

    def offline(self) -> dict[str, str]:
        """Return every partition that is not served, with the reason."""
        failed = {
            str(partition.identity): partition.offline.reason
            for partition in self
            if partition.offline.reason is not None
        }
        return failed | {str(TopicPartition(*key)): entry.reason for key, entry in self._unopened.items()}

    def failed(self) -> list[TopicPartition]:
        """Return every partition that is not served."""
        failed = [partition.identity for partition in self if partition.offline.reason is not None]
        return failed + [TopicPartition(*key) for key in self._unopened]

    def returning(self) -> list[TopicPartition]:
        """Return the partitions that can be reopened because their failure may have passed. Companions come first."""
        failed = [partition.identity for partition in self if partition.offline.remedy is Remedy.REOPEN]
        failed += [TopicPartition(*key) for key, entry in self._unopened.items() if entry.remedy is Remedy.REOPEN]
        return sorted(failed, key=lambda identity: not is_companion(identity.topic))

    def damaged(self) -> list[TopicPartition]:
        """Return the partitions whose logs cannot be used again, and could be copied from other replicas."""
        damaged = [partition.identity for partition in self if partition.offline.remedy is Remedy.COPY]
        return damaged + [TopicPartition(*key) for key, entry in self._unopened.items() if entry.remedy is Remedy.COPY]

    def incomplete(self) -> list[TopicPartition]:
        """Return the partitions whose logs may lack batches that other replicas have: those that are damaged, that
        could not be opened, so that this is unknown, or whose recovery has removed batches.
        """
        unopened = [TopicPartition(*key) for key in self._unopened]
        opened = [
            partition
            for partition in self
            if partition.offline.remedy is Remedy.COPY or partition.log.recovered.lacks_batches
        ]
        return unopened + [partition.identity for partition in opened]

    def is_diverged(self, topic: str, number: int) -> bool:
        """Return whether a partition has committed records that its leader lacks."""
        partition = self._partitions.get((topic, number))
        return partition is not None and partition.offline.is_diverged

    def may_return(self, topic: str, number: int) -> bool:
        """Return whether an offline partition may be reopened."""
        return self._remedy(topic, number) is Remedy.REOPEN

    def may_recreate(self, topic: str, number: int) -> bool:
        """Return whether a partition's log is damaged, and no job uses its files."""
        return self._remedy(topic, number) is Remedy.COPY

    def put(self, partition: Partition) -> None:
        """Add a partition that was opened or reopened."""
        self._unopened.pop(partition.identity, None)
        before = self._partitions.get(partition.identity)
        if before is not None:
            before.log.segments.close()  # Whatever refers to the log would keep the space of removed files in use.
        self._partitions[partition.identity] = partition

    def put_unopened(self, identity: TopicPartition, failure: StorageFailure) -> None:
        """Record that a partition could not be opened or reopened."""
        partition = self._partitions.get(identity)
        if partition is None and identity not in self._unopened:
            log.error("partition offline partition=%s reason=%s", identity, failure)
        else:
            log.warning("partition stays offline partition=%s reason=%s", identity, failure)
        if partition is None:
            self._unopened[identity] = _Unopened(str(failure), remedy_of(failure))
        else:
            partition.offline.not_reopened(failure)

    async def seal(self, threads: Executor) -> bool:
        """Flush and seal every log, as many at a time as there are threads. Returns whether all are sealed.

        A log whose next leader epoch is not stored stays unsealed: the next start must see that the epoch is due.
        """
        is_sound = not self.offline()
        return all(await asyncio.gather(*(_seal(partition, threads) for partition in self))) and is_sound

    def remove(self, identity: TopicPartition) -> Partition | None:
        """Remove a partition. Returns it if it was opened."""
        self._unopened.pop(identity, None)
        return self._partitions.pop(identity, None)

    def _remedy(self, topic: str, number: int) -> Remedy | None:
        partition, unopened = self._partitions.get((topic, number)), self._unopened.get((topic, number))
        if partition is not None:
            return partition.offline.remedy
        return None if unopened is None else unopened.remedy

    def _missing(self, topic: str, number: int) -> RequestError:
        unopened = self._unopened.get((topic, number))
        if unopened is not None:
            return RequestError(ErrorKind.PARTITION_OFFLINE, f"{topic}-{number} is offline: {unopened.reason}")
        image = self._metadata.image.partition(topic, number)
        if image is None:
            return RequestError(ErrorKind.UNKNOWN_TOPIC, f"topic '{topic}' has no partition {number}")
        message = f"{topic}-{number} is led by broker {image.leader} in epoch {image.leader_epoch}, or will be soon"
        return NotLeader(message, image.leader, image.leader_epoch)


async def _seal(partition: Partition, threads: Executor) -> bool:
    if partition.offline.reason is not None:
        return False
    if partition.leader_term is not None and partition.leader_term.role.is_read_only:
        partition.log.abandon()
        return False
    is_whole = not partition.log.truncation.is_pending
    try:
        await asyncio.get_running_loop().run_in_executor(threads, partition.log.close)
    except StorageFailure as failure:
        partition.go_offline(failure)
        return False
    return is_whole
