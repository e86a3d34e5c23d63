"""Opening a log: what is on the disk, checked, and cut at the first batch that does not check out.

- A segment with a seal was flushed whole before the seal was written: its bounds are in the seal. After a clean stop
  nothing else is read but the end of the last segment, after a crash the end of each: has anybody touched it?
- A segment without one, or with one that does not check out, is read batch by batch and its CRCs checked.
  What it holds is flushed then: a reader, and a producer that repeats itself, may rely on it.
- What does not check out at the end of the log is a write that was cut off: the log ends before it, and segments after
  it are removed, which were not flushed either. Never so in a segment that was flushed and has others after it: a hole
  in the middle is a StorageFailure, and the partition stays offline. So a segment that is found whole here, and is not
  the last, is sealed at once: from now on it counts as flushed.
"""

import logging
from bisect import bisect_right
from collections.abc import Collection, Iterable

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ids import Offset
from conveyor.kernel.ports import Disk
from conveyor.kernel.settings import ProducerSettings, TopicSettings
from conveyor.log.batch import HEADER_BYTES, BatchHeader, batch_is_intact, read_header
from conveyor.log.leader_epochs import NAME as LEADER_EPOCHS
from conveyor.log.leader_epochs import LeaderEpochs, load_leader_epochs
from conveyor.log.log import Log, LogParts
from conveyor.log.offset_file import CLEANED, LOG_START, read_offset
from conveyor.log.probe import LogProbe
from conveyor.log.producer_state import ProducerState
from conveyor.log.reading import headers
from conveyor.log.segment import OFFSET_DIGITS, Segment
from conveyor.log.snapshot import load_newest_snapshot, remove_snapshots
from conveyor.log.swap import finish_swap

log = logging.getLogger(__name__)

_READ_BYTES = 1 << 20


def open_log(
    disk: Disk, directory: str, topic: TopicSettings, producers: ProducerSettings, probe: LogProbe, now_ms: int
) -> Log:
    """Open the log in a directory, or start an empty one. Reads files: call it off the event loop.

    Raises StorageFailure: a hole in the middle, or files that cannot be read.
    """
    disk.make_directory(directory)
    finish_swap(disk, directory)
    names = disk.list(directory)
    start_offset = read_offset(disk, directory, LOG_START)
    cleaned_offset = read_offset(disk, directory, CLEANED)
    bases = _bases(names)
    _check_nothing_is_missing(directory, names, bases, start_offset)
    bases = _without_trimmed(disk, directory, bases, start_offset)
    if bases and bases[0] > start_offset:
        bases = _without_start(disk, directory, bases, names, start_offset)
    segments = _open_segments(disk, directory, bases, set(names), topic, probe, cleaned_offset) if bases else []
    if segments and segments[-1].next_offset < start_offset:
        _remove(disk, directory, [segment.base_offset for segment in segments])
        segments = []
    fresh = not segments
    if fresh:
        segments = [Segment(disk, directory, start_offset)]
    state, epochs = _recover_state(disk, directory, segments, producers, now_ms)
    start_offset = max(start_offset, segments[0].base_offset)
    epochs.cut_start(start_offset)
    return Log(disk, directory, topic, LogParts(segments, state, epochs, start_offset, cleaned_offset, fresh), probe)


def _bases(names: Iterable[str]) -> list[int]:
    """The base offsets of the segments among a directory's names, rising."""
    stems = [name.removesuffix(".log") for name in names if name.endswith(".log")]
    return sorted(int(stem) for stem in stems if len(stem) == OFFSET_DIGITS and stem.isdecimal())


def _check_nothing_is_missing(directory: str, names: list[str], bases: list[int], start_offset: int) -> None:
    """A seal, or a file of what a log remembers, is there only after its segment's file. Raises StorageFailure."""
    sealed = [name.removesuffix(".seal") for name in names if name.endswith(".seal")]
    orphans = [stem for stem in sealed if int(stem) not in bases and int(stem) >= start_offset]
    if orphans:
        raise StorageFailure(f"the log has a hole: {directory}/{orphans[0]}.log is not there, and was on the disk")
    if not bases and start_offset == 0 and LEADER_EPOCHS in names:
        raise StorageFailure(f"the segment files of {directory} are gone, and other files of it are there")


def _is_sealed(base: int, names: Collection[str]) -> bool:
    return f"{base:0{OFFSET_DIGITS}d}.seal" in names


def _without_trimmed(disk: Disk, directory: str, bases: list[int], start_offset: int) -> list[int]:
    """Remove the files of segments that end before the log does start; returns the others."""
    kept = bisect_right(bases, start_offset) - 1
    if kept <= 0:
        return bases
    for base in bases[:kept]:
        Segment(disk, directory, base).remove()
    disk.sync_directory(directory)
    return bases[kept:]


