"""Opening a log: what is on the disk, checked, and cut at the first batch that does not check out.

- A segment with a seal was flushed whole before the seal was written: its bounds are in the seal. After a clean stop,
  which seals the last segment too, sizes are compared and nothing is read; after a crash the end of each sealed segment
  is read: has anybody touched it?
- A segment without one, or with one that does not check out, is read batch by batch and its CRCs checked.
  What it holds is flushed then: a reader, and a producer that repeats itself, may rely on it.
- What does not check out at the end of the log is a write that was cut off: the log ends before it, and segments after
  it go, which were not flushed either; `cut` keeps all of that aside. Never so in a segment that was flushed and has
  others after it: a hole in the middle is a StorageFailure, and the partition stays offline. So a segment that is found
  whole here, and is not the last, is sealed at once: from now on it counts as flushed.
"""

import logging
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ids import Offset, TopicId
from conveyor.kernel.ports import Directory, Disk
from conveyor.log.compaction.swap import finish_swap
from conveyor.log.leader_epochs import NAME as LEADER_EPOCHS
from conveyor.log.leader_epochs import LeaderEpochs, load_leader_epochs
from conveyor.log.log import Log, LogParts
from conveyor.log.log_probe import LogProbe
from conveyor.log.partition_directory import PartitionDirectory
from conveyor.log.producers.producer_snapshot import SUFFIX as SNAPSHOT
from conveyor.log.producers.producer_snapshot import encode_snapshot, load_newest_snapshot, remove_snapshots
from conveyor.log.producers.producer_state import ProducerState
from conveyor.log.recovery.cut import KEPT_CUTS, Cut
from conveyor.log.segments.lookup import headers
from conveyor.log.segments.offset_file import CLEANED, LOG_START, read_offset
from conveyor.log.segments.segment import OFFSET_DIGITS, Segment, segment_path
from conveyor.records.batch import HEADER_BYTES, BatchHeader, batch_is_intact, read_header
from conveyor.settings.tree import ProducerSettings, TopicSettings

log = logging.getLogger(__name__)

_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opening:
    """What all steps of opening one log need."""

    disk: PartitionDirectory
    directory: str
    topic: TopicSettings
    probe: LogProbe
    cleaned_offset: int
    cut: Cut

    def has_gaps(self, segment: Segment) -> bool:
        return segment.base_offset < self.cleaned_offset


def open_log(
    root: Disk,
    directory: str,
    topic_id: TopicId,
    topic: TopicSettings,
    producers: ProducerSettings,
    probe: LogProbe,
    now_ms: int,
) -> Log:
    """Open the log in a directory, or start an empty one. Reads files: call it off the event loop.

    Raises StorageFailure: a hole in the middle, files that cannot be read, or those of another topic.
    """
    root.make_directory(directory)
    disk = PartitionDirectory(root, directory, topic_id)
    disk.claim()
    finish_swap(disk, directory)
    names = disk.list(directory)
    start_offset = read_offset(disk, directory, LOG_START)
    cleaned_offset = read_offset(disk, directory, CLEANED)
    cut = Cut(disk=root, directory=directory, now_ms=now_ms)
    opening = _Opening(disk=disk, directory=directory, topic=topic, probe=probe, cleaned_offset=cleaned_offset, cut=cut)
    _tell_of_strangers(directory, names)
    bases = _offsets(names, ".log")
    sealed = set(_offsets(names, ".seal"))
    _check_nothing_is_missing(directory, names, bases, sealed, start_offset)
    bases = _without_trimmed(disk, directory, bases, start_offset)
    segments = [Segment(disk, directory, base) for base in bases]
    if segments and bases[0] > start_offset:
        segments = _without_start(opening, segments, sealed, start_offset)
    segments = _check_segments(opening, segments, sealed) if segments else []
    was_stopped_cleanly = not bases or (bool(segments) and segments[-1].ends_log)
    if segments and segments[-1].next_offset < start_offset:
        segments.pop().remove()
        disk.sync_directory(directory)
    fresh = not segments
    if fresh:
        segments = [Segment(disk, directory, start_offset, create=True)]
    state, epochs = _recover_state(disk, directory, segments, producers, now_ms)
    start_offset = max(start_offset, segments[0].base_offset)
    epochs.cut_start(start_offset)
    parts = LogParts(segments, state, epochs, start_offset, cleaned_offset, fresh, was_stopped_cleanly)
    return Log(disk, directory, topic, parts, probe)


