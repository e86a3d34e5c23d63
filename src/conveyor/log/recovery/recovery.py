"""Opens a log: checks its files, and truncates it at the first damaged batch.

- A segment with a seal was flushed completely before the seal was written, and so were all segments before it. Its
bounds are in the seal. After a clean stop, which seals the last segment too, recovery compares sizes and reads nothing.
After a crash it reads the end of each sealed segment, to detect external changes.
- A segment with a missing or damaged seal is read batch by batch from the disk, and its CRCs are checked. It is flushed
first, because readers and producer retries rely on its content. The page cache is not enough: a process whose flush has
failed may have left pages there that the disk lacks.
- Offsets may be missing where this broker or its leader has compacted them. Between two segments they may be missing
only if the first one was flushed: otherwise its end may have been lost, and the log ends there.
- A damaged end of the log is an interrupted write. The log ends before it, and later segments, which were not flushed
either, are removed; `cut` keeps copies. If an intact batch follows in the same segment, or a segment although the power
has not failed, or the file is shorter than at a clean stop, the damaged batch was probably complete: other replicas may
have it, so this one is not to lead before it has copied it again (`lacks_batches`). With `flush.policy=os` it may have
been acknowledged, unless a power failure excuses its loss. The file `lacking-offset` says so
until then, because the next recovery finds no damage.
- A seal of a clean stop does not count if another segment follows: its removal, before the segment was written again,
was forgotten in a power failure. With `flush.policy=os`, where no flush makes that removal durable, it never proves
that the last stop was clean.
- A damaged batch in a flushed segment that has successors, or a file of another size than its seal says, is a hole: a
StorageFailure, and the partition stays offline. For the same reason an intact segment that is not the last is sealed at
once: from then on it counts as flushed.
"""

import logging
from bisect import bisect_right
from collections.abc import Iterable, Sequence

import msgspec

from conveyor.kernel.errors import DiskFull, LogDamaged, LogIncomplete, StorageFailure
from conveyor.kernel.ids import Offset, TopicId
from conveyor.kernel.ports import Directory, Disk
from conveyor.log.compaction.swap import finish_swap
from conveyor.log.following.truncation_job import finish_truncation
from conveyor.log.leader_epochs import NAME as LEADER_EPOCHS
from conveyor.log.leader_epochs import NO_EPOCH, LeaderEpochs, load_leader_epochs
from conveyor.log.log import Log
from conveyor.log.log_parts import NOTHING_EXPECTED, ExpectedLog, LogParts, Recovered
from conveyor.log.log_probe import LogProbe
from conveyor.log.partition_directory import PartitionDirectory
from conveyor.log.producers.producer_snapshot import SUFFIX as SNAPSHOT
from conveyor.log.producers.producer_snapshot import (
    FoundSnapshot,
    encode_snapshot,
    load_newest_snapshot,
    remove_snapshots,
)
from conveyor.log.producers.producer_state import ProducerState
from conveyor.log.recovery.cut import KEPT_CUTS, Cut
from conveyor.log.recovery.segment_scan import end_is_sound, scan, was_complete
from conveyor.log.replay import replay_headers, replay_stored, restore_aborted
from conveyor.log.segments.files import OFFSET_DIGITS, segment_path
from conveyor.log.segments.lookup import headers_from
from conveyor.log.segments.offset_file import CLEANED, GAPS, LACKING, LOG_START, REMOVED, read_offset, write_offset
from conveyor.log.segments.seal import FoundSeal, decode_seal
from conveyor.log.segments.segment import Segment
from conveyor.settings.tree import ProducerSettings, TopicSettings

log = logging.getLogger(__name__)


