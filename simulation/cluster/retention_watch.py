"""Topics whose old records are deleted by their age or by the size of their partitions.

Invariants, by the names that failures report:

    NoEarlyDeletion    retention deletes only records that are older than `retention.ms`, and leaves as many bytes as
                       `retention.bytes` says
"""

from dataclasses import dataclass

from conveyor.broker.broker_node import BrokerNode
from conveyor.replication.partition import Partition
from simulation.cluster.fault_counts import FaultCounts
from simulation.cluster.simulated_cluster import SimulatedCluster
from simulation.ledger import InvariantBroken, LogLedger
from simulation.troubles import BRIEF_TOPIC, RETENTION_BYTES, RETENTION_MS, SHORT_TOPIC


@dataclass(slots=True)
class _Seen:
    """A leader's log. newest_ms: the largest timestamps of its segments, by their end offsets."""

    start: int
    newest_ms: dict[int, int]


class RetentionWatch:
    """See the module's docstring. Call `look` often."""

    def __init__(self, cluster: SimulatedCluster, ledger: LogLedger, counts: FaultCounts) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._counts = counts
        self._seen: dict[Partition, _Seen] = {}

    def look(self) -> None:
        """Note what was deleted since the last call. Adds to the cluster's `broken`."""
        for broker in self._cluster.brokers.values():
            if broker.node is not None:
                self._look_at(broker.node, broker.clock.latest_ms())

    def _look_at(self, node: BrokerNode, now_ms: int) -> None:
        for partition in node.partitions.table:
            if partition.identity.topic not in (BRIEF_TOPIC, SHORT_TOPIC) or partition.offline.reason is not None:
                continue
            place = partition.identity.topic, partition.identity.partition
            self._ledger.delete_before(place, partition.log.log_start_offset)
            if partition.leader_term is None:
                self._seen.pop(partition, None)
                continue
            seen, start = self._seen.get(partition), partition.log.log_start_offset
            if seen is not None and start > seen.start:
                self._counts.note(f"old records of {partition.identity.topic} deleted")
                self._check(partition, seen, now_ms)
            newest_ms = {segment.next_offset: segment.max_timestamp for segment in partition.log.segments.all}
            self._seen[partition] = _Seen(start, newest_ms)

    def _check(self, partition: Partition, seen: _Seen, now_ms: int) -> None:
        start = partition.log.log_start_offset
        if partition.identity.topic == SHORT_TOPIC and partition.log.segments.size_bytes < RETENTION_BYTES:
            return self._break(partition, f"only {partition.log.segments.size_bytes} bytes are left")
        deleted_ms = max((newest_ms for end, newest_ms in seen.newest_ms.items() if end <= start), default=0)
        if partition.identity.topic == BRIEF_TOPIC and deleted_ms > now_ms - RETENTION_MS:
            self._break(partition, f"a record of {deleted_ms} is deleted at {now_ms}")

    def _break(self, partition: Partition, detail: str) -> None:
        self._cluster.broken.append(InvariantBroken("NoEarlyDeletion", f"{partition.identity}: {detail}"))
