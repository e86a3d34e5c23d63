"""The metrics of the cluster as this broker sees it, and of its replication."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from conveyor.broker.broker_node import BrokerNode
from conveyor.cluster.image import NO_LEADER
from conveyor.log.log import Log
from conveyor.replication.leader_term import LeaderTerm

REPLICATION_COUNTERS = {
    "conveyor_replication_isr_shrinks": (
        "isr_shrinks",
        "Changes that removed replicas from the ISR.",
    ),
    "conveyor_replication_isr_expands": ("isr_expands", "Changes that added replicas to the ISR."),
    "conveyor_replication_leader_elections": ("leader_elections", "Leader epochs that began with this broker."),
    "conveyor_replication_sent_bytes": ("sent_bytes", "Bytes of records sent to followers."),
    "conveyor_replication_received_bytes": ("received_bytes", "Bytes of records received from leaders."),
    "conveyor_replication_catch_up_bytes": ("catch_up_bytes", "Bytes sent to replicas that were not in sync."),
}


def replication_metrics(broker: BrokerNode) -> Iterator[Metric]:
    """Return the metrics of this broker and of its led partitions."""
    measures = broker.replicas.measures()
    for name, (field, doc) in REPLICATION_COUNTERS.items():
        yield CounterMetricFamily(name, doc, value=getattr(measures, field))
    for name, doc, value in (*_of_led_partitions(broker), *_of_cluster(broker)):
        yield GaugeMetricFamily(name, doc, value=value)
    doc = "Whether catching up waits for its limit: 1, else 0."
    yield GaugeMetricFamily("conveyor_replication_catch_up_throttled", doc, value=int(measures.is_catch_up_throttled))
    doc = "Longest time that an in-sync replica had not caught up for, at the last check."
    yield GaugeMetricFamily("conveyor_replication_max_lag_seconds", doc, value=measures.longest_lag_ms / 1000)


def _of_led_partitions(broker: BrokerNode) -> Iterator[tuple[str, str, int]]:
    led = [
        (partition, term)
        for partition in broker.partitions.table
        if (term := partition.leader_term) is not None and partition.offline.reason is None
    ]
    roles = [term.role for _, term in led]
    yield "conveyor_replication_led_partitions", "Partitions that this broker leads.", len(led)
    count = sum(len(role.isr) < len(role.replicas) for role in roles)
    yield "conveyor_replication_under_replicated_partitions", "Led partitions with a replica out of sync.", count
    count = sum(
        len(term.role.isr) < max(partition.log.topic.min_insync_replicas, term.role.min_isr) for partition, term in led
    )
    doc = "Led partitions with fewer than min.insync.replicas in sync."
    yield "conveyor_replication_under_min_isr_partitions", doc, count
    lag = max((_lag_messages(partition.log, term) for partition, term in led), default=0)
    yield "conveyor_replication_max_lag_messages", "Most records that a replica of a led partition lacks.", lag


def _lag_messages(log: Log, term: LeaderTerm) -> int:
    reports = [term.replicas.reports.get(node) for node in term.role.replicas if node != term.role.leader]
    ends = [log.log_start_offset if report is None else report.written_offset for report in reports]
    return max(0, log.written_offset - min(ends)) if ends else 0


def _of_cluster(broker: BrokerNode) -> Iterator[tuple[str, str, int]]:
    image, metadata = broker.metadata.image, broker.metadata
    without_leader = sum(
        partition.leader == NO_LEADER for topic in image.topics.values() for partition in topic.partitions
    )
    yield "conveyor_cluster_leaderless_partitions", "Partitions of the cluster without a leader.", without_leader
    yield "conveyor_cluster_live_brokers", "Brokers of the cluster that are not fenced.", len(image.live_brokers)
    is_controller = metadata.controller_id == broker.settings.broker.node_id
    yield "conveyor_controller_active", "Whether this broker is the controller: 1, else 0.", int(is_controller)
    yield "conveyor_metadata_offset", "The last entry of the metadata log that this broker has applied.", image.seq
    doc = "Whether the metadata store has confirmed this broker's session lately: 1, else 0."
    yield "conveyor_metadata_session_sure", doc, int(metadata.session.holds_lease())