def _offsets(names: Iterable[str], suffix: str) -> list[int]:
    """The base offsets of the files with a suffix among a directory's names, rising."""
    stems = [name.removesuffix(suffix) for name in names if name.endswith(suffix)]
    return sorted(int(stem) for stem in stems if len(stem) == OFFSET_DIGITS and stem.isdecimal())


def _tell_of_strangers(directory: str, names: Iterable[str]) -> None:
    for name in names:
        if name.endswith(".log") and not _offsets([name], ".log"):
            log.warning(
                "file ignored path=%s/%s: a segment is named by its base offset in %d digits;"
                " if its records belong here, stop the broker and rename it, else move it elsewhere",
                directory, name, OFFSET_DIGITS,
            )  # fmt: skip


def _check_nothing_is_missing(
    directory: str, names: list[str], bases: list[int], sealed: set[int], start_offset: int
) -> None:
    """A seal, or a file of what a log remembers, is there only after its segment's file. Raises StorageFailure."""
    orphans = [base for base in sorted(sealed.difference(bases)) if base >= start_offset]
    if orphans:
        raise StorageFailure(
            f"the log has a hole: {segment_path(directory, orphans[0], 'log')} is not there, and was on the disk"
        )
    if not bases and start_offset == 0 and LEADER_EPOCHS in names:
        raise StorageFailure(f"the segment files of {directory} are gone, and other files of it are there")


def _without_trimmed(disk: Directory, directory: str, bases: list[int], start_offset: int) -> list[int]:
    """Remove the files of segments that end before the log does start; returns the others."""
    kept = bisect_right(bases, start_offset) - 1
    if kept <= 0:
        return bases
    for base in bases[:kept]:
        Segment(disk, directory, base).remove()
    disk.sync_directory(directory)
    return bases[kept:]


def _without_start(opening: _Opening, segments: list[Segment], sealed: set[int], start_offset: int) -> list[Segment]:
    """A power cut may forget a log's first file and keep a later one, if nothing was flushed yet: the log is empty."""
    if sealed:
        raise StorageFailure(
            f"the log has a hole: it starts at offset {start_offset}, {opening.directory} begins with segment"
            f" {segments[0].base_offset}"
        )
    _cut_off(opening, segments)
    return []


def _check_segments(opening: _Opening, segments: list[Segment], sealed: set[int]) -> list[Segment]:
    """Load what is sealed, check what is not. Returns the segments that the log goes on with."""
    for segment in segments:
        if segment.base_offset in sealed:
            segment.load_seal()
    was_stopped_cleanly = segments[-1].ends_log
    if segments[-1].sealed and not was_stopped_cleanly:
        raise StorageFailure(
            f"the log has a hole: a segment followed {segments[-1].path('log')}, at offset {segments[-1].next_offset},"
            " and is not there"
        )
    for number, segment in enumerate(segments, 1):
        is_last = number == len(segments)
        flushed = segment.base_offset in sealed
        if not (segment.sealed and (was_stopped_cleanly or _end_is_sound(opening, segment))):
            _recover(opening, segment, may_cut=is_last or not flushed)
        if is_last:
            break
        following = segments[number].base_offset
        if segment.next_offset > following or (segment.next_offset < following and not opening.has_gaps(segment)):
            if flushed:
                raise StorageFailure(
                    f"the log has a hole: {segment.path('log')} ends before offset {segment.next_offset},"
                    f" the next segment begins at {following}"
                )
            _cut_off(opening, segments[number:])
            return segments[:number]
        if not segment.sealed:
            segment.finish()
            encoded = segment.encoded_indexes()
            segment.write_indexes(encoded)
            segment.seal(encoded.seal)
    return segments


def _recover(opening: _Opening, segment: Segment, *, may_cut: bool) -> None:
    """Check a segment batch by batch, cut it where that ends, and make it and its name durable.

    may_cut: nothing after it was flushed, so a damaged end is a write that was cut off. Raises StorageFailure.
    """
    segment.forget_indexes()
    segment.last_append_ms = opening.cut.now_ms
    end = _scan(segment, opening.topic.index_interval_bytes, has_gaps=opening.has_gaps(segment))
    if end != segment.size and not may_cut:
        raise StorageFailure(f"{segment.path('log')} is damaged at {end}, and later segments follow it")
    opening.probe.recovered_segments += 1
    segment.remove_index_files()
    if end != segment.size:
        log.warning(
            "log cut partition=%s offset=%d bytes=%d: what followed is no whole batch, and is kept as %s;"
            " of each partition the newest %d cuts are kept",
            opening.directory, segment.next_offset, segment.size - end, opening.cut.keep_tail(segment, end), KEPT_CUTS,
        )  # fmt: skip
        opening.probe.truncated_bytes += segment.size - end
        segment.file.truncate(end)
    segment.file.sync()
    opening.disk.sync_directory(opening.directory)


