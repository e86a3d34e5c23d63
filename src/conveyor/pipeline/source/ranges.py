"""Arithmetic of offset ranges. Pure."""

from itertools import pairwise

from conveyor.pipeline.source.source_options import Bounds


def split(start: int, end: int, most: int) -> list[tuple[int, int]]:
    """Split a range into parts of at most `most` offsets, as even as possible; an empty range has no parts."""
    if end <= start:
        return []
    count = -(-(end - start) // most)
    edges = [start + (end - start) * number // count for number in range(count + 1)]
    return list(pairwise(edges))


def limited(start: Bounds, end: Bounds, most: int | None) -> Bounds:
    """Return the end bounds of a read of at most `most` records. Partitions contribute in proportion to their size,
    and at least one advances.
    """
    total = sum(
        max(0, stop - start[topic][number]) for topic, numbers in end.items() for number, stop in numbers.items()
    )
    if most is None or total <= most:
        return end
    share = most / total
    return {
        topic: {number: _toward(start[topic][number], stop, share) for number, stop in numbers.items()}
        for topic, numbers in end.items()
    }


def _toward(start: int, stop: int, share: float) -> int:
    if stop <= start:
        return start
    return min(stop, start + max(1, int((stop - start) * share)))
