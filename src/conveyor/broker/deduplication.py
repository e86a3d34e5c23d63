"""The ids of published messages, for each partition that is asked about any: read back from the log, then kept up.

Nothing is stored: an index is made when its partition is first published to with an id (or at all, where the topic
says `dedup.enable`), from the records of the window that is over then. What is published meanwhile waits in its order.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from weakref import WeakKeyDictionary

from conveyor.broker.tasks import Tasks
from conveyor.kernel.errors import RequestError, StorageFailure
from conveyor.kernel.ports import Bytes, Clock, FileSlice
from conveyor.log.batch import check_batch
from conveyor.log.log import AppendInfo, Log
from conveyor.queues.dedup import DedupIndex, KnownId, Thinned, ids_of_batch, ids_of_log, thin
from conveyor.replication.partition import Partition

Ready = Callable[[Bytes | RequestError], None]
"""Takes the batch that waited, or why it cannot be appended."""

_READ_BYTES = 1 << 20


class _Ids:
    """What is known of a partition; an index that is still being made has those who wait for it."""

    __slots__ = ("index", "waiting")

    def __init__(self) -> None:
        self.index: DedupIndex | None = None
        self.waiting: list[tuple[Bytes, Ready]] = []


class Deduplication:
    """See the module's docstring. `is_on`: whether anybody has asked, so that appends have to look here first."""

    def __init__(self, clock: Clock, threads: Executor, tasks: Tasks, max_ids: int) -> None:
        self.is_on = False
        self._clock = clock
        self._threads = threads
        self._tasks = tasks
        self._max_ids = max_ids
        self._ids: WeakKeyDictionary[Partition, _Ids] = WeakKeyDictionary()
        self._loading = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def covers(self, partition: Partition) -> bool:
        """Whether the ids of a partition are kept, or on their way."""
        return partition in self._ids

    def must_wait(self, partition: Partition) -> bool:
        """Whether the ids of a partition are not known yet; then `add` what is to be appended."""
        ids = self._ids.get(partition)
        return ids is None or ids.index is None

    def add(self, partition: Partition, batch: Bytes, ready: Ready) -> None:
        """Let a batch wait; `ready` is called once, in the order of the calls of `add`."""
        ids = self._ids.get(partition)
        if ids is None:
            ids = self._ids[partition] = _Ids()
            self.is_on = True
            self._loading += 1
            self._idle.clear()
            self._tasks.start(self._load(partition, ids))
        ids.waiting.append((batch, ready))

    def look(self, partition: Partition, batch: Bytes, now_ms: int, *, drops: bool) -> Thinned:
        """What of a batch is new. drops: or take all of it, and only note its ids. Raises RequestError."""
        index, topic = self._ids[partition].index, partition.log.topic
        assert index is not None
        header = check_batch(batch, topic.max_message_bytes)
        if drops:
            return thin(batch, index, now_ms, topic.dedup_window_ms)
        return Thinned(batch=batch, fresh=tuple(ids_of_batch(batch, header)))

    def note(self, partition: Partition, thinned: Thinned, info: AppendInfo) -> None:
        """A batch was appended: its ids are known from now on."""
        index, topic = self._ids[partition].index, partition.log.topic
        assert index is not None
        if info.duplicate:
            return
        stamped = topic.message_timestamp_type == "LogAppendTime"
        for each in thinned.fresh:
            timestamp_ms = info.append_timestamp_ms if stamped else each.timestamp_ms
            index.add(KnownId(each.digest, info.first_offset + each.offset, timestamp_ms), topic.dedup_window_ms)

    async def drain(self) -> None:
        """Wait until nothing waits for an index."""
        await self._idle.wait()

    async def _load(self, partition: Partition, ids: _Ids) -> None:
        failure: RequestError | None = None
        try:
            ids.index = await self._read_back(partition)
        except RequestError as error:
            failure = error
            del self._ids[partition]
        for batch, ready in ids.waiting:
            ready(batch if failure is None else failure)
        ids.waiting = []
        self._loading -= 1
        if not self._loading:
            self._idle.set()

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
                known, offset = await asyncio.get_running_loop().run_in_executor(self._threads, _read, found, oldest_ms)
                for each in known:
                    index.add(each, window_ms)
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


def _read(found: FileSlice, oldest_ms: int) -> tuple[list[KnownId], int]:
    return ids_of_log(found.file.read(found.position, found.length), oldest_ms)