def _cut_off(opening: _Opening, segments: list[Segment]) -> None:
    """Take whole segments off the end of a log, the last one first."""
    for segment in reversed(segments):
        log.warning(
            "segment cut off partition=%s base_offset=%d bytes=%d: the log ends before it; it is kept as %s",
            opening.directory, segment.base_offset, segment.size, opening.cut.keep_segment(segment),
        )  # fmt: skip
        opening.probe.truncated_bytes += segment.size


def _end_is_sound(opening: _Opening, segment: Segment) -> bool:
    """Read a sealed segment from its last index entry on."""
    try:
        entries = segment.offset_entries
    except StorageFailure:
        return False
    next_offset, end = segment.base_offset, 0
    if len(entries):
        delta, end = entries[len(entries) - 1]
        indexed = _intact_batch(segment, end)
        if indexed is None or indexed.next_offset != segment.base_offset + delta + 1:
            return False
        next_offset = indexed.base_offset
    while end < segment.size:
        header = _intact_batch(segment, end)
        if header is None or not _follows(next_offset, header, opening.has_gaps(segment)):
            return False
        end += header.size
        next_offset = header.next_offset
    return next_offset == segment.next_offset


def _follows(next_offset: int, header: BatchHeader, has_gaps: bool) -> bool:
    """Whether a batch goes on where the one before has ended; after a compaction it may be further on."""
    return header.base_offset == next_offset or (has_gaps and header.base_offset > next_offset)


def _scan(segment: Segment, interval_bytes: int, *, has_gaps: bool) -> int:
    """Check every batch from the start, making the indexes; returns where the first unsound one begins."""
    position = 0
    buffer, buffer_start = b"", 0
    while position < segment.size:
        within = position - buffer_start
        size = read_header(buffer, within).size if within + HEADER_BYTES <= len(buffer) else 0
        if size < HEADER_BYTES or within + size > len(buffer):
            size = _size_at(segment, position)
            if size == 0:
                return position
            buffer, buffer_start, within = segment.file.read(position, max(size, _READ_BYTES)), position, 0
        batch = memoryview(buffer)[within : within + size]
        header = read_header(batch)
        if not _follows(segment.next_offset, header, has_gaps) or not batch_is_intact(batch):
            return position
        segment.note(header.next_offset - 1, header.max_timestamp, position, size, interval_bytes)
        position += size
    return position


def _size_at(segment: Segment, position: int) -> int:
    """The size of a whole batch at a position, or 0."""
    if position + HEADER_BYTES > segment.size:
        return 0
    size = segment.header_at(position).size
    return size if HEADER_BYTES <= size <= segment.size - position else 0


def _intact_batch(segment: Segment, position: int) -> BatchHeader | None:
    size = _size_at(segment, position)
    batch = segment.file.read(position, size)
    return read_header(batch) if size and batch_is_intact(batch) else None


def _recover_state(
    disk: Directory, directory: str, segments: list[Segment], settings: ProducerSettings, now_ms: int
) -> tuple[ProducerState, LeaderEpochs]:
    """Producers and leader epochs: from their files, and from the headers of the batches that came after those.

    What is known of producers before the last segment is on the disk then: the segments that say it may be deleted.
    """
    producers = ProducerState(settings.max_producers_per_partition, settings.producer_id_expiration_ms)
    end = segments[-1].next_offset
    remove_snapshots(disk, directory, above=end)
    known = load_newest_snapshot(disk, directory, producers, end)
    epochs = load_leader_epochs(disk, directory)
    read_from = 0 if epochs is None else known
    epochs = epochs or LeaderEpochs()
    epochs.cut_end(end)
    for segment in segments:
        if segment is segments[-1] and known < segment.base_offset and len(producers):
            path = segment_path(directory, segment.base_offset, SNAPSHOT)
            disk.write_atomic(path, encode_snapshot(producers.entries()))
        if segment.next_offset > read_from:
            for _, header in headers(segment, segment.position_before(read_from)):
                epochs.assign(header.leader_epoch, header.base_offset)
                if header.producer_id >= 0 and header.base_offset >= known:
                    producers.record(header, Offset(header.base_offset), now_ms)
    producers.expire(now_ms)
    return producers, epochs
