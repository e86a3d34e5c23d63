"""Counts the changes of the partitions that this broker leads, and measures its replication, for `/metrics`."""

import msgspec

from conveyor.replication.partition import Partition
from conveyor.replication.roles import Leader


class ReplicationMeasures(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers since the start of the broker, and of this moment.

    longest_lag_ms: the longest time that an in-sync replica had not caught up for, at the last check. catch_up_bytes:
    the part of sent_bytes for replicas that were not in sync.
    """

    isr_shrinks: int = 0
    isr_expands: int = 0
    leader_elections: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    catch_up_bytes: int = 0
    is_catch_up_throttled: bool = False
    longest_lag_ms: int = 0


class ReplicationProbe:
    """Counts changes of ISRs, and leaderships begun."""

    def __init__(self) -> None:
        self.isr_shrinks = self.isr_expands = self.leader_elections = 0
        self._led: dict[Partition, Leader] = {}

    def assumed(self, partition: Partition) -> None:
        """The role of a partition may have changed."""
        term, before = partition.leader_term, self._led.pop(partition, None)
        if term is None:
            return
        role = self._led[partition] = term.role
        self.leader_elections += before is None or before.epoch < role.epoch
        if before is not None:
            self.isr_shrinks += not set(before.isr) <= set(role.isr)
            self.isr_expands += not set(role.isr) <= set(before.isr)

    def closed(self, partition: Partition) -> None:
        self._led.pop(partition, None)