class _Opening(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of all steps of opening one log. dense_from: no offset at or above is missing. has_cache: no power
    failure can have taken what was written. is_unflushed: see `ExpectedLog`.
    """

    disk: PartitionDirectory
    directory: str
    topic: TopicSettings
    probe: LogProbe
    cleaned_offset: int
    dense_from: int
    has_cache: bool
    is_unflushed: bool
    cut: Cut


def open_log(
    root: Disk,
    directory: str,
    topic_id: TopicId,
    topic: TopicSettings,
    producers: ProducerSettings,
    probe: LogProbe,
    now_ms: int,
    expected: ExpectedLog = NOTHING_EXPECTED,
) -> Log:
    """Open the log in a directory, or create an empty one. Reads files: call it off the event loop.

    Raises StorageFailure: LogDamaged for a hole or a damaged file; LogIncomplete if its only segment is missing, or if
    it ends before its start; others for unreadable files, or a directory of another topic.
    """
    is_new = not root.exists(directory)
    root.make_directory(directory)
    disk = PartitionDirectory(root, directory, topic_id)
    disk.claim()
    finish_swap(disk, directory)
    finish_truncation(disk, directory)
    names = disk.list(directory)
    stored_start = read_offset(disk, directory, LOG_START)
    start_offset = max(stored_start, expected.start_offset)
    cleaned_offset = read_offset(disk, directory, CLEANED)
    gap_offset = read_offset(disk, directory, GAPS)
    opening = _Opening(
        disk=disk, directory=directory, topic=topic, probe=probe, cleaned_offset=cleaned_offset,
        dense_from=max(cleaned_offset, gap_offset), has_cache=expected.has_segment,
        is_unflushed=expected.is_unflushed or topic.flush_policy == "os",
        cut=Cut(disk=root, directory=directory, now_ms=now_ms),
    )  # fmt: skip
    _warn_of_unknown_segments(directory, names)
    bases = _offsets(names, ".log")
    if expected.has_segment and not bases:
        raise LogIncomplete(f"{directory} has no segment, and was used before")
    sealed = set(_offsets(names, ".seal"))
    sealed -= _remove_empty_seals(disk, directory, sealed.difference(bases))
    _check_nothing_is_missing(directory, names, bases, sealed, start_offset)
    _remove_seals(disk, directory, sealed.difference(bases))
    segments = [Segment(disk, directory, base) for base in bases]
    kept = max(bisect_right(bases, start_offset) - 1, 0)
    trimmed, segments = segments[:kept], segments[kept:]
    if stored_start < start_offset:
        _restore_start(opening, segments, start_offset)
    if trimmed:
        _remove_trimmed(opening, trimmed, segments[0].base_offset, sealed, producers)
    if segments and segments[0].base_offset > start_offset:
        is_flushed = bool(sealed) or LEADER_EPOCHS in names or expected.is_flushed or expected.has_segment
        segments = _without_start(opening, segments, start_offset, is_flushed=is_flushed)
    segments = _check_segments(opening, segments, sealed) if segments else []
    was_stopped_cleanly = is_new or (not opening.is_unflushed and bool(segments) and _ends_log(segments[-1]))
    fresh = not segments or segments[-1].next_offset < start_offset
    if fresh:
        segments = [_begin(disk, directory, segments, start_offset)]
    start_offset = max(start_offset, segments[0].base_offset)
    if cleaned_offset > (end_offset := segments[-1].next_offset):  # Other records will be where lost ones were.
        write_offset(disk, directory, CLEANED, cleaned_offset := end_offset)
    state, epochs = _recover_state(disk, directory, segments, start_offset, producers, now_ms)
    state.transactions.forget_below(cleaned_offset)
    lacks_batches = _lacks_batches(disk, directory, end_offset)
    _check_epoch(directory, epochs.latest, expected.leader_epoch)
    epochs.cut_start(start_offset)
    known_offset = Offset(max(start_offset, min(expected.high_watermark, end_offset)))
    parts = LogParts(
        segments=segments, producers=state, leader_epochs=epochs, log_start_offset=start_offset,
        cleaned_offset=cleaned_offset, gap_offset=gap_offset, removed_end_offset=read_offset(disk, directory, REMOVED),
        fresh=fresh, recovered=Recovered(was_stopped_cleanly, lacks_batches, known_offset),
    )  # fmt: skip
    return Log(disk, topic, parts, probe)


def _check_epoch(directory: str, latest: int, newest: int) -> None:
    """Raise StorageFailure if the log has records of a leader epoch that the partition has not reached."""
    if latest > newest:
        raise StorageFailure(
            f"{directory} has records of leader epoch {latest}, and the newest is {newest}: a bit of the log has"
            " flipped, or the cluster's metadata is older than the log"
        )


def _offsets(names: Iterable[str], suffix: str) -> list[int]:
    """Return the base offsets of the files with this suffix, ascending."""
    stems = [name.removesuffix(suffix) for name in names if name.endswith(suffix)]
    return sorted(int(stem) for stem in stems if len(stem) == OFFSET_DIGITS and stem.isdecimal())


def _warn_of_unknown_segments(directory: str, names: Iterable[str]) -> None:
    for name in names:
        if name.endswith(".log") and not _offsets([name], ".log"):
            log.warning(
                "file ignored path=%s/%s: the name of a segment is its base offset in %d digits;"
                " if it is a segment of this log, stop the broker and rename it, otherwise move it elsewhere",
                directory, name, OFFSET_DIGITS,
            )  # fmt: skip


def _remove_empty_seals(disk: Directory, directory: str, orphans: Iterable[int]) -> set[int]:
    """Remove the seals of empty segments that are gone, as a follower's is if its leader's first batch begins below it.
    Returns their base offsets.

    Such a segment was the last one at a clean stop, and nothing above it was flushed: a flush makes the seal's removal
    durable. Another empty segment is missing if only its seal is there.
    """
    removed = set()
    for base in orphans:
        path = segment_path(directory, base, "seal")
        seal = decode_seal(disk.read(path))
        if seal is not None and seal.ends_log and not seal.size:
            disk.remove(path)
            removed.add(base)
    return removed


def _remove_seals(disk: Directory, directory: str, orphans: Iterable[int]) -> None:
    """Remove the seals that an interrupted trim has left: they would be taken for those of later segments of the same
    offset, with which a follower may begin again. Raises StorageFailure.
    """
    paths = [segment_path(directory, base, "seal") for base in orphans]
    for path in paths:
        disk.remove(path)
    if paths:
        disk.sync_directory(directory)


def _check_nothing_is_missing(
    directory: str, names: list[str], bases: list[int], sealed: set[int], start_offset: int
) -> None:
    """A seal or checkpoint file exists only after its segment's file. Raises LogDamaged if one is missing that
    is not below the one with the log start.
    """
    first = max((base for base in (*bases, *sealed) if base <= start_offset), default=0)
    orphans = [base for base in sorted(sealed.difference(bases)) if base >= first]
    if orphans:
        raise LogDamaged(
            f"the log has a hole: {segment_path(directory, orphans[0], 'log')} is missing, although it was on the disk"
        )
    if not bases and LEADER_EPOCHS in names:
        raise LogDamaged(f"the segment files of {directory} are missing, although other files of the log exist")


def _remove_trimmed(
    opening: _Opening, trimmed: list[Segment], first_offset: int, sealed: set[int], settings: ProducerSettings
) -> None:
    """Remove the segments that end below the log start. The log continues with a segment at `first_offset`.

    Nobody reads their records, so damage in them does not concern the log. But they may be all that is left of a
    producer: unless the state after their last record is stored, it is stored first. Raises StorageFailure, also if the
    disk is full or a segment cannot be read now: then the next start can still find the producers.
    """
    producers = _trimmed_producers(opening, trimmed, first_offset, sealed, settings)
    if producers is not None and len(producers):
        _store_producers(opening, trimmed, first_offset, producers)
    opening.disk.sync_directory(opening.directory)
    for segment in trimmed:
        segment.remove()
    opening.disk.sync_directory(opening.directory)


def _store_producers(opening: _Opening, trimmed: list[Segment], offset: int, producers: ProducerState) -> None:
    path, content = segment_path(opening.directory, offset, SNAPSHOT), encode_snapshot(producers.entries())
    try:
        opening.disk.write_atomic(path, content)
    except DiskFull:  # Indexes can be rebuilt, so removing them first to free space is safe.
        for segment in trimmed:
            segment.close()
            for suffix in ("index", "timeindex"):
                opening.disk.remove(segment.files.path(suffix))
        opening.disk.write_atomic(path, content)


def _trimmed_producers(
    opening: _Opening, trimmed: list[Segment], first_offset: int, sealed: set[int], settings: ProducerSettings
) -> ProducerState | None:
    """Return the producers of these segments, and of the newest snapshot. None if a snapshot at or above the first
    offset is stored, or if the segments below it are not whole. Raises StorageFailure if that cannot be found out now.
    """
    state = ProducerState(settings.max_producers_per_partition, settings.producer_id_expiration_ms)
    if load_newest_snapshot(opening.disk, opening.directory, state, first_offset).offset:
        return None
    whole: list[Segment] = []
    ends = [*(segment.base_offset for segment in trimmed[1:]), first_offset]
    for segment, end_offset in zip(trimmed, ends, strict=True):
        whole = [*whole, segment] if _is_whole(opening, segment, end_offset, sealed) else []
    if not whole:
        return None
    try:
        snapshot = load_newest_snapshot(opening.disk, opening.directory, state, whole[0].base_offset)
        replay_headers(whole, snapshot.offset, state, opening.cut.now_ms)
    except LogDamaged:
        return None
    return state


def _is_whole(opening: _Opening, segment: Segment, end_offset: int, sealed: set[int]) -> bool:
    """Return whether a segment has all batches up to an offset. Cuts no file. Raises StorageFailure if it cannot be
    read; damage is no failure.
    """
    flushed = _load_seal(segment, sealed, is_followed=True).counts
    if not (segment.sealed and end_is_sound(segment, opening.dense_from)):
        segment.forget_indexes()
        if scan(segment, opening.dense_from, opening.topic.index_interval_bytes) != segment.size:
            return False
    return segment.next_offset == end_offset or (flushed and segment.next_offset < end_offset <= opening.dense_from)


def _without_start(opening: _Opening, segments: list[Segment], start_offset: int, *, is_flushed: bool) -> list[Segment]:
    """Before the first flush, a power failure may remove the first segment's file and keep a later one: the log is
    then empty. Raises LogDamaged for a log that was flushed.
    """
    if is_flushed:
        raise LogDamaged(
            f"the log has a hole: it starts at offset {start_offset}, but {opening.directory} begins with segment"
            f" {segments[0].base_offset}"
        )
    _cut_off(opening, segments, start_offset)
    return []


def _restore_start(opening: _Opening, segments: Sequence[Segment], start_offset: int) -> None:
    """Delete records again: the file that says so is missing or an older copy. Raises StorageFailure; LogIncomplete if
    the log ends below its start, so that nothing is removed from an older copy of the whole log.
    """
    end_offset = 0
    if segments:
        last = segments[-1]
        last.file.reload()
        scan(last, opening.dense_from, opening.topic.index_interval_bytes)
        end_offset = last.next_offset
        last.forget_indexes()
    if end_offset < start_offset:
        raise LogIncomplete(f"{opening.directory} ends at offset {end_offset}, and its log start was {start_offset}")
    write_offset(opening.disk, opening.directory, LOG_START, start_offset)
    log.warning("log start restored partition=%s offset=%d", opening.directory, start_offset)


def _begin(disk: Directory, directory: str, below: Sequence[Segment], start_offset: int) -> Segment:
    """Return a new segment at the log start. below: a segment that ends before it, and is removed once the name of the
    new one is durable: a directory without a segment counts as damaged.
    """
    if below and _lacks_batches(disk, directory, below[-1].next_offset):
        write_offset(disk, directory, LACKING, start_offset)  # The removed batches may have continued above the start.
    segment = Segment(disk, directory, start_offset, create=True)
    if below:
        disk.sync_directory(directory)
    for removed in below:
        removed.remove()
        disk.sync_directory(directory)
    return segment


def _load_seal(segment: Segment, sealed: set[int], *, is_followed: bool) -> FoundSeal:
    """Load a segment's seal, if it counts."""
    if segment.base_offset not in sealed:
        return FoundSeal(seal=None, file_size=segment.size, counts=False)
    found = segment.load_seal()
    if is_followed and found.ended_log:
        segment.forget_indexes()
        return msgspec.structs.replace(found, counts=False)
    return found


def _ends_log(segment: Segment) -> bool:
    """Return whether a clean stop sealed the segment as the log's last."""
    return segment.indexes.seal is not None and segment.indexes.seal.ends_log


def _check_segments(opening: _Opening, segments: list[Segment], sealed: set[int]) -> list[Segment]:
    """Load sealed segments and check the others. Returns the segments that the log continues with."""
    last = segments[-1]
    seals = {segment.base_offset: _load_seal(segment, sealed, is_followed=segment is not last) for segment in segments}
    newest_sealed = max((base for base, seal in seals.items() if seal.counts), default=-1)
    for segment in segments:
        if seals[segment.base_offset].is_of_other_file:
            raise LogDamaged(f"the log has a hole: {segment.files.path('log')} had another size when it was sealed")
    was_stopped_cleanly = _ends_log(segments[-1])
    if segments[-1].sealed and not was_stopped_cleanly:
        raise LogDamaged(
            f"the log has a hole: a segment followed {segments[-1].files.path('log')}, at offset"
            f" {segments[-1].next_offset}, and is missing"
        )
    for number, segment in enumerate(segments, 1):
        is_last = number == len(segments)
        following = segments[min(number, len(segments) - 1)].base_offset
        seal = seals[segment.base_offset]
        was_sealed = segment.base_offset <= newest_sealed and not seal.ended_log
        flushed = was_sealed or following <= opening.cleaned_offset  # Only sealed segments are compacted.
        if not (segment.sealed and (was_stopped_cleanly or end_is_sound(segment, opening.dense_from))):
            _recover(opening, segment, seal, may_cut=is_last or not flushed)
        if is_last:
            break
        may_have_gap = flushed and following <= opening.dense_from
        if segment.next_offset > following or (segment.next_offset < following and not may_have_gap):
            if flushed:
                raise LogDamaged(
                    f"the log has a hole: {segment.files.path('log')} ends before offset {segment.next_offset},"
                    f" but the next segment begins at {following}"
                )
            _cut_off(opening, segments[number:], segment.next_offset)
            return segments[:number]
        if not segment.sealed:
            segment.indexes.finish()
            segment.indexes.use_files(segment.write_seal())
    return segments


def _recover(opening: _Opening, segment: Segment, seal: FoundSeal, *, may_cut: bool) -> None:
    """Flush a segment, check it batch by batch, truncate it at the first damaged one, and make its name durable.

    may_cut: no later segment was flushed, so a damaged end is an interrupted write. If an intact batch follows the
    damage all the same, the damaged batch was complete. Raises StorageFailure.
    """
    segment.forget_indexes()
    segment.last_append_ms = opening.cut.now_ms
    segment.file.reload()
    end = scan(segment, opening.dense_from, opening.topic.index_interval_bytes)
    if end != segment.size and not may_cut:
        raise LogDamaged(f"{segment.files.path('log')} is damaged at {end}, and later segments follow it")
    opening.probe.recovered_segments += 1
    was_acknowledged = opening.has_cache and opening.is_unflushed
    if seal.was_longer or (end != segment.size and (was_acknowledged or was_complete(segment, end))):
        write_offset(opening.disk, opening.directory, LACKING, segment.next_offset)
    segment.files.remove_indexes()
    if end != segment.size:
        log.warning(
            "log cut partition=%s offset=%d bytes=%d: the end of the log was damaged or incomplete, and is kept as %s;"
            " each partition keeps its newest %d cuts",
            opening.directory, segment.next_offset, segment.size - end, opening.cut.keep_tail(segment, end), KEPT_CUTS,
        )  # fmt: skip
        opening.probe.truncated_bytes += segment.size - end
        segment.file.truncate(end)
        segment.file.sync()
    opening.disk.sync_directory(opening.directory)


def _lacks_batches(disk: Directory, directory: str, end_offset: int) -> bool:
    """Return whether the log ends where recovery has removed complete batches, now or at an earlier start."""
    return disk.exists(f"{directory}/{LACKING}") and end_offset <= read_offset(disk, directory, LACKING)


def _cut_off(opening: _Opening, segments: list[Segment], end_offset: int) -> None:
    """Move whole segments out of the log, which ends before them, the last one first. Without a power failure they were
    complete, and so was the segment before them.
    """
    if opening.has_cache:
        write_offset(opening.disk, opening.directory, LACKING, end_offset)
    for segment in reversed(segments):
        log.warning(
            "segment cut off partition=%s base_offset=%d bytes=%d: the log ends before it; the segment is kept as %s",
            opening.directory, segment.base_offset, segment.size, opening.cut.keep_segment(segment),
        )  # fmt: skip
        opening.probe.truncated_bytes += segment.size


def _recover_state(
    disk: Directory,
    directory: str,
    segments: list[Segment],
    start_offset: int,
    settings: ProducerSettings,
    now_ms: int,
) -> tuple[ProducerState, LeaderEpochs]:
    """Restore producers and leader epochs from their files and from the batch headers after the newest snapshot.

    An epoch begins where the previous one ended, as in `LeaderCopy.append`, also if compaction has removed its
    first records. The producer state before the last segment is written to disk, because earlier segments may be
    deleted. A producer whose newest batches nobody can read is unknown, and may continue with any sequence.
    """
    producers = ProducerState(settings.max_producers_per_partition, settings.producer_id_expiration_ms)
    end = segments[-1].next_offset
    remove_snapshots(disk, directory, above=end)
    snapshot = load_newest_snapshot(disk, directory, producers, segments[0].base_offset, end)
    epochs = _epochs_below(snapshot, disk, directory, segments, start_offset)
    epochs.cut_end(end)  # Before a leader of a lower epoch fills their offsets.
    _store(disk, directory, epochs)
    reached = max(snapshot.offset, segments[0].base_offset)
    for segment in segments:
        if segment is segments[-1] and snapshot.offset < segment.base_offset and len(producers):
            _store(disk, directory, epochs)
            path = segment_path(directory, segment.base_offset, SNAPSHOT)
            disk.write_atomic(path, encode_snapshot(producers.entries(), epochs.epoch_at(segment.base_offset - 1)))
        if segment.next_offset > snapshot.offset:
            for position, header in headers_from(segment, snapshot.offset):
                if header.next_offset > snapshot.offset:  # As in `replay_headers`.
                    epochs.assign(header.leader_epoch, reached)
                    replay_stored(segment, position, header, producers, now_ms)
                    reached = header.next_offset
    restore_aborted(disk, directory, segments, producers.empty(), now_ms)
    producers.expire(now_ms)
    return producers, epochs


def _epochs_below(
    snapshot: FoundSnapshot, disk: Directory, directory: str, segments: list[Segment], start_offset: int
) -> LeaderEpochs:
    """Return the leader epochs of the records below a snapshot: from their file, or from the batch headers if it is
    missing or an older copy, which has another epoch for the last of these records.
    """
    found = load_leader_epochs(disk, directory)
    if found is not None:
        is_known = start_offset < snapshot.offset and snapshot.leader_epoch != NO_EPOCH
        if not is_known or found.epoch_at(snapshot.offset - 1) == snapshot.leader_epoch:
            return found
        log.warning("leader epochs read from the log partition=%s: %s is an older copy", directory, LEADER_EPOCHS)
    epochs, reached = LeaderEpochs(), segments[0].base_offset
    for segment in segments:
        if segment.base_offset < snapshot.offset:
            for _, header in segment.headers():
                if header.base_offset < snapshot.offset:
                    epochs.assign(header.leader_epoch, reached)
                    reached = header.next_offset
    epochs.assign(snapshot.leader_epoch, reached)  # Compaction may have left no record of it.
    return epochs


def _store(disk: Directory, directory: str, epochs: LeaderEpochs) -> None:
    if epochs.is_dirty:
        disk.write_atomic(f"{directory}/{LEADER_EPOCHS}", epochs.encode())
