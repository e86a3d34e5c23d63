"""Putting compacted segments in the place of those they were made from, so that a crash leaves either or finishes it.

    write `compaction-swap` (which segments go, which come)     the moment it is decided
    write how far the log is compacted now                      may be done again, as all that follows
    remove what goes, rename `<name>.cleaned` to `<name>`
    remove `compaction-swap`

A start that finds `compaction-swap` finishes it first; `.cleaned` files that it does not find there are removed.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ports import Directory
from conveyor.log.compaction.key_compaction import CLEANED, CleanedSegment, CompactionResult
from conveyor.log.segments.offset_file import CLEANED as CLEANED_OFFSET
from conveyor.log.segments.offset_file import write_offset
from conveyor.log.segments.segment import Segment

_MANIFEST = "compaction-swap"


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapJob:
    """What `Log.begin_swap` has decided. replaced: the log's segments that go."""

    disk: Directory
    directory: str
    result: CompactionResult
    replaced: list[Segment]

    def run(self) -> list[Segment]:
        """The new segments. Blocks. Raises StorageFailure; then the next start finishes it, or nothing has happened."""
        result = self.result
        if not result.replaced:
            write_offset(self.disk, self.directory, CLEANED_OFFSET, result.cleaned_offset)
            return []
        for segment in self.replaced:
            segment.detach()
        cleaned = [each.base_offset for each in result.cleaned]
        decision: dict[str, Any] = {
            "replaced": result.replaced,
            "cleaned": cleaned,
            "cleaned_offset": result.cleaned_offset,
        }
        self.disk.write_atomic(f"{self.directory}/{_MANIFEST}", json.dumps(decision).encode())
        _finish(self.disk, self.directory, **decision)
        return [self._swapped_in(each) for each in result.cleaned]

    def free(self) -> None:
        """Blocks: call it once the log has taken the new segments.

        The last close of a file that has no name any more waits until all that it had on the disk is free.
        """
        self.replaced.clear()

    def _swapped_in(self, cleaned: CleanedSegment) -> Segment:
        segment = Segment(self.disk, self.directory, cleaned.base_offset)
        if not segment.load_seal():
            raise StorageFailure(f"{segment.path('seal')} does not check out")
        return segment


def finish_swap(disk: Directory, directory: str) -> None:
    """At a start, before segments are opened: finish a swap that was decided, and forget one that was not."""
    path = f"{directory}/{_MANIFEST}"
    if disk.exists(path):
        _finish(disk, directory, **json.loads(disk.read(path)))
    for name in disk.list(directory):
        if name.endswith(CLEANED):
            disk.remove(f"{directory}/{name}")


def discard(disk: Directory, directory: str, base_offsets: Iterable[int]) -> None:
    """Remove the files that a compaction has made, or has begun to make. Raises StorageFailure."""
    for base_offset in base_offsets:
        for path in Segment.paths_of(directory, base_offset, CLEANED):
            disk.remove(path)


def _finish(
    disk: Directory, directory: str, *, replaced: Sequence[int], cleaned: Sequence[int], cleaned_offset: int
) -> None:
    write_offset(disk, directory, CLEANED_OFFSET, cleaned_offset)
    for base in replaced:
        if base not in cleaned:
            for path in Segment.paths_of(directory, base):
                disk.remove(path)
    for base in cleaned:
        for new, final in zip(
            Segment.paths_of(directory, base, CLEANED), Segment.paths_of(directory, base), strict=True
        ):
            if disk.exists(new):
                disk.rename(new, final)
    disk.sync_directory(directory)
    disk.remove(f"{directory}/{_MANIFEST}")
    disk.sync_directory(directory)
