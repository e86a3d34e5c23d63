"""Finds the aborted transactions whose records a reader of committed records must skip."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import islice

from conveyor.kernel.errors import StorageFailure
from conveyor.log.segments.lookup import base_offset
from conveyor.log.segments.segment import Segment
from conveyor.log.transactions.aborted_entries import AbortedTransaction, decode_aborted


def aborted_between(segments: Sequence[Segment], offset: int, limit_offset: int) -> list[AbortedTransaction]:
    """Return the aborted transactions that have records in [offset, limit_offset), in the order of their markers.

    The search ends at the entry after which no transaction begins below the limit. Raises StorageFailure if a segment
    was never completely recovered.
    """
    found: list[AbortedTransaction] = []
    first = max(0, bisect_right(segments, offset, key=base_offset) - 1)
    for segment in islice(segments, first, None):
        if segment.aborted is None:
            raise StorageFailure(f"the aborted transactions of {segment.path('log')} are not known")
        for aborted in decode_aborted(segment.aborted):
            if aborted.last_offset >= offset and aborted.first_offset < limit_offset:
                found.append(aborted)
            if aborted.last_stable_offset >= limit_offset:
                return found
    return found
