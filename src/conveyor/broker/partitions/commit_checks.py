"""Checks the partitions on which clients wait for the high watermark; see `conveyor.replication.commit_deadline`.

A partition is checked from the first wait on, until a check finds no client that waits. Without waits no timer is set.
"""

from conveyor.kernel.alarm import Alarm
from conveyor.kernel.ports import Clock
from conveyor.replication.commit_deadline import CHECK_MS
from conveyor.replication.partition import Partition


class CommitChecks:
    """See the module's docstring."""

    def __init__(self, clock: Clock) -> None:
        self._alarm = Alarm(clock, self._check)
        self._partitions: dict[Partition, None] = {}

    @property
    def is_checking(self) -> bool:
        """Whether clients have waited at the last check, or have begun to wait since."""
        return self._alarm.is_set

    def add(self, partition: Partition) -> None:
        """Check a partition from now on."""
        self._partitions[partition] = None
        if not self._alarm.is_set:
            self._alarm.time_out(CHECK_MS)

    def stop(self) -> None:
        """Check no more. The waits end when the partitions do."""
        self._partitions.clear()
        self._alarm.cancel()

    def _check(self) -> None:
        checked, self._partitions = self._partitions, {}
        for partition in checked:
            if partition.check_commits():
                self.add(partition)
