"""The log of one partition. Appends are buffered, written together and flushed together; reads return file slices.

Invariant: log_start_offset <= flushed_offset <= written_offset <= log_end_offset

    flushed  on the disk           advanced by `complete_flush`
    written  in the page cache     advanced by `write`; only written records can be read
    end      buffered              advanced by `append`, which assigns the offsets

Callers: `replication`, and the compaction of `broker`, from one thread. Only jobs such as `FlushJob` run off it. After
a StorageFailure the log must not be used any more; `open_log` recovers it from the disk.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec
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
from conveyor.log.segments import lookup
from conveyor.log.segments.segment import MAX_BYTES, Segment
from conveyor.log.segments.trim import TrimJob
from conveyor.records.batch import MAGIC_END, placed_prefix, with_append_time
from conveyor.records.checked_batch import CheckedBatch
from conveyor.records.timestamps import stamps_records
from conveyor.settings.tree import TopicSettings

log = logging.getLogger(__name__)

_REMEMBERED_POSITIONS = 64


class AppendInfo(NamedTuple):
    """The offsets of an appended batch, inclusive. `duplicate`: its idempotent producer had appended it before."""

    first_offset: Offset
    last_offset: Offset
    append_timestamp_ms: int
    duplicate: bool = False


class LogParts(msgspec.Struct, frozen=True):
    """The result of recovery, from which a `Log` starts. fresh: directory entries are not durable yet.

    was_stopped_cleanly: the last stop was clean, so no record has been lost.
    """

    segments: list[Segment]
    producers: ProducerState
    leader_epochs: LeaderEpochs
    log_start_offset: int
    cleaned_offset: int
    fresh: bool
    was_stopped_cleanly: bool


class Log:
    """One partition's log; see the module's docstring."""

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
        """Start a leader epoch at the log end offset, possibly long before its first record. Source: KIP-101."""
        self.leader_epochs.assign(leader_epoch, self.log_end_offset)

    def append(self, batch: CheckedBatch, leader_epoch: int, now_ms: int) -> AppendInfo:
        """Append one record batch and assign its offsets; `write` puts it into the file.

        The broker has checked the batch and its records. A stage may have dropped some or all records; their offsets
        are used up nevertheless.
        Raises RequestError (see `ProducerState.check`) and StorageFailure. Source: KIP-98.
        """
        content, header = batch.content, batch.header
        is_idempotent = header.producer_id >= 0
        if is_idempotent:
            earlier = self.producers.check(header)
            if earlier is not None:
                return AppendInfo(
                    Offset(earlier.base_offset), Offset(earlier.last_offset), earlier.append_timestamp_ms, True
                )
        timestamp_ms = header.max_timestamp
        if stamps_records(self.topic):
            content, timestamp_ms = with_append_time(content, now_ms), now_ms
        size = len(content)
        self._roll_if_due(size, now_ms)
        base_offset = self.log_end_offset
        last_offset = Offset(base_offset + header.last_offset_delta)
        self.leader_epochs.assign(leader_epoch, base_offset)
        self._pending.append(placed_prefix(base_offset, header, leader_epoch))
        self._pending.append(memoryview(content)[MAGIC_END:])
        self._active.note(last_offset, timestamp_ms, self._end_position, size, self.topic.index_interval_bytes)
        self._end_position += size
        self.log_end_offset = Offset(last_offset + 1)
        if is_idempotent:
            self.producers.record(header, base_offset, now_ms)
        self._probe.appended_batches += 1
        self._probe.appended_records += header.records_count
        self._probe.appended_bytes += size
        return AppendInfo(base_offset, last_offset, now_ms)

    def write(self) -> None:
        """Write all buffered batches with one system call, if possible. Raises StorageFailure."""
        if self._pending:
            buffers, self._pending = self._pending, []
            self._active.append(buffers)
            self.written_offset = self.log_end_offset
            self._remember_position(self.log_end_offset, self._end_position)

    def begin_flush(self) -> FlushJob:
        """Return the job that makes everything written so far durable. Run it off the event loop."""
        return self._flush_job((self._active.base_offset, self._snapshot) if self._unsynced else None)

    def complete_flush(self, job: FlushJob) -> None:
        """Advance the flushed offset after a job succeeded."""
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
        """Return the stored bytes from the batch that holds `offset` on; None if nothing is readable there yet.

        limit_offset: a batch boundary; no record at or above it is returned.
        max_bytes: the slice ends on a batch boundary within this size, but `at_least_one` batch is returned whole
        (KIP-74).
        failed: see `FileSlice`.
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
        segment = lookup.segment_for(self.segments, offset)
        start = self._position_of(segment, offset)
        if start >= segment.size and segment is not self._active:
            segment, start = lookup.first_with_records(self.segments, segment), 0
            if segment.base_offset >= limit_offset:
                return None
        limit = segment.size if limit_offset >= segment.next_offset else self._position_of(segment, limit_offset)
        end = lookup.cut(segment, start, limit, max_bytes, at_least_one=at_least_one)
        if end <= start:
            return None
        if end < limit:
            self._remember_position(segment.header_at(end).base_offset, end)
        return FileSlice(segment.file, start, end - start, failed)

    def roll_if_too_old(self, now_ms: int) -> None:
        """Roll the active segment if all its records are older than `retention.ms`. Raises StorageFailure."""
        if self._end_position and not self._active.sealed and is_too_old(self._active, self.topic, now_ms):
            self._roll(now_ms)

    def trim(self, offset: int) -> TrimJob:
        """Raise the log start offset and remove the segments entirely below it. Run the returned job off the event
        loop.

        Open slices stay readable. The active segment is never removed. Raises StorageFailure; then nothing has changed.
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
            removed_paths=tuple(path for segment in dropped for path in segment.paths()),
        )

    def plan_compaction(self, limit_offset: int, now_ms: int, max_keys: int) -> CompactionPlan | None:
        """Return the compaction that is due below `limit_offset`; None if none is."""
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
        """Start the swap of compacted segments. Run the job off the event loop, then call `complete_swap`.

        Returns None if the log has removed some of the originals meanwhile; the caller must then discard the result.
        """
        present = {segment.base_offset: segment for segment in self.segments[:-1] if segment.sealed}
        if not set(result.replaced) <= present.keys():
            return None
        replaced = [present[base] for base in result.replaced]
        self._is_swapping = True
        return SwapJob(disk=self._disk, directory=self.directory, result=result, replaced=replaced)

    def discard(self, base_offsets: Iterable[int]) -> None:
        """Remove the files of an unused compaction. Blocks. Raises StorageFailure."""
        discard(self._disk, self.directory, base_offsets)

    def complete_swap(self, result: CompactionResult, new: Sequence[Segment]) -> None:
        """Use the new segments, which the job has opened under the originals' names."""
        self._is_swapping = False
        self.cleaned_offset = max(self.cleaned_offset, result.cleaned_offset)
        kept = [segment for segment in self.segments if segment.base_offset not in result.replaced]
        self.segments = sorted([*new, *kept], key=lookup.base_offset)
        self._positions.clear()

    def close(self) -> None:
        """Write, flush and seal everything, so that the next start is a clean one. Blocks. Raises StorageFailure."""
        self.write()
        if not self._active.sealed:
            self._unsynced.append(self._active)
            self._flush_job((self.log_end_offset, self.producers.entries())).run()
        self._close_files()

    def abandon(self) -> None:
        """Stop writing and opening files: after a StorageFailure, or before the partition is deleted.

        The file names may soon belong to another log. Readers of open files can finish.
        """
        self._pending = []
        for segment in self.segments:
            segment.release()

    def _can_drop(self, kept: list[Segment], start_offset: int) -> bool:
        """Whether the first segment is entirely below the start offset. Compaction may have emptied its end."""
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

    def _roll_if_due(self, size: int, now_ms: int) -> None:
        active = self._active
        if active.sealed:
            self._reopen(active)
        if self._end_position == 0 or active.first_append_ms is None:
            active.first_append_ms = now_ms
        is_too_large = self._end_position + size > min(self.topic.segment_bytes, MAX_BYTES)
        is_too_old_to_grow = now_ms - active.first_append_ms >= self._max_segment_age_ms()
        is_too_wide = self.log_end_offset - active.base_offset > MAX_BYTES
        if self._end_position and (is_too_large or is_too_old_to_grow or is_too_wide):
            self._roll(now_ms)
        self._active.last_append_ms = now_ms

    def _max_segment_age_ms(self) -> int:
        """Return the age at which a segment rolls. A compacted topic rolls earlier, because an active segment is not
        compacted.

        The jitter is derived from the segment's path: different for each segment, and the same at each call.
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
        """Continue to write a segment that a clean stop sealed."""
        segment.reopen()
        self._directory_changed = True

    def _position_of(self, segment: Segment, offset: int) -> int:
        cached = self._positions.get(offset)
        if cached is not None and offset >= segment.base_offset:
            return cached
        position = lookup.position_of(segment, offset)
        self._remember_position(offset, position)
        return position

    def _remember_position(self, offset: int, position: int) -> None:
        """Cache the position of an offset at which a reader continues, or which will be the high watermark."""
        self._positions[offset] = position
        if len(self._positions) > _REMEMBERED_POSITIONS:
            self._positions.popitem(last=False)
