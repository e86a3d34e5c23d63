"""Lets consumers that name their rack read from a replica in that rack. Source: KIP-392.

    leader      proposes an in-sync replica in the consumer's rack that has the offset, the one with most records
    follower    serves records up to its own high watermark, while the image shows it as in sync

`broker.replica_selector=leader` turns the proposals off. A follower that has left the ISR sends its readers back to the
leader.
"""

from contextlib import suppress

import msgspec

from conveyor.broker.services import Services
from conveyor.kernel.errors import ErrorKind, NotLeader, RequestError
from conveyor.kernel.ids import NodeId
from conveyor.replication.partition import Partition
from conveyor.replication.reads import check_leader_epoch

NO_REPLICA = NodeId(-1)


class ReplicaReads:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._metadata = services.metadata

    def from_rack(self, rack: str) -> "RackReads":
        """Return the choice for a consumer in a rack."""
        return RackReads(rack=rack, reads=self, selects=self._services.settings.broker.replica_selector == "rack")

    def preferred_replica(self, partition: Partition, offset: int, rack: str) -> NodeId:
        """Return the replica that a consumer in a rack should read an offset from; NO_REPLICA for this broker."""
        image = self._metadata.image
        own, state = image.brokers.get(self._services.me), image.partition(*partition.identity)
        term = partition.leader_term
        if state is None or own is None or own.rack == rack or term is None:
            return NO_REPLICA
        candidates = []
        for node in state.isr:
            broker, report = image.brokers.get(node), term.replicas.reports.get(node)
            is_live = broker is not None and not broker.is_fenced and not broker.is_stopping and broker.rack == rack
            if is_live and report is not None and report.log_start_offset <= offset <= report.written_offset:
                candidates.append((report.written_offset, -node))
        return NodeId(-max(candidates)[1]) if candidates else NO_REPLICA

    def check_in_sync(self, partition: Partition) -> None:
        """Check that this follower is in sync. Raises RequestError: NOT_LEADER."""
        state, role = self._metadata.image.partition(*partition.identity), partition.term.role
        if state is None or self._services.me not in state.isr or role.leader is None:
            raise NotLeader(f"{partition.identity}: this replica is not in sync", role.leader, role.epoch)


class RackReads(msgspec.Struct, frozen=True, kw_only=True):
    """The choice for one consumer. selects: whether a leader proposes replicas."""

    rack: str
    reads: ReplicaReads
    selects: bool

    def preferred_replica(self, partition: Partition, offset: int) -> NodeId:
        return self.reads.preferred_replica(partition, offset, self.rack) if self.selects else NO_REPLICA

    def check(self, partition: Partition, offset: int, leader_epoch: int) -> None:
        """Check that this follower serves a consumer at an offset.

        Raises RequestError: OFFSET_NOT_AVAILABLE if this replica does not have the offset yet, NOT_LEADER if it is not
        in sync, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH.
        """
        with suppress(NotLeader):
            check_leader_epoch(partition, leader_epoch)
        self.reads.check_in_sync(partition)
        if partition.offline.reason is not None:
            raise partition.offline.error()
        end_offset = partition.log.log_end_offset
        if offset > end_offset:
            message = f"{partition.identity}: this replica ends at offset {end_offset} yet"
            raise RequestError(ErrorKind.OFFSET_NOT_AVAILABLE, message)
