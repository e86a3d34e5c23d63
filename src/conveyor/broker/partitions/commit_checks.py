"""Checks the partitions on which clients wait for the high watermark; see `conveyor.replication.commit_deadline`.

A partition is checked from the first wait on, until a check finds no client that waits. Without waits no timer is set.
"""

from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.kernel.alarm import Alarm
from conveyor.kernel.ids import TopicPartition
from conveyor.kernel.ports import Clock
from conveyor.replication.commit_deadline import CHECK_MS


class CommitChecks:
    def __init__(self, clock: Clock, partitions: PartitionTable) -> None:
        self._alarm = Alarm(clock, self._check)
        self._partitions = partitions
        self._checked: dict[TopicPartition, None] = {}

    def add(self, identity: TopicPartition) -> None:
        """Check a partition from now on."""
        self._checked[identity] = None
        if not self._alarm.is_set:
            self._alarm.time_out(CHECK_MS)

    def stop(self) -> None:
        """Check no more. The waits end when the partitions do."""
        self._alarm.end()
        self._checked.clear()

    def _check(self) -> None:
        checked, self._checked = self._checked, {}
        for identity in checked:
            partition = self._partitions.get(*identity)
            term = None if partition is None else partition.leader_term
            if term is not None and term.check_commits():
                self.add(identity)
