"""Deletes records: on request at once, and by age and size every `broker.retention_check_ms`.

A new log start offset is on the disk before it is reported, and before a file is removed. While the queues of a topic
with subscriptions, or the forwarders of a delayed topic, are not loaded, retention deletes none of its records: any of
them may still be needed.
"""

import asyncio
import logging
from math import inf

from conveyor.broker.metadata.subscriptions import Subscriptions
from conveyor.broker.partitions.disk_room import DiskRoom
from conveyor.broker.partitions.own_writes import MAX_TIMEOUT_MS, wait_for_commit
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.periodic import Periodic
from conveyor.broker.services import Services
from conveyor.cluster.image import is_internal
from conveyor.cluster.topic_decisions import owned_by_broker
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.log.log_start import TrimJob
from conveyor.replication.partition import Partition
from conveyor.replication.trimming import RetainingReader, are_deleted, delete_records, retain

log = logging.getLogger(__name__)

HIGH_WATERMARK = -1
"""The offset in a request that deletes all records."""


class Retention(Periodic):
    def __init__(
        self, services: Services, partitions: PartitionTable, room: DiskRoom, subscriptions: Subscriptions
    ) -> None:
        super().__init__(services)
        self._partitions = partitions
        self._room = room
        self._subscriptions = subscriptions
        self._readers: dict[Partition, RetainingReader] = {}
        self._one_at_a_time = asyncio.Lock()

    @property
    def interval_ms(self) -> int:
        return self._services.settings.broker.retention_check_ms

    def keep_for(self, reader: RetainingReader, partition: Partition) -> None:
        """Keep the records that a reader needs, the queue or the forwarder of a partition, until `release`."""
        self._readers[partition] = reader

    def release(self, reader: RetainingReader, partition: Partition) -> None:
        """A reader is closed. Another one may read the partition by now."""
        if self._readers.get(partition) is reader:
            del self._readers[partition]

    async def delete_records(self, caller: Caller, topic: str, number: int, offset: int, timeout_ms: int) -> int:
        """Delete the records below an offset. Returns the lowest log start offset of the replicas that are live or may
        lead next, once it has reached the offset on their disks: no clean election brings the records back then.

        HIGH_WATERMARK, or an offset above the high watermark, first waits until all acknowledged records are committed.
        Raises RequestError: as for a record with acks=all, NOT_ENOUGH_REPLICAS, before anything is deleted, and
        REQUEST_TIMED_OUT: the leader may have deleted the records then. Source: KIP-107.
        """
        if is_internal(topic):
            raise owned_by_broker(topic)
        timeout_ms = min(timeout_ms, MAX_TIMEOUT_MS)
        partition, deadline_ms = self._partitions.find(topic, number), self._clock.steady_ms() + timeout_ms
        partition.term.check_replicas()
        if offset == HIGH_WATERMARK or offset > partition.term.high_watermark:
            await wait_for_commit(partition, self._clock, timeout_ms)
        offset = partition.term.high_watermark if offset == HIGH_WATERMARK else offset
        log_start_offset = await self.trim(partition, offset, deadline_ms)
        if partition.observer is None:
            return log_start_offset
        left_ms = deadline_ms - self._clock.steady_ms()
        return await partition.observer.trimmed_by_all(partition, offset, left_ms)

    async def trim(self, partition: Partition, offset: int, deadline_ms: float = inf) -> int:
        """Delete like `delete_records`, for a partition's owner. A trim that has begun is completed, even if the caller
        is cancelled.
        """
        if are_deleted(partition, offset):
            return partition.log.start.flushed_offset
        result = await asyncio.shield(self._services.tasks.start(self._trim(partition, offset, deadline_ms)))
        if isinstance(result, RequestError):
            raise result
        return result

    def trim_later(self, partition: Partition, offset: int) -> None:
        """Trim in the background. If that fails, a later trim repeats it."""
        self._services.tasks.start(self._trim_unless_failing(partition, offset))

    async def run_once(self) -> None:
        """Apply retention to every partition once."""
        delayed_topics = self._services.metadata.image.delayed_topics
        with_readers = self._subscriptions.topics().union(*delayed_topics.values())
        for partition in list(self._partitions):
            async with self._one_at_a_time:
                if not self._services.metadata.session.holds_lease():
                    return  # Another broker may lead by now, whose queues are to deliver what they have settled here.
                reader = self._readers.get(partition)
                if reader is None and partition.identity.topic in with_readers:
                    continue
                may_roll = self._room.has_room_for_indexes(partition.log.segments.all[-1].size)
                job = retain(partition, self._clock.now_ms(), reader, may_roll=may_roll)
                if job is not None:
                    log.info(
                        "log trimmed partition=%s log_start_offset=%d files=%d",
                        partition.identity, job.log_start_offset, len(job.removed_paths),
                    )  # fmt: skip
                    await self._run(partition, job)

    async def _trim_unless_failing(self, partition: Partition, offset: int) -> None:
        try:
            await self.trim(partition, offset)
        except RequestError as error:
            log.warning("log not trimmed partition=%s: %s", partition.identity, error)

    async def _trim(self, partition: Partition, offset: int, deadline_ms: float) -> int | RequestError:
        """Trim once the earlier trims have ended, unless one of them has deleted the records, or it is too late."""
        async with self._one_at_a_time:
            try:
                if are_deleted(partition, offset):
                    return partition.log.start.flushed_offset
                if self._clock.steady_ms() > deadline_ms:
                    return RequestError(
                        ErrorKind.REQUEST_TIMED_OUT,
                        f"{partition.identity}: other records were still being deleted; none of this partition are",
                    )
                job = delete_records(partition, offset)
            except RequestError as error:
                return error.detached()
            failure = await self._run(partition, job)
        if failure is not None:
            return RequestError(ErrorKind.PARTITION_OFFLINE, str(failure))
        return job.log_start_offset

    async def _run(self, partition: Partition, job: TrimJob) -> StorageFailure | None:
        """Run a job before the next one begins, because an older start offset must not overwrite a newer one."""
        loop = asyncio.get_running_loop()
        try:
            with partition.offline.job():
                await loop.run_in_executor(self._services.threads, job.run)
            partition.log.start.complete_trim()
        except StorageFailure as failure:
            partition.go_offline(failure)
            return failure
        if partition.observer is not None:
            partition.observer.trimmed(partition)
        return None
