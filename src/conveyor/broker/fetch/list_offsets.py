"""Finds offsets: the first, the end, the first at or after a time, the newest in time, the end of a leader epoch.

Source: KIP-79, KIP-734, KIP-320.
"""

from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.time_lookups import TimeLookups
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NO_TIMESTAMP
from conveyor.log.leader_epochs import NO_EPOCH
from conveyor.replication.leader_term import LeaderTerm
from conveyor.replication.partition import Partition
from conveyor.replication.reads import check_leader_epoch
from conveyor.replication.transactions import last_stable_offset

LATEST, EARLIEST, NEWEST_TIMESTAMP, EARLIEST_LOCAL = -1, -2, -3, -4
LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -5, -6
"""There is no tiered storage, so these offsets do not exist."""
NO_OFFSET = -1


Position = tuple[int, int, int]
"""An offset, the timestamp of its record in ms, and the epoch of the record."""


def is_by_time(timestamp_ms: int) -> bool:
    """Return whether a lookup searches the records of the log."""
    return timestamp_ms >= 0 or timestamp_ms == NEWEST_TIMESTAMP


class OffsetFinder:
    """Finds offsets by a time or a constant above. Offset -1 means that no record is as new.

    reads_committed: for a consumer to which the partition ends at the last stable offset.

    Its methods raise RequestError: also OFFSET_NOT_AVAILABLE if the offset may fall behind one that was returned before
    (KIP-207).
    """

    def __init__(self, partitions: PartitionTable, lookups: TimeLookups) -> None:
        self._partitions = partitions
        self._lookups = lookups

    def find_at_once(
        self, topic: str, number: int, timestamp_ms: int, leader_epoch: int, *, reads_committed: bool = False
    ) -> Position:
        """Return the position for a constant that is not by time."""
        partition, term = self._led(topic, number, leader_epoch)
        if timestamp_ms == LATEST:
            _check_epoch_committed(partition, term)
            return _end_offset(partition, reads_committed), NO_TIMESTAMP, term.epoch
        if timestamp_ms in (EARLIEST, EARLIEST_LOCAL):
            start_offset = partition.log.log_start_offset
            return start_offset, NO_TIMESTAMP, partition.log.leader_epochs.epoch_at(start_offset)
        if timestamp_ms in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
            return NO_OFFSET, NO_TIMESTAMP, NO_EPOCH
        assert not is_by_time(timestamp_ms), "a lookup by time has to wait for a thread"
        raise RequestError(ErrorKind.UNSUPPORTED_VERSION, f"timestamp {timestamp_ms} has no meaning to this broker")

    async def find(
        self,
        caller: Caller,
        topic: str,
        number: int,
        timestamp_ms: int,
        leader_epoch: int,
        *,
        reads_committed: bool = False,
    ) -> Position:
        """Return the position for a time or a constant, as the log was when the lookup began."""
        if not is_by_time(timestamp_ms):
            return self.find_at_once(topic, number, timestamp_ms, leader_epoch, reads_committed=reads_committed)
        partition, term = self._led(topic, number, leader_epoch)
        limit, is_newest = _end_offset(partition, reads_committed), timestamp_ms == NEWEST_TIMESTAMP
        is_epoch_committed = has_committed_epoch(term)
        if is_newest:
            record = await self._lookups.newest(caller, partition, limit)
        else:
            record = await self._lookups.first(caller, partition, timestamp_ms, limit)
        if (record is None or is_newest) and not is_epoch_committed:
            raise _epoch_not_committed(partition)
        if record is None:
            return NO_OFFSET, NO_TIMESTAMP, term.epoch
        return record.offset, record.timestamp_ms, partition.log.leader_epochs.epoch_at(record.offset)

    def _led(self, topic: str, number: int, leader_epoch: int) -> tuple[Partition, LeaderTerm]:
        """Return a partition and its term. It may have been elected since the client learned of its leader: the end
        that it knew may be an old one.
        """
        partition = self._partitions.find(topic, number)
        check_leader_epoch(partition, leader_epoch)
        return partition, partition.leading()


def find_epoch_end(
    partitions: PartitionTable, topic: str, number: int, epoch: int, current_epoch: int
) -> tuple[int, int]:
    """Return (the largest epoch up to the requested one, its end offset); see `LeaderEpochs.end_of`.

    Raises RequestError. Source: KIP-320.
    """
    partition = partitions.find(topic, number)
    check_leader_epoch(partition, current_epoch)
    partition.leading()
    return partition.log.leader_epochs.end_of(epoch, partition.log.log_end_offset)


def _end_offset(partition: Partition, reads_committed: bool) -> int:
    return last_stable_offset(partition) if reads_committed else partition.term.high_watermark


def has_committed_epoch(term: LeaderTerm) -> bool:
    """Return whether the high watermark has reached the log's end at the beginning of a leader's term.

    Before that it may be below offsets that consumers have seen from an earlier leader. Source: KIP-207.
    """
    return term.high_watermark >= term.epoch_start_offset


def _check_epoch_committed(partition: Partition, term: LeaderTerm) -> None:
    if not has_committed_epoch(term):
        raise _epoch_not_committed(partition)


def _epoch_not_committed(partition: Partition) -> RequestError:
    return RequestError(
        ErrorKind.OFFSET_NOT_AVAILABLE,
        f"{partition.identity}: the new leader does not know yet which of its last records are committed",
    )
