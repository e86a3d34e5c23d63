"""Checks the times that leaders stamp on records.

Invariants, by the names that failures report:

    StampedByLeader    the records of a topic with `message.timestamp.type=LogAppendTime` have the time that the wall
                       clock of their leader showed when it appended them
"""

from typing import NamedTuple

from conveyor.kernel.ids import LeaderEpoch
from conveyor.log.batch_reading import batches_between
from conveyor.replication.partition import Partition
from simulation.cluster.simulated_cluster import SimulatedCluster
from simulation.ledger import InvariantBroken
from simulation.simulated_broker import SimulatedBroker
from simulation.story_topics import LOG_TOPIC


class _Seen(NamedTuple):
    """A leader's log at a moment of steady time, when everything that it had appended was written."""

    epoch: LeaderEpoch
    end_offset: int
    at_ms: int


class StampWatch:
    """See StampedByLeader. Call `look` often.

    A broker stamps a batch when it appends it, and may be paused before it writes it. So a look that finds an unwritten
    batch checks nothing: a later one checks all batches since the last look that found none.
    """

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._seen: dict[Partition, _Seen] = {}

    def look(self) -> None:
        """Check what leaders have appended since the last call. Adds to the cluster's `broken`."""
        for broker in self._cluster.brokers.values():
            with broker.disk.faults.observed():
                for partition in () if broker.node is None else broker.node.partitions.table:
                    if partition.identity.topic == LOG_TOPIC:
                        self._look_at(broker, partition)

    def _look_at(self, broker: SimulatedBroker, partition: Partition) -> None:
        term, log = partition.leader_term, partition.log
        if term is None or partition.offline.reason is not None:
            self._seen.pop(partition, None)
        elif log.written_offset == log.log_end_offset:
            before, now = self._seen.get(partition), _Seen(term.epoch, log.written_offset, broker.clock.steady_ms())
            self._seen[partition] = now
            if before is not None and before.epoch == now.epoch:
                self._check(broker, partition, before, now)

    def _check(self, broker: SimulatedBroker, partition: Partition, before: _Seen, now: _Seen) -> None:
        for batch in batches_between(partition.log, before.end_offset, now.end_offset):
            stamp_ms = batch.header.max_timestamp
            if not broker.clock.shown_at(stamp_ms, before.at_ms, now.at_ms):
                detail = f"{partition.identity} offset {batch.header.base_offset}: stamped {stamp_ms}"
                self._cluster.broken.append(InvariantBroken("StampedByLeader", detail))
