"""Estimates from a histogram with fixed buckets."""

from collections.abc import Sequence


def quantile(fraction: float, bounds: Sequence[float], counts: Sequence[int]) -> float | None:
    """Return the value that this fraction of all observations does not exceed; None without observations.

    bounds: the ascending upper bounds of all buckets but the last, which has none. counts: of each bucket, not
    cumulative. Within a bucket, observations count as evenly spread; one in the last bucket counts as its lower bound.
    Source: `histogram_quantile` of Prometheus, for observations of at least 0.
    """
    rank, below, lower = fraction * sum(counts), 0, 0.0
    for bound, count in zip(bounds, counts[:-1], strict=True):
        if count and rank <= below + count:
            return lower + (bound - lower) * (rank - below) / count
        below += count
        lower = bound
    return float(lower) if counts[-1] else None
