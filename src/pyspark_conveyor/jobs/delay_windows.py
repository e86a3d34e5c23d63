"""The delay from publish to ack of the messages that were acknowledged between two runs of the metrics job.

Brokers report a histogram of all acks since they started. The difference between two reports is the histogram of the
acks in between.
"""

from msgspec.structs import replace

from conveyor.kernel.histogram import quantile
from pyspark_conveyor.jobs.topic_metrics import ConsumerNumbers, DelayHistogram


def with_delays(now: ConsumerNumbers, before: ConsumerNumbers | None) -> ConsumerNumbers:
    """Return the numbers of a subscription with the delays since an earlier run, or since the brokers started.

    If a count is lower than before, a broker has started again, and all acks that are reported now count as acks since
    the earlier run. The numbers of a deleted subscription of the same name are no earlier ones. A consumer group has no
    acks.
    """
    acked = now.ack_delays
    if acked is None:
        return now
    earlier = None if before is None else before.ack_delays
    if earlier is None or earlier.subscription_id != acked.subscription_id:
        before = None
    else:
        acked = _since(earlier, acked)
    acks = sum(acked.counts)
    return replace(
        now,
        delay_since=None if before is None else before.at,
        delay_acks=acks,
        delay_mean_ms=acked.sum_ms / acks if acks else None,
        delay_p50_ms=quantile(0.5, acked.bounds_ms, acked.counts),
        delay_p99_ms=quantile(0.99, acked.bounds_ms, acked.counts),
    )


def _since(before: DelayHistogram, now: DelayHistogram) -> DelayHistogram:
    if before.bounds_ms != now.bounds_ms:  # Brokers of another version have started since.
        return now
    counts = [count - earlier for count, earlier in zip(now.counts, before.counts, strict=True)]
    return now if min(counts) < 0 else replace(now, counts=counts, sum_ms=max(0.0, now.sum_ms - before.sum_ms))
