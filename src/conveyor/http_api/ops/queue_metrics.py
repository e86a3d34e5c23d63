"""The subscriptions' metrics for Prometheus: gauges of their messages, counters of deliveries and settlements, and a
histogram of the delays from publish to ack.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from conveyor.broker.broker_node import BrokerNode
from conveyor.queues.delivery.ack_delays import DELAY_BOUNDS_MS
from conveyor.queues.queue_commands import SubscriptionCounts, SubscriptionProbe
from conveyor.queues.subscription.policy import Subscription

QUEUE_GAUGES = {
    "conveyor_queue_available_messages": ("available", "Messages that could be leased now."),
    "conveyor_queue_in_flight_messages": ("in_flight", "Messages that are leased."),
    "conveyor_queue_pending_messages": ("pending", "Messages that open transactions have acknowledged."),
    "conveyor_queue_withheld_messages": ("withheld", "Messages that are not due yet, or wait for their next delivery."),
    "conveyor_queue_dead_messages": ("dead", "Dead letters that were neither redriven nor dropped."),
    "conveyor_queue_unsettled_messages": ("unsettled", "Messages that are not done."),
}
QUEUE_COUNTERS = {
    "conveyor_queue_leased": ("leased", "Deliveries."),
    "conveyor_queue_acknowledged": ("acknowledged", "Messages acknowledged."),
    "conveyor_queue_retried": ("retried", "Messages given back by their consumers."),
    "conveyor_queue_lease_expired": ("expired", "Leases that ended before their message was settled."),
    "conveyor_queue_dead_lettered": ("dead_lettered", "Messages moved to their dead-letter topic."),
    "conveyor_queue_filtered": ("filtered", "Messages that a filter has left out."),
    "conveyor_queue_filter_errors": ("filter_errors", "Messages on which a filter has failed."),
    "conveyor_queue_unreadable_headers": ("unreadable_headers", "Headers that ask for what makes no sense: ignored."),
}
_DELAY_BOUNDS_S = (*(str(bound_ms / 1000) for bound_ms in DELAY_BOUNDS_MS), "+Inf")


def queue_metrics(broker: BrokerNode) -> Iterator[Metric]:
    """Return one sample for each subscription, labelled with topic and name."""
    labels = ["topic", "subscription"]
    measured = broker.queues.statistics.measures()
    for name, (field, doc) in QUEUE_GAUGES.items():
        gauge = GaugeMetricFamily(name, doc, labels=labels)
        for subscription, counts, _ in measured:
            gauge.add_metric([subscription.topic, subscription.name], getattr(counts, field))
        yield gauge
    for name, (field, doc) in QUEUE_COUNTERS.items():
        counter = CounterMetricFamily(name, doc, labels=labels)
        for subscription, _, probe in measured:
            counter.add_metric([subscription.topic, subscription.name], getattr(probe, field))
        yield counter
    yield _ack_delays(measured, labels)


def _ack_delays(
    measured: Sequence[tuple[Subscription, SubscriptionCounts, SubscriptionProbe]], labels: Sequence[str]
) -> Metric:
    doc = "Time from the publish of a message to its acknowledgement."
    histogram = HistogramMetricFamily("conveyor_queue_ack_delay_seconds", doc, labels=labels)
    for subscription, _, probe in measured:
        delays = probe.ack_delays
        buckets = list(zip(_DELAY_BOUNDS_S, map(float, accumulate(delays.counts)), strict=True))
        histogram.add_metric([subscription.topic, subscription.name], buckets, delays.sum_ms / 1000)
    return histogram
