"""The metrics of pushes for Prometheus, each labelled with topic and subscription."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.queues.pushing.push_status import PUSHING
from conveyor.queues.push.circuit_breaker import CLOSED

PUSH_COUNTERS = {
    "conveyor_push_delivered": ("delivered", "Messages that push targets have taken."),
    "conveyor_push_failed": ("failed", "Deliveries to push targets that count as failed."),
    "conveyor_push_released": ("released", "Deliveries that do not count: no connection, or an overloaded target."),
}
PUSH_GAUGES = {
    "conveyor_push_in_flight_requests": ("in_flight", "Requests to push targets that wait for their answers."),
    "conveyor_push_concurrency_limit": ("concurrency", "The present limit of requests at a time."),
}


def push_metrics(broker: BrokerNode) -> Iterator[Metric]:
    """Return one sample for each subscription that pushes."""
    labels = ["topic", "subscription"]
    measured = [((subscription.topic, subscription.name), status) for subscription, status in broker.pushing.measures()]
    for name, (field, doc) in PUSH_COUNTERS.items():
        counter = CounterMetricFamily(name, doc, labels=labels)
        for names, status in measured:
            counter.add_metric(names, getattr(status, field))
        yield counter
    for name, (field, doc) in PUSH_GAUGES.items():
        gauge = GaugeMetricFamily(name, doc, labels=labels)
        for names, status in measured:
            gauge.add_metric(names, getattr(status, field))
        yield gauge
    is_open = GaugeMetricFamily("conveyor_push_breaker_open", "1 while the breaker is open or tries.", labels=labels)
    is_stopped = GaugeMetricFamily(
        "conveyor_push_stopped", "1 while a push is paused, or may not go on.", labels=labels
    )
    for names, status in measured:
        is_open.add_metric(names, status.breaker != CLOSED)
        is_stopped.add_metric(names, status.state != PUSHING)
    yield is_open
    yield is_stopped
