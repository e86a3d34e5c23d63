"""The end of a log: batches are buffered at the log end offset, and written into the active segment, which rolls."""

import logging
from dataclasses import dataclass, field

from conveyor.kernel.ids import Offset
from conveyor.kernel.ports import Bytes
from conveyor.log.file_jobs import FileJobs
from conveyor.log.log_parts import LogParts
from conveyor.log.partition_directory import PartitionDirectory
from conveyor.log.producers.producer_state import ProducerEntries
from conveyor.log.retention_limits import is_too_old
from conveyor.log.segments.log_segments import LogSegments
from conveyor.log.segments.segment import MAX_BYTES, Segment
from conveyor.log.segments.segment_age import max_age_ms
from conveyor.records.batch import MAGIC_END, BatchHeader, placed_prefix
from conveyor.settings.tree import TopicSettings

MANY_SEGMENTS = 1_000
_SMALL_BYTES = 1 << 20
"""A log with many segments rolls none below this size, which is the least `segment.bytes` of Kafka 4 (KIP-1030): each
takes 4 files and 2.5 KB of memory, and with `segment.ms=1` a client would make one of each record.
"""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Unflushed:
    """The parts of a log that the next flush makes durable, beside the active segment's file.

    closed: the segments closed since the last flush. snapshot: the producers at the last roll or truncation, and the
    log end offset at that time. is_snapshot_due: a truncation may have removed all snapshots, so no segment is removed
    until one is flushed.
    """

    directory_changed: bool
    closed: list[Segment] = field(default_factory=list)
    snapshot: tuple[int, ProducerEntries] = (0, ProducerEntries())
    is_snapshot_due: bool = False


