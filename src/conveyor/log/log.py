"""The log of one partition: appends are buffered, written together, flushed together; reads return file slices.

Offsets, in their order:

    log_start_offset <= flushed_offset <= written_offset <= log_end_offset

    flushed  on the disk           moved by `complete_flush`
    written  in the page cache     moved by `write`; only what is written can be read
    end      appended              moved by `append`; has its offset, waits for `write`

Who may call: `replication.Partition`, from one thread. Only `FlushJob.run` is called off it. After a StorageFailure
the log must not be used any more: what is true is on the disk, and `open_log` finds it.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from crc32c import crc32c

from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ids import Offset
from conveyor.kernel.ports import Bytes, FileSlice
from conveyor.log.compaction.compaction_plan import CompactionPlan, plan_compaction
from conveyor.log.compaction.key_compaction import CompactionResult
from conveyor.log.compaction.swap import SwapJob, discard
from conveyor.log.flush import FlushJob
from conveyor.log.leader_epochs import LeaderEpochs
from conveyor.log.log_probe import LogProbe
from conveyor.log.partition_directory import PartitionDirectory
from conveyor.log.producers.producer_state import ProducerEntries, ProducerState
from conveyor.log.retention_limits import is_too_old
from conveyor.log.segments import lookup as reading
from conveyor.log.segments.segment import MAX_BYTES, Segment
from conveyor.log.segments.trim import TrimJob
from conveyor.records.batch import BatchHeader, check_batch, placed_prefix, read_header, with_append_time
from conveyor.records.record import unpacked_records
from conveyor.records.record_checks import check_records, looks_at_records
from conveyor.records.timestamps import check_newest, stamps_records
from conveyor.settings.tree import TopicSettings

log = logging.getLogger(__name__)

_REMEMBERED_POSITIONS = 64


class AppendInfo(NamedTuple):
    """Where a batch came to lie. Offsets are inclusive; `duplicate` if it was there already (idempotent producer)."""

    first_offset: Offset
    last_offset: Offset
    append_timestamp_ms: int
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class LogParts:
    """What recovery found, from which a `Log` starts. fresh: directory entries are not yet made durable.

    was_stopped_cleanly: nothing can be lost that was there before.
    """

    segments: list[Segment]
    producers: ProducerState
    leader_epochs: LeaderEpochs
    log_start_offset: int
    cleaned_offset: int
    fresh: bool
    was_stopped_cleanly: bool


class Log:
    """See the module's docstring."""

    def __init__(
        self, disk: PartitionDirectory, directory: str, topic: TopicSettings, parts: LogParts, probe: LogProbe
    ) -> None:
        self.directory = directory
        self.topic = topic
        self.producers = parts.producers
        self.leader_epochs = parts.leader_epochs
        self.segments = parts.segments
        self.log_start_offset = Offset(parts.log_start_offset)
        self.cleaned_offset = parts.cleaned_offset
        self.was_stopped_cleanly = parts.was_stopped_cleanly
        self.log_end_offset = Offset(self._active.next_offset)
        self.written_offset = self.log_end_offset
        self.flushed_offset = self.log_end_offset
        self._disk = disk
        self._probe = probe
        self._pending: list[Bytes] = []
        self._end_position = self._active.size
        self._unsynced: list[Segment] = []
        self._snapshot: ProducerEntries = (), ()
        self._directory_changed = parts.fresh
        self._is_swapping = False
        self._positions: OrderedDict[int, int] = OrderedDict()

    @property
    def _active(self) -> Segment:
        return self.segments[-1]

    @property
    def needs_write(self) -> bool:
        return bool(self._pending)

    @property
    def needs_flush(self) -> bool:
        return self.flushed_offset < self.written_offset or bool(self._unsynced) or self._directory_changed

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    def begin_epoch(self, leader_epoch: int) -> None:
        """A leader begins at the log's end; it may be long before it has a record. Source: KIP-101."""
        self.leader_epochs.assign(leader_epoch, self.log_end_offset)

    def append(self, batch: Bytes, leader_epoch: int, now_ms: int, *, is_checked: bool = False) -> AppendInfo:
        """Take one record batch and assign its offsets; `write` puts it into the file.

        batch: RecordBatch v2 wire bytes (61-byte header and payload); everything about it is checked here.
        is_checked: the broker has checked its records before, and may have left out some of them, or all; their offsets
        are used up all the same.
        Raises RequestError (see `check_batch`, `check_records` and `ProducerState.check`) and StorageFailure.
        Source: KIP-98.
        """
        header = check_batch(batch, self.topic.max_message_bytes, may_have_gaps=is_checked)
        idempotent = header.producer_id >= 0
        if idempotent:
            earlier = self.producers.check(header)
            if earlier is not None:
                return AppendInfo(
                    Offset(earlier.base_offset), Offset(earlier.last_offset), earlier.append_timestamp_ms, True
                )
        if not is_checked and looks_at_records(self.topic):
            check_records(*unpacked_records(batch), self.topic, now_ms)
        timestamp_ms = header.max_timestamp
        if stamps_records(self.topic):
            batch, timestamp_ms = with_append_time(batch, now_ms), now_ms
        elif not is_checked:
            check_newest(timestamp_ms, self.topic, now_ms)
        self._roll_if_due(len(batch), now_ms)
        base_offset = self.log_end_offset
        self._buffer(batch, header, leader_epoch, timestamp_ms)
        if idempotent:
            self.producers.record(header, base_offset, now_ms)
        return AppendInfo(base_offset, Offset(self.log_end_offset - 1), now_ms)

    def append_own(self, batch: Bytes, leader_epoch: int, now_ms: int) -> AppendInfo:
        """Take a batch that the broker has made, of no producer: a control batch, or records that were checked before.

        What the topic asks of producers is not asked of it. Raises StorageFailure.
        """
        if stamps_records(self.topic):
            batch = with_append_time(batch, now_ms)
        header = read_header(batch)
        self._roll_if_due(len(batch), now_ms)
        base_offset = self.log_end_offset
        self._buffer(batch, header, leader_epoch, header.max_timestamp)
        return AppendInfo(base_offset, Offset(self.log_end_offset - 1), now_ms)

    def write(self) -> None:
        """Write what was appended since the last write, as one. Raises StorageFailure."""
        if self._pending:
            buffers, self._pending = self._pending, []
            self._active.append(buffers)
            self.written_offset = self.log_end_offset
            self._remember_position(self.log_end_offset, self._end_position)

    def begin_flush(self) -> FlushJob:
        """What must be flushed so that everything written by now is on the disk; `run` it off the event loop."""
        return self._flush_job((self._active.base_offset, self._snapshot) if self._unsynced else None)

    def complete_flush(self, job: FlushJob) -> None:
        """Take the result of a job that ran without failure."""
        for segment, seal in zip(job.closed, job.seals, strict=True):
            segment.seal(seal)
        self.flushed_offset = Offset(max(self.flushed_offset, job.offset))

    def read(
        self,
        offset: int,
        max_bytes: int,
        limit_offset: int,
        *,
        at_least_one: bool,
        failed: Callable[[StorageFailure], object] | None = None,
    ) -> FileSlice | None:
        """The stored bytes from the batch that holds an offset on, up to a limit; None where there is nothing yet.

        limit_offset: no record at or above it is read; a batch boundary. max_bytes: the slice ends on a batch boundary
        at or below it, except that `at_least_one` batch is taken whole, however large it is (KIP-74). failed: see
        `FileSlice`.
        Raises RequestError (OFFSET_OUT_OF_RANGE), StorageFailure.
        """
        if not self.log_start_offset <= offset <= limit_offset:
            raise RequestError(
                ErrorKind.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is outside {self.log_start_offset}..{limit_offset} of {self.directory}",
            )
        limit_offset = min(limit_offset, self.written_offset)
        if offset >= limit_offset:
            return None
        segment = reading.segment_for(self.segments, offset)
        start = self._position_of(segment, offset)
        if start >= segment.size and segment is not self._active:
            segment, start = reading.first_with_records(self.segments, segment), 0
            if segment.base_offset >= limit_offset:
                return None
        limit = segment.size if limit_offset >= segment.next_offset else self._position_of(segment, limit_offset)
        end = reading.cut(segment, start, limit, max_bytes, at_least_one=at_least_one)
        if end <= start:
            return None
        if end < limit:
            self._remember_position(segment.header_at(end).base_offset, end)
        return FileSlice(segment.file, start, end - start, failed)

    def roll_if_too_old(self, now_ms: int) -> None:
        """Close the active segment if every record in it is older than `retention.ms`. Raises StorageFailure."""
        if self._end_position and not self._active.sealed and is_too_old(self._active, self.topic, now_ms):
            self._roll(now_ms)

    def trim(self, offset: int) -> TrimJob:
        """Delete everything below an offset; run the job off the event loop. Slices of it stay readable.

        Segments that are not wholly below it stay, and so does the active one; no reader sees what is below it.
        Raises StorageFailure; then nothing has changed.
        """
        start_offset = Offset(max(self.log_start_offset, offset))
        kept = self.segments[:]
        while self._can_drop(kept, start_offset):
            del kept[0]
        dropped = self.segments[: len(self.segments) - len(kept)]
        for segment in dropped:
            segment.leave()
        self.log_start_offset, self.segments = start_offset, kept
        self.leader_epochs.cut_start(start_offset)
        self._positions.clear()
        return TrimJob(
            disk=self._disk,
            directory=self.directory,
            log_start_offset=self.log_start_offset,
            doomed_paths=tuple(path for segment in dropped for path in segment.paths()),
        )

    def plan_compaction(self, limit_offset: int, now_ms: int, max_keys: int) -> CompactionPlan | None:
        """What is worth compacting now, below an offset; None if nothing is."""
        if "compact" not in self.topic.cleanup_policy or self._is_swapping:
            return None
        return plan_compaction(
            self.directory,
            self._disk.topic_id,
            self.segments,
            self.topic,
            cleaned_offset=self.cleaned_offset,
            limit_offset=limit_offset,
            now_ms=now_ms,
            max_keys=max_keys,
        )

    def begin_swap(self, result: CompactionResult) -> SwapJob | None:
        """Decide to put compacted segments in place; run the job off the event loop, then `complete_swap`.

        None if the log has dropped some of them meanwhile: discard the result then.
        """
        present = {segment.base_offset: segment for segment in self.segments[:-1] if segment.sealed}
        if not set(result.replaced) <= present.keys():
            return None
        replaced = [present[base] for base in result.replaced]
        self._is_swapping = True
        return SwapJob(disk=self._disk, directory=self.directory, result=result, replaced=replaced)

    def discard(self, base_offsets: Iterable[int]) -> None:
        """Remove the files that a compaction has made in vain. Blocks. Raises StorageFailure."""
        discard(self._disk, self.directory, base_offsets)

    def complete_swap(self, result: CompactionResult, new: Sequence[Segment]) -> None:
        """The new segments, which the job has opened, have the old ones' names: read them from now on."""
        self._is_swapping = False
        self.cleaned_offset = max(self.cleaned_offset, result.cleaned_offset)
        kept = [segment for segment in self.segments if segment.base_offset not in result.replaced]
        self.segments = sorted([*new, *kept], key=reading.base_offset)
        self._positions.clear()

    def close(self) -> None:
        """Write, flush and seal everything: the next start finds a clean log. Blocks. Raises StorageFailure."""
        self.write()
        if not self._active.sealed:
            self._unsynced.append(self._active)
            self._flush_job((self.log_end_offset, self.producers.entries())).run()
        self._close_files()

    def abandon(self) -> None:
        """Write nothing more, and open nothing: after a StorageFailure, or before a delete.

        The names may be another log's soon; who reads a slice of a file that is open can finish.
        """
        self._pending = []
        for segment in self.segments:
            segment.release()

    def _can_drop(self, kept: list[Segment], start_offset: int) -> bool:
        """Whether the first segment holds nothing that the log still has; compaction may have emptied its end."""
        if len(kept) == 1 or self._is_swapping:
            return False
        return kept[0].sealed and kept[1].base_offset <= start_offset

    def _flush_job(self, snapshot: tuple[int, ProducerEntries] | None) -> FlushJob:
        for segment in self._unsynced:
            segment.finish()
        job = FlushJob(
            disk=self._disk,
            directory=self.directory,
            active=self._active,
            closed=tuple(self._unsynced),
            snapshot=snapshot,
            leader_epochs=self.leader_epochs.encode() if self.leader_epochs.is_dirty else None,
            directory_changed=self._directory_changed,
            offset=self.written_offset,
        )
        self._unsynced = []
        self._directory_changed = False
        return job

    def _close_files(self) -> None:
        for segment in self.segments:
            segment.close()

    def _buffer(self, batch: Bytes, header: BatchHeader, leader_epoch: int, timestamp_ms: int) -> None:
        base_offset = self.log_end_offset
        size = len(batch)
        self.leader_epochs.assign(leader_epoch, base_offset)
        self._pending.append(placed_prefix(base_offset, header, leader_epoch))
        self._pending.append(memoryview(batch)[17:])
        last_offset = base_offset + header.last_offset_delta
        self._active.note(last_offset, timestamp_ms, self._end_position, size, self.topic.index_interval_bytes)
        self._end_position += size
        self.log_end_offset = Offset(last_offset + 1)
        self._probe.appended_batches += 1
        self._probe.appended_records += header.records_count
        self._probe.appended_bytes += size

    def _roll_if_due(self, size: int, now_ms: int) -> None:
        active = self._active
        if active.sealed:
            self._reopen(active)
        if self._end_position == 0 or active.first_append_ms is None:
            active.first_append_ms = now_ms
        too_large = self._end_position + size > min(self.topic.segment_bytes, MAX_BYTES)
        too_old = now_ms - active.first_append_ms >= self._max_segment_age_ms()
        too_wide = self.log_end_offset - active.base_offset > MAX_BYTES
        if self._end_position and (too_large or too_old or too_wide):
            self._roll(now_ms)
        self._active.last_append_ms = now_ms

    def _max_segment_age_ms(self) -> int:
        """What is still written cannot be compacted: with a limit for that, a segment is closed sooner.

        The jitter comes from the segment's name: it differs from segment to segment, and is the same at each look.
        """
        topic = self.topic
        age_ms = topic.segment_ms
        if "compact" in topic.cleanup_policy:
            age_ms = min(age_ms, topic.max_compaction_lag_ms)
        if topic.segment_jitter_ms:
            age_ms -= crc32c(self._active.path("log").encode()) % min(topic.segment_jitter_ms, age_ms)
        return age_ms

    def _roll(self, now_ms: int) -> None:
        self.write()
        closed = self._active
        self._snapshot = self.producers.entries()
        segment = Segment(self._disk, self.directory, self.log_end_offset, create=True)
        segment.first_append_ms = now_ms
        self.segments.append(segment)
        self._unsynced.append(closed)
        self._directory_changed = True
        self._end_position = 0
        self._remember_position(segment.base_offset, 0)
        log.info(
            "segment rolled partition=%s base_offset=%d bytes=%d", self.directory, segment.base_offset, closed.size
        )

    def _reopen(self, segment: Segment) -> None:
        """Go on writing a segment that a clean stop has sealed."""
        segment.reopen()
        self._directory_changed = True

    def _position_of(self, segment: Segment, offset: int) -> int:
        known = self._positions.get(offset)
        if known is not None and offset >= segment.base_offset:
            return known
        position = reading.position_of(segment, offset)
        self._remember_position(offset, position)
        return position

    def _remember_position(self, offset: int, position: int) -> None:
        """Where a reader will go on, or where the high watermark will be: found again without a search."""
        self._positions[offset] = position
        if len(self._positions) > _REMEMBERED_POSITIONS:
            self._positions.popitem(last=False)
