"""The stage `de-duplicate`, which drops records with known ids, and the index of these ids for each partition.

The indexes are not stored. `load` builds one from the log's records within the window before now, when a partition
first receives an id (or any batch, if the topic has `dedup.enable`). No batch may be appended to the partition
during the load: its lane ensures that. Markers may be; `ended` reports them, also later. An index is valid in one
leader epoch, because other brokers may append in others, and only as long as every transaction with provisional ids is
open in the log. Otherwise it is dropped, and built again when it is needed.

Stages on threads read the index of a partition, so only `current` and `note` change it: the partition's lane calls them
while none of its stages runs.
"""

import asyncio
from collections.abc import Mapping
from concurrent.futures import Executor
from weakref import WeakKeyDictionary

import msgspec

from conveyor.broker.services import Services
from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ids import LeaderEpoch
from conveyor.kernel.ports import FileSlice
from conveyor.log.append_info import AppendInfo
from conveyor.log.batch_reading import batches_in
from conveyor.log.log import Log
from conveyor.log.producers.message_ids import (
    DedupIndex,
    Deduplicated,
    KnownId,
    add_log,
    deduplicate,
    ids_of_records,
    transaction_of,
)
from conveyor.log.transactions.open_transactions import OpenTransaction
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


class _Loaded(msgspec.Struct):
    """The index of a partition. ended: the transactions that have ended since it was changed, and their outcomes.

    checked: the open transactions of the log, and the offset of its last marker, when all those of the index were open.
    """

    leader_epoch: LeaderEpoch
    index: DedupIndex
    ended: list[tuple[int, bool]] = msgspec.field(default_factory=list)
    checked: tuple[Mapping[int, OpenTransaction], int] | None = None

    def is_valid(self, partition: Partition) -> bool:
        """Return whether every transaction of the index is open. None has ended unless there is another marker, or the
        log has other open transactions.
        """
        transactions = partition.log.producers.transactions
        opened, marker_offset = transactions.opened, transactions.last_marker_offset
        if self.checked is not None and self.checked[0] is opened and self.checked[1] == marker_offset:
            return True
        if not all(_is_open(partition, *first) for first in self.index.first_offsets()):
            return False
        self.checked = (opened, marker_offset)
        return True

    def decide(self, partition: Partition) -> None:
        """Apply the outcomes of the transactions that have ended."""
        for producer_id, commits in self.ended:
            self.index.end(producer_id, partition.log.topic.dedup_window_ms, commits=commits)
        self.ended.clear()


class DedupIndexes:
    def __init__(self, services: Services) -> None:
        self._clock = services.clock
        self._threads: Executor = services.threads
        self._max_ids = services.settings.broker.dedup_max_ids
        self._indexes: WeakKeyDictionary[Partition, _Loaded] = WeakKeyDictionary()
        self._loading: WeakKeyDictionary[Partition, _Loaded] = WeakKeyDictionary()
        self._is_on = False

    def covers(self, partition: Partition) -> bool:
        """Return whether a partition has an index."""
        found = self._indexes.get(partition) if self._is_on else None
        return found is not None and found.leader_epoch == partition.term.epoch

    def current(self, partition: Partition) -> DedupIndex | None:
        """Return the index of a partition, with all outcomes of transactions; None if it must be loaded."""
        if not self.covers(partition):
            return None
        found = self._indexes[partition]
        found.decide(partition)
        found.index.forget(self._clock.now_ms() - partition.log.topic.dedup_window_ms)
        if not found.is_valid(partition):
            del self._indexes[partition]
            return None
        return found.index

    async def load(self, partition: Partition) -> None:
        """Build the index of a partition. Raises RequestError (PARTITION_OFFLINE)."""
        loading = self._loading[partition] = _Loaded(partition.term.epoch, DedupIndex(self._max_ids))
        try:
            await self._read_back(partition, loading.index)
        finally:
            del self._loading[partition]
        loading.decide(partition)
        for producer_id, offset in loading.index.first_offsets():
            if not _is_open(partition, producer_id, offset):  # Its marker was not found: it must not lose a message.
                loading.index.end(producer_id, partition.log.topic.dedup_window_ms, commits=False)
        self._indexes[partition] = loading
        self._is_on = True

    def ended(self, partition: Partition, producer_id: int, *, commits: bool) -> None:
        """Note that a transaction with records in a partition has ended: its marker was appended in this tick."""
        for loaded in (self._indexes.get(partition), self._loading.get(partition)):
            if loaded is not None:
                loaded.ended.append((producer_id, commits))

    def note(self, partition: Partition, header: BatchHeader, fresh: tuple[KnownId, ...], info: AppendInfo) -> None:
        """Add the ids of an appended batch to the index. fresh: ids by offset relative to the batch's first."""
        index = None if info.duplicate or not fresh else self.current(partition)
        if index is None:
            return
        topic, producer_id = partition.log.topic, transaction_of(header)
        stamped, now_ms = stamps_records(topic), self._clock.now_ms()
        for fresh_id in fresh:
            timestamp_ms = info.append_timestamp_ms if stamped else fresh_id.timestamp_ms
            known = KnownId(fresh_id.digest, info.first_offset + fresh_id.offset, timestamp_ms)
            index.add(known.seen_at(now_ms), topic.dedup_window_ms, producer_id)

    async def _read_back(self, partition: Partition, index: DedupIndex) -> None:
        partition.write()
        log, window_ms = partition.log, partition.log.topic.dedup_window_ms
        oldest_ms = self._clock.now_ms() - window_ms
        try:
            offset, limit = _first_offset(log, oldest_ms), log.written_offset
            while (offset := max(offset, log.log_start_offset)) < limit:
                partition.leading()
                found = log.read(offset, _READ_BYTES, limit, at_least_one=True)
                if found is None:
                    break
                offset = await asyncio.get_running_loop().run_in_executor(
                    self._threads, _add_ids, index, found, offset, oldest_ms, window_ms
                )
        except StorageFailure as failure:
            raise partition.failed_read(failure) from failure


def _is_open(partition: Partition, producer_id: int, offset: int) -> bool:
    """Return whether a record of a producer is in its open transaction."""
    opened = partition.log.producers.transactions.opened.get(producer_id)
    return opened is not None and opened.first_offset <= offset


def _first_offset(log: Log, oldest_ms: int) -> int:
    """Return an offset below which every record is older than `oldest_ms`."""
    for segment in log.segments.all:
        if segment.max_timestamp >= oldest_ms and segment.size:
            position = segment.indexes.position_before_time(oldest_ms)
            if position < segment.size:
                return segment.files.header_at(position).base_offset
    return log.written_offset


def _add_ids(index: DedupIndex, chunk: FileSlice, offset: int, oldest_ms: int, window_ms: int) -> int:
    """Return the offset after the last record read."""
    return add_log(index, batches_in(chunk, offset), oldest_ms, window_ms)
