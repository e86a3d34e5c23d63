"""The metrics of transactions: what is open in the partitions that this broker leads, and what it coordinates."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from conveyor.broker.broker_node import BrokerNode
from conveyor.transactions.transaction_value import TransactionState

_LATE_AFTER_TIMEOUT_MS = 300_000
"""A coordinator aborts a transaction after its timeout. One that is open for so much longer has no coordinator."""


def transaction_metrics(broker: BrokerNode) -> Iterator[Metric]:
    """Return the metrics of this broker. A late transaction is open for longer than any client may ask for."""
    now_ms = broker.clock.now_ms()
    longest_ms = broker.settings.transactions.max_timeout_ms + _LATE_AFTER_TIMEOUT_MS
    open_count, late_count, oldest_ms = 0, 0, 0
    for partition in broker.partitions.table:
        opened = partition.log.producers.transactions.opened
        if opened and partition.leader_term is not None:
            age_ms = max(0, now_ms - next(iter(opened.values())).since_ms)
            open_count += len(opened)
            late_count += age_ms > longest_ms
            oldest_ms = max(oldest_ms, age_ms)
    doc = "Transactions with records in a led partition, counted in each of them."
    yield GaugeMetricFamily("conveyor_transactions_open", doc, value=open_count)
    doc = "Led partitions with a late transaction."
    yield GaugeMetricFamily("conveyor_transactions_late_partitions", doc, value=late_count)
    doc = "Age of the oldest open transaction of a led partition."
    yield GaugeMetricFamily("conveyor_transactions_oldest_open_seconds", doc, value=oldest_ms / 1000)
    doc = "Memory for the answers to requests with ids that this broker coordinates."
    yield GaugeMetricFamily(
        "conveyor_transactions_answers_bytes", doc, value=broker.coordinators.transactions.answers_bytes()
    )
    counts = broker.coordinators.transactions.state_counts()
    doc = "Transactional ids that this broker coordinates."
    ids = GaugeMetricFamily("conveyor_transactions_ids", doc, labels=["state"])
    for state in TransactionState:
        ids.add_metric([state.name.lower()], counts[state])
    yield ids
