"""The log of one partition. Appends are buffered, written together and flushed together; reads return file slices.

Invariant: log_start_offset <= flushed_offset <= written_offset <= log_end_offset
    flushed  on the disk           advanced by `Flushes.complete`
    written  in the page cache     advanced by `write`; only written records can be read
    end      buffered              advanced by `append`, which assigns the offsets, and by `LeaderCopy.append`

A truncation lowers all three; see `truncation_job`. Until it is complete, the log is read but not changed otherwise.

Callers: `replication`, and the compaction of `broker`, from one thread. Only jobs such as `FlushJob` run off it; see
`file_jobs`. After a StorageFailure the log must not be used any more; `open_log` recovers it from the disk.
"""

from collections.abc import Callable

from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ids import Offset
from conveyor.kernel.ports import FileSlice
from conveyor.log.append_info import AppendInfo
from conveyor.log.compaction.log_compaction import LogCompaction
from conveyor.log.flush import Flushes
from conveyor.log.following.leader_copy import LeaderCopy
from conveyor.log.following.log_truncation import LogTruncation
from conveyor.log.log_parts import LogParts
from conveyor.log.log_probe import LogProbe
from conveyor.log.log_start import LogStart
from conveyor.log.partition_directory import PartitionDirectory
from conveyor.log.producers.producer_state import ProducerState
from conveyor.log.replay import record_appended
from conveyor.log.tail import Tail
from conveyor.records.batch import CONTROL, with_append_time
from conveyor.records.checked_batch import CheckedBatch
from conveyor.records.timestamps import stamps_records
from conveyor.settings.tree import TopicSettings


class Log:
    """One partition's log; see the module's docstring. place: its directory, which belongs to one topic id.

    start: removes the oldest records. flushes: what is on the disk, and what brings more there. copying, truncation:
    for followers. compaction: for compacted topics. recovered: the facts that `open_log` has found.
    """

    def __init__(self, place: PartitionDirectory, topic: TopicSettings, parts: LogParts, probe: LogProbe) -> None:
        tail = Tail(place, topic, parts)
        self.place, self.topic, self.recovered = place, topic, parts.recovered
        self.segments, self.leader_epochs = tail.segments, tail.leader_epochs
        self.start = LogStart(tail, parts.log_start_offset)
        self.flushes = Flushes(tail)
        self.compaction = LogCompaction(tail, parts.cleaned_offset, parts.removed_end_offset)
        self.copying = LeaderCopy(tail, self.compaction, parts.gap_offset)
        self.truncation = LogTruncation(tail, self.start, self.flushes, self.copying)
        self._tail, self._probe = tail, probe

    @property
    def producers(self) -> ProducerState:
        return self._tail.producers

    @property
    def log_start_offset(self) -> Offset:
        return self.start.offset

    @property
    def written_offset(self) -> Offset:
        return self._tail.written_offset

    @property
    def log_end_offset(self) -> Offset:
        return self._tail.log_end_offset

    def use(self, topic: TopicSettings) -> None:
        """Use new settings of the topic."""
        self.topic = self._tail.topic = topic

    def append(self, batch: CheckedBatch, leader_epoch: int, now_ms: int) -> AppendInfo:
        """Append one record batch and assign its offsets; `write` puts it into the file.

        The broker has checked the batch and its records. A stage may have dropped some or all records; their offsets
        are used up nevertheless.
        Raises RequestError (see `ProducerState.check`) and StorageFailure. Source: KIP-98.
        """
        tail, content, header = self._tail, batch.content, batch.header
        is_idempotent = header.producer_id >= 0
        if is_idempotent:
            earlier = None if header.attributes & CONTROL else tail.producers.check(header)
            if earlier is not None:
                first, last = Offset(earlier.base_offset), Offset(earlier.last_offset)
                return AppendInfo(first, last, earlier.append_timestamp_ms, True)
        timestamp_ms = header.max_timestamp
        if stamps_records(tail.topic):
            content, timestamp_ms = with_append_time(content, now_ms), now_ms
        base_offset = tail.log_end_offset
        last_offset = tail.add(content, header, base_offset, leader_epoch, timestamp_ms, now_ms)
        if is_idempotent:
            if header.attributes & CONTROL:
                record_appended(
                    tail.producers, tail.segments.active.indexes.aborted, header, content, base_offset, now_ms
                )
            else:
                tail.producers.record(header, base_offset, now_ms)
        self._probe.appended_batches += 1
        self._probe.appended_records += header.records_count
        self._probe.appended_bytes += len(content)
        return AppendInfo(base_offset, last_offset, now_ms)

    def write(self) -> None:
        """Write all buffered batches with one system call, if possible. Raises StorageFailure."""
        self._tail.write()

    def read(
        self,
        offset: int,
        max_bytes: int,
        limit_offset: int,
        *,
        at_least_one: bool,
        failed: Callable[[StorageFailure], object] | None = None,
    ) -> FileSlice | None:
        """Return the stored bytes from the batch that holds `offset` on; None if nothing is readable there yet.

        limit_offset: a batch boundary; no record at or above it is returned.
        max_bytes: the slice ends on a batch boundary within this size, but `at_least_one` batch is returned whole
        (KIP-74).
        failed: see `FileSlice`.
        Raises RequestError (OFFSET_OUT_OF_RANGE), StorageFailure.
        """
        if not self.start.offset <= offset <= limit_offset:
            raise RequestError(
                ErrorKind.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is outside {self.start.offset}..{limit_offset} of {self.place.path}",
            )
        limit_offset = min(limit_offset, self._tail.written_offset)
        if offset >= limit_offset:
            return None
        return self.segments.read(offset, max_bytes, limit_offset, at_least_one=at_least_one, failed=failed)

    def close(self) -> None:
        """Write, flush and seal everything, so that the next start is a clean one. Blocks. Raises StorageFailure.

        A log whose truncation is not complete is left to the recovery of the next start.
        """
        if self.truncation.is_pending:
            return self.abandon()
        self._tail.write()
        self.flushes.seal_all()
        self.segments.close()

    def abandon(self) -> None:
        """Stop writing and opening files: after a StorageFailure, or before the partition is deleted.

        The file names may soon belong to another log. Readers of open files can finish.
        """
        self._tail.discard_pending()
        for segment in self.segments.all:
            segment.release()