class Tail:
    """The segments of a log, its end, and all that changes with an append. See `Log` for the offsets."""

    def __init__(self, place: PartitionDirectory, topic: TopicSettings, parts: LogParts) -> None:
        self.place, self.topic = place, topic
        self.producers, self.leader_epochs = parts.producers, parts.leader_epochs
        self.segments = LogSegments(parts.segments)
        self.log_end_offset = self.written_offset = Offset(self.segments.active.next_offset)
        self.unflushed, self.jobs = Unflushed(directory_changed=parts.fresh), FileJobs()
        self.gap_end = 0
        """The end of the last offsets that were skipped; see `Flushes.recoverable_offset`."""
        self._pending: list[Bytes] = []
        self._end_position = self.segments.active.size

    @property
    def is_empty(self) -> bool:
        """Whether the log has no batch at all."""
        return len(self.segments.all) == 1 and not self._end_position

    def add(
        self, content: Bytes, header: BatchHeader, base_offset: Offset, leader_epoch: int, timestamp_ms: int,
        now_ms: int,
    ) -> Offset:  # fmt: skip
        """Buffer a batch at an offset, which may be above the log end offset on a follower. Returns its last offset.

        A missing record may have been the first of its epoch; see `LeaderEpochs.assign`. Raises StorageFailure.
        """
        assert not self.jobs.is_truncating, "a truncation of this log is not complete"
        size = len(content)
        last_offset = Offset(base_offset + header.last_offset_delta)
        self._roll_if_due(size, base_offset, last_offset, now_ms)
        self.leader_epochs.assign(leader_epoch, self.log_end_offset, base_offset)
        self._pending.append(placed_prefix(base_offset, header, leader_epoch))
        self._pending.append(memoryview(content)[MAGIC_END:])
        self.segments.active.note(last_offset, timestamp_ms, self._end_position, size, self.topic.index_interval_bytes)
        self._end_position += size
        self.log_end_offset = Offset(last_offset + 1)
        return last_offset

    def write(self) -> None:
        """Write all buffered batches with one system call, if possible. Raises StorageFailure."""
        if self._pending:
            buffers, self._pending = self._pending, []
            self.segments.active.file.append(buffers)
            self.written_offset = self.log_end_offset
            self.segments.remember(self.segments.active, self.log_end_offset, self._end_position)

    def discard_pending(self) -> None:
        """Forget the buffered batches, which are never written."""
        self._pending = []

    def begin_below(self, base_offset: int) -> None:
        """Replace the only segment, which is empty, because the first batch also holds offsets below the log start."""
        begun = Segment(self.place, self.place.path, base_offset, create=True)
        self.place.sync_directory(self.place.path)  # A directory without a segment counts as damaged.
        self.segments.active.file.detach()  # A flush in progress may still sync it.
        self.segments.active.indexes.stored.close()
        self.segments.active.files.remove()
        self.segments.replace([begun])
        self.unflushed.directory_changed = True

    def skip_to(self, offset: Offset, now_ms: int) -> None:
        """Continue in a new segment at a higher offset. Raises StorageFailure."""
        self.leader_epochs.skip(self.log_end_offset, offset)
        self._roll(now_ms, offset)
        self.log_end_offset = self.written_offset = offset

    def roll_if_too_old(self, now_ms: int) -> None:
        """Roll the active segment if all its records are older than `retention.ms`. Raises StorageFailure."""
        if not self.jobs.is_truncating and self._end_position and is_too_old(self.segments.active, self.topic, now_ms):
            self._roll(now_ms, self.log_end_offset)

    def end_at(self, offset: Offset) -> None:
        """Let the log end at another offset, in memory; `continue_in` follows."""
        self.log_end_offset = self.written_offset = offset
        self.gap_end = min(self.gap_end, offset)
        self.segments.forget_positions()

    def continue_in(self, segments: list[Segment]) -> None:
        """Use the segments that a truncation has left."""
        self.segments.replace(segments)
        self._end_position = self.segments.active.size
        unflushed = self.unflushed
        unflushed.closed = [segment for segment in unflushed.closed if segment in segments]
        unflushed.snapshot = self.log_end_offset, self.producers.entries()
        unflushed.is_snapshot_due = len(self.producers) > 0

    def _roll_if_due(self, size: int, base_offset: Offset, last_offset: Offset, now_ms: int) -> None:
        active = self.segments.active
        if active.indexes.seal is not None:
            self._reopen(active)
        if self._end_position == 0 or active.first_append_ms is None:
            active.first_append_ms = now_ms
        is_too_large = self._end_position + size > min(self.topic.segment_bytes, MAX_BYTES)
        is_too_old_to_grow = now_ms - active.first_append_ms >= max_age_ms(active, self.topic)
        is_too_wide = last_offset - active.base_offset > MAX_BYTES
        is_small = len(self.segments.all) >= MANY_SEGMENTS and self._end_position + size <= _SMALL_BYTES
        if is_too_wide or (self._end_position and not is_small and (is_too_large or is_too_old_to_grow)):
            is_far = last_offset - self.log_end_offset > MAX_BYTES
            self._roll(now_ms, base_offset if is_far else self.log_end_offset)
        self.segments.active.last_append_ms = now_ms

    def _roll(self, now_ms: int, base_offset: Offset) -> None:
        self.write()
        if base_offset > self.log_end_offset:
            self.gap_end = base_offset
        closed = self.segments.active
        if closed.sealed:
            self._reopen(closed)
        self.unflushed.snapshot = base_offset, self.producers.entries()
        segment = Segment(self.place, self.place.path, base_offset, create=True)
        segment.first_append_ms = now_ms
        self.segments.add(segment)
        self.unflushed.closed.append(closed)
        self.unflushed.directory_changed = True
        self._end_position = 0
        log.info("segment rolled partition=%s base_offset=%d bytes=%d", self.place.path, base_offset, closed.size)

    def _reopen(self, segment: Segment) -> None:
        """Continue to write a segment that a clean stop sealed."""
        segment.indexes.reopen()
        self.unflushed.directory_changed = True
