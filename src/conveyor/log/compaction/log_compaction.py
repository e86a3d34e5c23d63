"""The compactions of one log: which is due, and the swap of its result. Others run it; see `key_compaction`."""

from collections.abc import Iterable, Sequence

from conveyor.log.compaction.compaction_plan import CompactionLimits, CompactionPlan, plan_compaction
from conveyor.log.compaction.key_compaction import CLEANED, CompactionResult
from conveyor.log.compaction.swap import SwapJob
from conveyor.log.segments import lookup
from conveyor.log.segments.files import remove_segment
from conveyor.log.segments.segment import Segment
from conveyor.log.tail import Tail


class LogCompaction:
    """cleaned_offset: everything below has been compacted, or is being swapped in. removed_end_offset: tombstones and
    markers are only missing below it, removed here or where this log was copied from.
    """

    def __init__(self, tail: Tail, cleaned_offset: int, removed_end_offset: int) -> None:
        self.cleaned_offset, self.removed_end_offset = cleaned_offset, removed_end_offset
        self._tail, self._jobs = tail, tail.jobs

    @property
    def is_swapping(self) -> bool:
        return self._jobs.is_swapping

    @property
    def is_wanted(self) -> bool:
        """True if the topic is compacted."""
        return "compact" in self._tail.topic.cleanup_policy

    def plan(self, limits: CompactionLimits, now_ms: int, max_keys: int) -> CompactionPlan | None:
        """Return the compaction that is due; None if none is."""
        tail, jobs = self._tail, self._jobs
        if not self.is_wanted or jobs.is_swapping or jobs.is_truncating:
            return None
        return plan_compaction(
            tail, cleaned_offset=self.cleaned_offset, limits=limits, now_ms=now_ms, max_keys=max_keys,
            truncations_count=jobs.truncations_count,
        )  # fmt: skip

    def is_current(self, made: CompactionPlan | CompactionResult) -> bool:
        """Return whether no sealed segment has been truncated since a compaction was planned."""
        return not self._jobs.is_truncating and made.truncations_count == self._jobs.truncations_count

    def begin_swap(self, result: CompactionResult) -> SwapJob | None:
        """Start the swap of compacted segments. Run the job off the event loop, then call `complete_swap`.

        Returns None if the log has removed or truncated some of the originals meanwhile, or its topic is not to be
        compacted any more; the caller must then discard the result.
        """
        present = {segment.base_offset: segment for segment in self._tail.segments.all[:-1] if segment.sealed}
        if not self.is_wanted or not self.is_current(result) or not set(result.replaced) <= present.keys():
            return None
        replaced = [present[base] for base in result.replaced]
        self._jobs.is_swapping = True
        self.cleaned_offset = max(self.cleaned_offset, result.cleaned_offset)
        self.removed_end_offset = max(self.removed_end_offset, result.removed_tombstones_end_offset)
        return SwapJob(disk=self._tail.place, directory=self._tail.place.path, result=result, replaced=replaced)

    def discard(self, base_offsets: Iterable[int]) -> None:
        """Remove the files of an unused compaction. Blocks. Raises StorageFailure."""
        place = self._tail.place
        for base_offset in base_offsets:
            remove_segment(place, place.path, base_offset, CLEANED)

    def complete_swap(self, result: CompactionResult, new: Sequence[Segment]) -> None:
        """Use the new segments, which the job has opened under the originals' names."""
        self._jobs.is_swapping = False
        kept = [segment for segment in self._tail.segments.all if segment.base_offset not in result.replaced]
        self._tail.segments.replace(sorted([*new, *kept], key=lookup.base_offset))
