"""The delays of one subscription's messages from publish to acknowledgement, as a histogram with fixed buckets.

A delay counts from the message's timestamp, whatever the number of its deliveries, until its ack is decided or, in a
transaction, until the transaction commits. Counting begins at zero with each start of the broker.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

import msgspec

DELAY_BOUNDS_MS = (
    *(5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000),
    *(60_000, 5 * 60_000, 15 * 60_000, 60 * 60_000, 6 * 60 * 60_000, 24 * 60 * 60_000),
)
"""The inclusive upper bounds of all buckets but the last, which has none. Brokers of a cluster add their buckets up, so
they must all have these.
"""


def _no_counts() -> list[int]:
    return [0] * (len(DELAY_BOUNDS_MS) + 1)


class AckDelays(msgspec.Struct, array_like=True):
    """The histogram. counts: of each bucket, not cumulative. sum_ms: of all delays."""

    counts: list[int] = msgspec.field(default_factory=_no_counts)
    sum_ms: float = 0.0

    def observe(self, published_ms: Iterable[int], now_ms: int) -> None:
        """Count messages that are acknowledged now. published_ms: their timestamps, which producers may have set.

        A time in the future counts as now, and a time before 1970 (-1: the record has none) as 1970.
        """
        counts, sum_ms = self.counts, self.sum_ms
        for time_ms in published_ms:
            delay_ms = now_ms - time_ms
            if not 0 <= delay_ms <= now_ms:
                delay_ms = min(max(delay_ms, 0), now_ms)
            counts[bisect_left(DELAY_BOUNDS_MS, delay_ms)] += 1
            sum_ms += delay_ms
        self.sum_ms = sum_ms


def total_delays(parts: Sequence[AckDelays]) -> AckDelays:
    """Return the sum of the histograms of several brokers."""
    counts = [sum(bucket) for bucket in zip(_no_counts(), *(part.counts for part in parts), strict=True)]
    return AckDelays(counts, sum(part.sum_ms for part in parts))
