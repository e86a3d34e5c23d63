"""Truncation: a follower removes the end of its log, because the leader's log continues differently.

    LogTruncation.truncate_to    in memory, at once: nothing at or above the new end is read or flushed any more
    TruncationJob.run            on the disk, off the event loop, when no other job changes the log's files
    LogTruncation.complete       the log continues at the new end

On the disk:

    sync the segment that holds the new end, those below it that are not sealed, and the directory
    write `truncation` (the new end, and the size of that segment)   this commits the truncation
    remove that segment's seal, cut its file and sync it             this and all further steps can be repeated
    remove the segments above it, the last one first
    if a gap precedes the new end: seal that segment, and create an empty one at the end
    remove the producer snapshots above the end, and the leader epochs that begin there or above
    lower the cleaned offset and the gap offset to the end
    remove `truncation`

A start that finds `truncation` repeats the steps. After a crash at any moment the log is therefore either as long as
before or truncated. Once `run` has returned, no crash brings the removed records back.

Readers: a slice that was read before the truncation still shows the records of its time or fails with ReadLater. It
never shows the records that take their offsets: the file object of the segment that is cut is fenced and replaced, and
those of removed segments are detached.
"""

from collections.abc import Sequence

import msgspec

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ids import NO_TIMESTAMP
from conveyor.kernel.ports import Directory
from conveyor.log.checked_file import read_checked, write_checked
from conveyor.log.leader_epochs import NAME as LEADER_EPOCHS
from conveyor.log.leader_epochs import load_leader_epochs
from conveyor.log.producers.producer_snapshot import load_newest_snapshot, remove_snapshots
from conveyor.log.producers.producer_state import ProducerState
from conveyor.log.replay import replay_headers
from conveyor.log.segments.files import OFFSET_DIGITS, remove_segment, segment_path
from conveyor.log.segments.lookup import position_of, segment_for
from conveyor.log.segments.offset_file import CLEANED, GAPS, LOG_START, REMOVED, read_offset, write_offset
from conveyor.log.segments.segment import Segment
from conveyor.log.transactions.aborted_entries import entries_below
from conveyor.records.transaction_marker import is_marker

_MANIFEST = "truncation"
_INTERVAL_BYTES = 4096


