"""The broker's counters in Prometheus' text format, read from the probes at each request.

The event loop reads them in slices, so a page is not of one moment. What belongs together is read in one turn: all
values of one partition, and each other metric with all its labels. A thread makes the page from these values, which
nothing changes any more, with a registry that only this page has.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from conveyor.broker.broker_node import BrokerNode
from conveyor.http_api.ops.push_metrics import push_metrics
from conveyor.http_api.ops.queue_metrics import queue_metrics
from conveyor.http_api.ops.replication_metrics import replication_metrics
from conveyor.http_api.ops.transaction_metrics import transaction_metrics
from conveyor.replication.partition import Partition
from conveyor.replication.transactions import last_stable_offset

COUNTERS = {
    "conveyor_log_appended_records": ("log", "appended_records", "Records appended to logs."),
    "conveyor_log_appended_batches": ("log", "appended_batches", "Record batches appended to logs."),
    "conveyor_log_appended_bytes": ("log", "appended_bytes", "Bytes appended to logs."),
    "conveyor_log_recovered_segments": ("log", "recovered_segments", "Segments checked batch by batch at a start."),
    "conveyor_log_truncated_bytes": ("log", "truncated_bytes", "Bytes cut off logs at recovery."),
    "conveyor_compaction_failures": ("compaction", "failures", "Compactions that failed, and are tried again."),
    "conveyor_compaction_unreadable_batches": (
        "compaction",
        "unreadable_batches",
        "Batches that a compaction kept, as their records cannot be read.",
    ),
    "conveyor_network_connections_opened": ("network", "connections_opened", "Connections taken."),
    "conveyor_network_connections_refused": ("network", "connections_refused", "Connections closed by the broker."),
    "conveyor_network_logins_refused": ("logins", "count", "Logins that were refused."),
    "conveyor_network_sessions_expired": (
        "credentials",
        "expired_sessions",
        "Connections closed as their clients did not log in again.",
    ),
    "conveyor_network_received_bytes": ("network", "received_bytes", "Bytes received from Kafka clients."),
    "conveyor_network_sent_bytes": ("network", "sent_bytes", "Bytes sent to Kafka clients."),
}


class _PartitionValues(NamedTuple):
    topic: str
    partition: str
    end_offset: int
    high_watermark: int
    stable_offset: int
    size_bytes: int


async def render_metrics(broker: BrokerNode, network_probe: Any) -> tuple[bytes, str]:
    """Return the page and its content type."""
    metrics = _BrokerMetrics(broker, network_probe).collect()
    collected = [metric async for metric in broker.slices.each(metrics, lambda metric: len(metric.samples))]
    partitions = [_values_of(partition) async for partition in broker.slices.each(broker.partitions.table)]
    return await broker.slices.in_thread(partial(_page, collected, partitions)), CONTENT_TYPE_LATEST


def _page(collected: Sequence[Metric], partitions: Sequence[_PartitionValues]) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Collected([*collected, *_partition_metrics(partitions)]))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _Collected(Collector):
    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Sequence[Metric]:
        return self._metrics


class _BrokerMetrics:
    def __init__(self, broker: BrokerNode, network_probe: Any) -> None:
        self._broker = broker
        self._probes = {
            "log": broker.partitions.log_probe,
            "compaction": broker.partitions.compaction,
            "network": network_probe,
            "logins": broker.clients.credentials.refusals,
            "credentials": broker.clients.credentials,
        }

    def collect(self) -> Iterator[Metric]:
        for name, (probe, field, doc) in COUNTERS.items():
            yield CounterMetricFamily(name, doc, value=getattr(self._probes[probe], field))
        yield GaugeMetricFamily("conveyor_partitions", "Partitions served.", value=len(self._broker.partitions.table))
        yield GaugeMetricFamily(
            "conveyor_partitions_offline",
            "Partitions not served because of their storage.",
            value=len(self._broker.partitions.table.offline()),
        )
        yield from self._requests()
        yield from self._certificate()
        yield from self._disk()
        yield self._throttled()
        yield from self._audit()
        yield from replication_metrics(self._broker)
        yield from transaction_metrics(self._broker)
        yield from queue_metrics(self._broker)
        yield from push_metrics(self._broker)

    def _requests(self) -> Iterator[Metric]:
        budget = self._broker.clients.request_budget
        doc = "Bytes of requests being received or worked on."
        yield GaugeMetricFamily("conveyor_network_request_bytes", doc, value=budget.used_bytes)
        doc = "Large requests that wait for their turn to be read."
        yield GaugeMetricFamily("conveyor_network_requests_waiting", doc, value=budget.waiting_count)

    def _certificate(self) -> Iterator[Metric]:
        doc = "Seconds until a certificate of the broker ends; negative after its end."
        expires = GaugeMetricFamily("conveyor_certificate_expires_seconds", doc, labels=["shown_to"])
        for shown_to, certificate in self._probes["network"].certificates.items():
            if certificate.expires_at_s is not None:
                expires.add_metric([shown_to], certificate.expires_at_s - self._broker.clock.now_ms() / 1000)
        if expires.samples:
            yield expires

    def _disk(self) -> Iterator[Metric]:
        room = self._broker.partitions.disk_room
        doc = "Whether producers are refused for want of room: 1, else 0."
        yield GaugeMetricFamily("conveyor_disk_low", doc, value=int(room.is_low))
        doc = "Whether the disk does not answer, and other replicas are to lead: 1, else 0."
        yield GaugeMetricFamily("conveyor_disk_stalled", doc, value=int(self._broker.replicas.is_disk_stalled))
        if room.usable_bytes is not None:
            doc = "Room on the broker's disk when it was last measured."
            yield GaugeMetricFamily("conveyor_disk_usable_bytes", doc, value=room.usable_bytes)

    def _throttled(self) -> Metric:
        doc = "Requests and connections that a quota has held back."
        throttled = CounterMetricFamily("conveyor_quota_throttled", doc, labels=["quota"])
        for key, count in self._broker.clients.quotas.throttled.items():
            throttled.add_metric([key], count)
        return throttled

    def _audit(self) -> Iterator[Metric]:
        audit = self._broker.clients.access.audit
        if audit is not None:
            doc = "Decisions on requests of clients that records of __audit show."
            yield CounterMetricFamily("conveyor_audit_written", doc, value=audit.written)
            doc = "Decisions on requests of clients that no record of __audit will show."
            dropped = CounterMetricFamily("conveyor_audit_dropped", doc, labels=["reason"])
            for reason, count in audit.dropped.items():
                dropped.add_metric([reason], count)
            yield dropped


def _values_of(partition: Partition) -> _PartitionValues:
    topic, number = partition.identity
    return _PartitionValues(
        topic,
        str(number),
        partition.log.log_end_offset,
        partition.term.high_watermark,
        last_stable_offset(partition),
        partition.log.segments.size_bytes,
    )


def _partition_metrics(partitions: Sequence[_PartitionValues]) -> Iterator[Metric]:
    labels = ["topic", "partition"]
    end = GaugeMetricFamily("conveyor_partition_log_end_offset", "Next offset of a partition.", labels=labels)
    high = GaugeMetricFamily("conveyor_partition_high_watermark", "Offset that consumers see up to.", labels=labels)
    doc = "Offset that consumers of committed records see up to."
    stable = GaugeMetricFamily("conveyor_partition_last_stable_offset", doc, labels=labels)
    size = GaugeMetricFamily("conveyor_partition_size_bytes", "Bytes of a partition's segments.", labels=labels)
    for topic, number, *values in partitions:
        for metric, value in zip((end, high, stable, size), values, strict=True):
            metric.add_metric([topic, number], value)
    yield from (end, high, stable, size)
