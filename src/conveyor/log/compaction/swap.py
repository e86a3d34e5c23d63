"""Swaps compacted segments in for the originals. After a crash, either the originals are in place or the next start
finishes the swap.

    write `compaction-swap` (the removed and the new segments)  this commits the swap
    write the new cleaned and removed offsets                   this and all further steps can be repeated
    remove the originals, rename `<name>.cleaned` to `<name>`
    remove `compaction-swap`

A start that finds `compaction-swap` finishes the swap first. It removes all other `.cleaned` files.
"""

import msgspec

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ports import Directory
from conveyor.log.checked_file import read_checked, write_checked
from conveyor.log.compaction.key_compaction import CLEANED, CleanedSegment, CompactionResult
from conveyor.log.segments.files import remove_segment, segment_paths
from conveyor.log.segments.offset_file import CLEANED as CLEANED_OFFSET
from conveyor.log.segments.offset_file import REMOVED, read_offset, write_offset
from conveyor.log.segments.segment import MOST_DETACHED, Segment

_MANIFEST = "compaction-swap"


class _Swap(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the swap's file, as JSON; see `checked_file`. replaced, cleaned: base offsets of segments."""

    replaced: tuple[int, ...]
    cleaned: tuple[int, ...]
    cleaned_offset: int
    removed_end_offset: int = 0


class SwapJob(msgspec.Struct, frozen=True, kw_only=True):
    """The swap that `LogCompaction.begin_swap` decided on. replaced: the log's segments to remove."""

    disk: Directory
    directory: str
    result: CompactionResult
    replaced: list[Segment]

    def run(self) -> list[Segment]:
        """Execute the swap. Returns the new segments. Blocks. Raises StorageFailure: then the swap has not begun,
        or the next start finishes it.
        """
        result = self.result
        if not result.replaced:
            write_offset(self.disk, self.directory, CLEANED_OFFSET, result.cleaned_offset)
            return []
        for segment in self.replaced[-MOST_DETACHED:]:
            segment.detach()
        for segment in self.replaced[:-MOST_DETACHED]:
            segment.release()
        swap = _Swap(
            replaced=result.replaced,
            cleaned=tuple(segment.base_offset for segment in result.cleaned),
            cleaned_offset=result.cleaned_offset,
            removed_end_offset=result.removed_tombstones_end_offset,
        )
        write_checked(self.disk, f"{self.directory}/{_MANIFEST}", msgspec.json.encode(swap))
        _finish(self.disk, self.directory, swap)
        return [self._swapped_in(segment) for segment in result.cleaned]

    def free(self) -> None:
        """Release the originals' files, once the log uses the new segments. Blocks: closing the last descriptor of
        a removed file waits until its disk space is freed.
        """
        self.replaced.clear()

    def _swapped_in(self, cleaned: CleanedSegment) -> Segment:
        segment = Segment(self.disk, self.directory, cleaned.base_offset)
        segment.load_seal()
        if not segment.sealed or segment.indexes.aborted is None:
            raise StorageFailure(f"{segment.files.path('seal')} is damaged, or the transaction index")
        return segment


def finish_swap(disk: Directory, directory: str) -> None:
    """Before a start opens segments: finish a committed swap, and remove the files of an uncommitted one.

    Raises StorageFailure.
    """
    path = f"{directory}/{_MANIFEST}"
    if disk.exists(path):
        try:
            swap = msgspec.json.decode(read_checked(disk, path), type=_Swap)
        except msgspec.MsgspecError as error:
            raise StorageFailure(f"{path} was written by another version: {error}") from error
        _finish(disk, directory, swap)
    for name in disk.list(directory):
        if name.endswith(CLEANED):
            disk.remove(f"{directory}/{name}")


def _finish(disk: Directory, directory: str, swap: _Swap) -> None:
    if swap.removed_end_offset > read_offset(disk, directory, REMOVED):
        write_offset(disk, directory, REMOVED, swap.removed_end_offset)
    write_offset(disk, directory, CLEANED_OFFSET, swap.cleaned_offset)
    for base in swap.replaced:
        if base not in swap.cleaned:
            remove_segment(disk, directory, base)
    for base in swap.cleaned:
        for source, target in zip(segment_paths(directory, base, CLEANED), segment_paths(directory, base), strict=True):
            if disk.exists(source):
                disk.rename(source, target)
    disk.sync_directory(directory)
    disk.remove(f"{directory}/{_MANIFEST}")
    disk.sync_directory(directory)