class Truncation(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of one truncation, which are also the content of its file, as JSON; see `checked_file`.

    end_offset: the new log end offset.
    kept_base: the base offset of the segment that is cut to `kept_size` bytes; None if no segment is kept, because the
    log becomes empty at its log start offset. last_append_ms: of that segment.
    creates: an empty segment is added at the new end, because the last remaining record is not directly below it.
    forgets: all leader epochs and producers are removed too, because the log restarts at another offset.
    """

    end_offset: int
    kept_base: int | None
    kept_size: int
    last_append_ms: int
    creates: bool
    forgets: bool = False


def plan_truncation(
    segments: Sequence[Segment], log_start_offset: int, offset: int, *, restarts: bool = False
) -> Truncation:
    """Return the truncation to an offset of the log. A batch that holds the offset is removed whole.

    restarts: remove everything; the log is then empty and begins at the offset.
    Reads the headers of about one index interval. Raises StorageFailure.
    """
    if restarts:
        return Truncation(
            end_offset=offset, kept_base=None, kept_size=0, last_append_ms=NO_TIMESTAMP, creates=True, forgets=True
        )
    segment = segment_for(segments, offset)
    size = position_of(segment, offset)
    end = min(offset, segment.files.header_at(size).base_offset) if size < segment.size else offset
    if end < log_start_offset:
        return Truncation(
            end_offset=log_start_offset, kept_base=None, kept_size=0, last_append_ms=NO_TIMESTAMP, creates=True
        )
    return Truncation(
        end_offset=end,
        kept_base=segment.base_offset,
        kept_size=size,
        last_append_ms=segment.last_append_ms,
        creates=_end_below(segment, size) != end,
    )


def _end_below(segment: Segment, size: int) -> int:
    """Return the offset after the last record in the first `size` bytes."""
    if size == segment.size:
        return segment.next_offset
    end = segment.base_offset
    if size:
        for _, header in segment.headers(segment.indexes.boundary_at_or_before(size - 1), size):
            end = header.next_offset
    return end


class Truncated(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a truncation. segments: they replace the log's segments from the one that was cut on.

    producers: the state at the new end; None if the removed records do not change it.
    """

    segments: list[Segment]
    producers: ProducerState | None


class TruncationJob(msgspec.Struct, frozen=True, kw_only=True):
    """The truncation that `LogTruncation.begin` decided on.

    below: the segments that stay unchanged. above: the segments to remove.
    producers: an empty state, which `run` fills; None if the removed records do not change the producers.
    """

    disk: Directory
    directory: str
    bounds: Truncation
    below: tuple[Segment, ...]
    kept: Segment | None
    above: tuple[Segment, ...]
    producers: ProducerState | None
    now_ms: int

    def run(self) -> Truncated:
        """Execute the truncation. Blocks. Raises StorageFailure: then the truncation has not begun, or the next start
        finishes it.
        """
        for segment in self.below:
            if not segment.sealed:  # The seal of a later segment says that this one is on the disk.
                segment.file.sync()
        for segment in self.above:
            segment.detach()
        if self.kept is not None:
            self.kept.detach()
            self.kept.file.sync()
            self.kept.file.fence(self.bounds.kept_size)
        self.disk.sync_directory(self.directory)
        write_checked(self.disk, f"{self.directory}/{_MANIFEST}", msgspec.json.encode(self.bounds))
        _finish(self.disk, self.directory, self.bounds)
        segments = self._new_segments()
        if self.producers is not None:
            self._replay((*self.below, *segments), self.producers)
        return Truncated(segments=segments, producers=self.producers)

    def _new_segments(self) -> list[Segment]:
        created = [Segment(self.disk, self.directory, self.bounds.end_offset)] if self.bounds.creates else []
        if self.kept is None:
            return created
        if not created:
            return [self.kept.shortened(self.bounds.kept_size)]
        closed = Segment(self.disk, self.directory, self.kept.base_offset)
        closed.load_seal()
        if not closed.sealed:
            raise StorageFailure(f"{closed.files.path('seal')} is damaged")
        aborted = self.kept.indexes.aborted
        if aborted is not None:
            closed.indexes.restore_aborted(entries_below(aborted, closed.next_offset))
        return [closed, *created]

    def _replay(self, segments: Sequence[Segment], producers: ProducerState) -> None:
        """Fill the state from the newest snapshot and from the batch headers after it."""
        first_offset = segments[0].base_offset
        snapshot = load_newest_snapshot(self.disk, self.directory, producers, first_offset, self.bounds.end_offset)
        replay_headers(segments, snapshot.offset, producers, self.now_ms)
        producers.transactions.forget_below(read_offset(self.disk, self.directory, CLEANED))
        producers.expire(self.now_ms)


def finish_truncation(disk: Directory, directory: str) -> None:
    """Before a start opens segments: finish a committed truncation. Raises StorageFailure."""
    path = f"{directory}/{_MANIFEST}"
    if not disk.exists(path):
        return
    try:
        bounds = msgspec.json.decode(read_checked(disk, path), type=Truncation)
    except msgspec.MsgspecError as error:
        raise StorageFailure(f"{path} was written by another version: {error}") from error
    _finish(disk, directory, bounds)


def _finish(disk: Directory, directory: str, bounds: Truncation) -> None:
    if bounds.kept_base is None:
        write_offset(disk, directory, LOG_START, bounds.end_offset)
    else:
        _cut_file(disk, directory, bounds.kept_base, bounds.kept_size)
    for base in _bases_above(disk, directory, bounds.kept_base):
        remove_segment(disk, directory, base)
    if bounds.creates and bounds.kept_base is not None:
        _seal(Segment(disk, directory, bounds.kept_base), bounds.last_append_ms)
    if bounds.creates:
        Segment(disk, directory, bounds.end_offset, create=True).close()
    remove_snapshots(disk, directory, above=-1 if bounds.forgets else bounds.end_offset)
    epochs = load_leader_epochs(disk, directory)
    if epochs is not None:
        epochs.cut_end(0 if bounds.forgets else bounds.end_offset)
        if epochs.is_dirty:
            disk.write_atomic(f"{directory}/{LEADER_EPOCHS}", epochs.encode())
    for name in (CLEANED, GAPS, REMOVED):
        if read_offset(disk, directory, name) > bounds.end_offset:
            write_offset(disk, directory, name, bounds.end_offset)
    disk.sync_directory(directory)
    disk.remove(f"{directory}/{_MANIFEST}")
    disk.sync_directory(directory)


def _cut_file(disk: Directory, directory: str, base_offset: int, size: int) -> None:
    """Remove the seal first: without it, a segment may have any size.

    The file is held open before that, because its name leads to another log's file once the directory has ended.
    """
    file = disk.open(segment_path(directory, base_offset, "log"))
    file.detach()
    disk.remove(segment_path(directory, base_offset, "seal"))
    disk.remove(segment_path(directory, base_offset, "txnindex"))
    disk.sync_directory(directory)
    if file.size > size:
        file.truncate(size)
    file.sync()
    file.close()


def _seal(segment: Segment, last_append_ms: int) -> None:
    """Write the indexes and the seal of a segment that ends below a gap: recovery accepts a gap only after a seal."""
    for position, header in segment.headers():
        segment.note(header.next_offset - 1, header.max_timestamp, position, header.size, _INTERVAL_BYTES)
        if is_marker(header):
            segment.indexes.aborted = None
    segment.indexes.finish()
    segment.last_append_ms = last_append_ms
    segment.write_seal()
    segment.close()


def _bases_above(disk: Directory, directory: str, base_offset: int | None) -> list[int]:
    """Return the base offsets of all segments, or of those above one, in descending order."""
    stems = {name[:OFFSET_DIGITS] for name in disk.list(directory) if name.endswith((".log", ".seal"))}
    bases = sorted((int(stem) for stem in stems if len(stem) == OFFSET_DIGITS and stem.isdecimal()), reverse=True)
    return bases if base_offset is None else [base for base in bases if base > base_offset]
