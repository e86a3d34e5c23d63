"""Arithmetic of offset ranges. Pure."""

from itertools import pairwise

from conveyor.pipeline.options import Bounds


def split(start: int, end: int, most: int) -> list[tuple[int, int]]:
    """A range in parts of at most `most` offsets, as even as they can be; nothing for an empty range."""
    if end <= start:
        return []
    count = -(-(end - start) // most)
    edges = [start + (end - start) * number // count for number in range(count + 1)]
    return list(pairwise(edges))


def limited(start: Bounds, end: Bounds, most: int | None) -> Bounds:
    """How far to read of what lies between two bounds, if at most `most` records may be read: each partition gives in
    proportion to what it holds, and at least one goes on."""
    total = sum(max(0, stop - start[topic][number]) for topic, each in end.items() for number, stop in each.items())
    if most is None or total <= most:
        return end
    share = most / total
    return {
        topic: {number: _toward(start[topic][number], stop, share) for number, stop in each.items()}
        for topic, each in end.items()
    }


def _toward(start: int, stop: int, share: float) -> int:
    if stop <= start:
        return start
    return min(stop, start + max(1, int((stop - start) * share)))