def _without_start(disk: Disk, directory: str, bases: list[int], names: list[str], start_offset: int) -> list[int]:
    """A power cut may forget a log's first file and keep a later one, if nothing was flushed yet: nothing is kept."""
    if any(name.endswith(".seal") for name in names):
        raise StorageFailure(
            f"the log has a hole: it starts at offset {start_offset}, {directory} begins with segment {bases[0]}"
        )
    _remove(disk, directory, bases)
    return []


def _open_segments(
    disk: Disk,
    directory: str,
    bases: list[int],
    names: set[str],
    topic: TopicSettings,
    probe: LogProbe,
    cleaned_offset: int,
) -> list[Segment]:
    segments: list[Segment] = []
    was_stopped_cleanly = _is_sealed(bases[-1], names)
    for base, following in zip(bases, [*bases[1:], None], strict=True):
        segment = Segment(disk, directory, base)
        segments.append(segment)
        flushed = _is_sealed(base, names)
        has_gaps = base < cleaned_offset
        is_last = following is None
        is_trusted = was_stopped_cleanly and not is_last
        if not (flushed and segment.load_seal() and (is_trusted or _end_is_sound(segment, has_gaps=has_gaps))):
            _recover(disk, directory, segment, topic, probe, has_gaps=has_gaps, may_cut=is_last or not flushed)
        if following is None:
            break
        if segment.next_offset > following or (segment.next_offset < following and not has_gaps):
            if flushed:
                raise StorageFailure(
                    f"the log has a hole: {segment.path('log')} ends before offset {segment.next_offset},"
                    f" the next segment begins at {following}"
                )
            _remove(disk, directory, [each for each in bases if each >= following])
            break
        if not segment.sealed:
            encoded = segment.encoded_indexes()
            segment.write_indexes(encoded)
            segment.seal(encoded.seal)
    return segments


def _recover(
    disk: Disk,
    directory: str,
    segment: Segment,
    topic: TopicSettings,
    probe: LogProbe,
    *,
    has_gaps: bool,
    may_cut: bool,
) -> None:
    """Check a segment batch by batch, cut it where that ends, and make it and its name durable.

    may_cut: nothing after it was flushed, so a damaged end is a write that was cut off. Raises StorageFailure.
    """
    segment.forget_indexes()
    end = _scan(segment, topic.index_interval_bytes, has_gaps=has_gaps)
    if end != segment.size and not may_cut:
        raise StorageFailure(f"{segment.path('log')} is damaged at {end}, and later segments follow it")
    probe.recovered_segments += 1
    segment.remove_index_files()
    if end != segment.size:
        log.warning(
            "log cut partition=%s offset=%d bytes=%d: what followed is no whole batch",
            segment.path("log"), segment.next_offset, segment.size - end,
        )  # fmt: skip
        probe.truncated_bytes += segment.size - end
        segment.file.truncate(end)
    segment.file.sync()
    disk.sync_directory(directory)


def _end_is_sound(segment: Segment, *, has_gaps: bool) -> bool:
    """Read the last segment of a log that was stopped cleanly, from its last index entry on."""
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
        if header is None or not _follows(next_offset, header, has_gaps):
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


def _remove(disk: Disk, directory: str, bases: list[int]) -> None:
    for base in reversed(bases):
        log.warning("segment removed partition=%s base_offset=%d: the log ends before it", directory, base)
        Segment(disk, directory, base).remove()
    disk.sync_directory(directory)


def _recover_state(
    disk: Disk, directory: str, segments: list[Segment], settings: ProducerSettings, now_ms: int
) -> tuple[ProducerState, LeaderEpochs]:
    """Producers and leader epochs: from their files, and from the headers of the batches that came after those."""
    producers = ProducerState(settings.max_producers_per_partition, settings.producer_id_expiration_ms)
    end = segments[-1].next_offset
    remove_snapshots(disk, directory, above=end)
    known = load_newest_snapshot(disk, directory, producers, end)
    epochs = load_leader_epochs(disk, directory)
    read_from = 0 if epochs is None else known
    epochs = epochs or LeaderEpochs()
    epochs.cut_end(end)
    for segment in segments:
        if segment.next_offset > read_from:
            for _, header in headers(segment, segment.position_before(read_from)):
                epochs.assign(header.leader_epoch, header.base_offset)
                if header.producer_id >= 0 and header.base_offset >= known:
                    producers.record(header, Offset(header.base_offset), now_ms)
    producers.expire(now_ms)
    return producers, epochs
