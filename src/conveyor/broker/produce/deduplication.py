"""The stage `de-duplicate`, which drops records with known ids, and the index of these ids for each partition.

The indexes are not stored. `load` builds one from the log's records within the window before now, when a partition
first receives an id (or any batch, if the topic has `dedup.enable`). No batch may be appended to the partition
during the load: its lane ensures that. An index is valid in one leader epoch, because other brokers may
append in others.
"""

import asyncio
from concurrent.futures import Executor
from weakref import WeakKeyDictionary

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ids import LeaderEpoch
from conveyor.kernel.ports import Clock, FileSlice
from conveyor.log.append_info import AppendInfo
from conveyor.log.batch_reading import batches_in
from conveyor.log.log import Log
from conveyor.queues.messages.dedup import (
    DedupIndex,
    Deduplicated,
    KnownId,
    deduplicate,
    ids_of_log,
    ids_of_records,
)
from conveyor.records.batch import BatchHeader
from conveyor.records.compression import Unpacked
from conveyor.records.timestamps import stamps_records
from conveyor.replication.partition import Partition
from conveyor.settings.tree import TopicSettings

_READ_BYTES = 1 << 20


def drop_duplicates(
    header: BatchHeader, content: Unpacked, ids: DedupIndex, topic: TopicSettings, now_ms: int, *, drops_known: bool
) -> Deduplicated:
    """Return the new records of a batch's decompressed records; all records, with their ids, unless `drops_known`.

    Raises UnreadableBatch.
    """
    if drops_known:
        return deduplicate(header, content, ids, now_ms, topic.dedup_window_ms)
    return Deduplicated(header=header, content=content, fresh=tuple(ids_of_records(header, content)))


class DedupIndexes:
    """See the module's docstring."""

    def __init__(self, clock: Clock, threads: Executor, max_ids: int) -> None:
        self._clock = clock
        self._threads = threads
        self._max_ids = max_ids
        self._indexes: WeakKeyDictionary[Partition, tuple[LeaderEpoch, DedupIndex]] = WeakKeyDictionary()
        self._is_on = False

    def covers(self, partition: Partition) -> bool:
        """Return whether a partition has an index."""
        found = self._indexes.get(partition) if self._is_on else None
        return found is not None and found[0] == partition.leader_epoch

    def index(self, partition: Partition) -> DedupIndex:
        """Return the index of a partition that has one."""
        return self._indexes[partition][1]

    async def load(self, partition: Partition) -> None:
        """Build the index of a partition. Raises RequestError (PARTITION_OFFLINE)."""
        epoch = partition.leader_epoch
        self._indexes[partition] = epoch, await self._read_back(partition)
        self._is_on = True

    def note(self, partition: Partition, fresh: tuple[KnownId, ...], info: AppendInfo) -> None:
        """Add the ids of an appended batch to the index. fresh: ids by offset relative to the batch's first."""
        if info.duplicate or not fresh:
            return
        index, topic = self.index(partition), partition.log.topic
        stamped = stamps_records(topic)
        for fresh_id in fresh:
            timestamp_ms = info.append_timestamp_ms if stamped else fresh_id.timestamp_ms
            index.add(
                KnownId(fresh_id.digest, info.first_offset + fresh_id.offset, timestamp_ms), topic.dedup_window_ms
            )

    async def _read_back(self, partition: Partition) -> DedupIndex:
        partition.write()
        log, index = partition.log, DedupIndex(self._max_ids)
        window_ms = log.topic.dedup_window_ms
        oldest_ms = self._clock.now_ms() - window_ms
        try:
            offset, limit = _first_offset(log, oldest_ms), log.written_offset
            while (offset := max(offset, log.log_start_offset)) < limit:
                partition.check_online()
                found = log.read(offset, _READ_BYTES, limit, at_least_one=True)
                if found is None:
                    break
                offset = await asyncio.get_running_loop().run_in_executor(
                    self._threads, _add_ids, index, found, oldest_ms, window_ms
                )
        except StorageFailure as failure:
            raise partition.failed_read(failure) from failure
        return index


def _first_offset(log: Log, oldest_ms: int) -> int:
    """Return an offset below which every record is older than `oldest_ms`."""
    for segment in log.segments:
        if segment.max_timestamp >= oldest_ms and segment.size:
            position = segment.position_before_time(oldest_ms)
            if position < segment.size:
                return segment.header_at(position).base_offset
    return log.written_offset


def _add_ids(index: DedupIndex, chunk: FileSlice, oldest_ms: int, window_ms: int) -> int:
    """Return the offset after the last record read."""
    known_ids, next_offset = ids_of_log(batches_in(chunk), oldest_ms)
    for known_id in known_ids:
        index.add(known_id, window_ms)
    return next_offset
