"""The ids of published messages, for each partition that is asked about any: read back from the log, then kept up.

Nothing is stored: `load` makes an index when its partition is first published to with an id (or at all, where the topic
says `dedup.enable`), from the records of the window that is over then. Nothing may be appended to the partition
meanwhile: `broker.intake` sees to that.
"""

import asyncio
from concurrent.futures import Executor
from weakref import WeakKeyDictionary

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ports import Clock, FileSlice
from conveyor.log.log import AppendInfo, Log
from conveyor.queues.messages.dedup import DedupIndex, KnownId, ids_of_log
from conveyor.records.timestamps import stamps_records
from conveyor.replication.partition import Partition

_READ_BYTES = 1 << 20


class Deduplication:
    """See the module's docstring."""

    def __init__(self, clock: Clock, threads: Executor, max_ids: int) -> None:
        self._clock = clock
        self._threads = threads
        self._max_ids = max_ids
        self._indexes: WeakKeyDictionary[Partition, DedupIndex] = WeakKeyDictionary()
        self._is_on = False

    def covers(self, partition: Partition) -> bool:
        """Whether the ids of a partition are kept."""
        return self._is_on and partition in self._indexes

    def index(self, partition: Partition) -> DedupIndex:
        """The ids of a partition that is covered."""
        return self._indexes[partition]

    async def load(self, partition: Partition) -> None:
        """Cover a partition. Raises RequestError (PARTITION_OFFLINE)."""
        index = await self._read_back(partition)
        self._indexes[partition] = index
        self._is_on = True

    def note(self, partition: Partition, fresh: tuple[KnownId, ...], info: AppendInfo) -> None:
        """A batch was appended: its ids are known from now on. fresh: offsets counted from the batch's first."""
        if info.duplicate or not fresh:
            return
        index, topic = self._indexes[partition], partition.log.topic
        stamped = stamps_records(topic)
        for known in fresh:
            timestamp_ms = info.append_timestamp_ms if stamped else known.timestamp_ms
            index.add(KnownId(known.digest, info.first_offset + known.offset, timestamp_ms), topic.dedup_window_ms)

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
    """Before it, every record is older."""
    for segment in log.segments:
        if segment.max_timestamp >= oldest_ms and segment.size:
            position = segment.position_before_time(oldest_ms)
            if position < segment.size:
                return segment.header_at(position).base_offset
    return log.written_offset


def _add_ids(index: DedupIndex, found: FileSlice, oldest_ms: int, window_ms: int) -> int:
    """Returns the offset behind what was read."""
    known, next_offset = ids_of_log(found.file.read(found.position, found.length), oldest_ms)
    for each in known:
        index.add(each, window_ms)
    return next_offset
