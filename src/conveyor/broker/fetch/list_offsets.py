"""Finds offsets: the first, the end, the first at or after a time, the newest in time, the end of a leader epoch.

Source: KIP-79, KIP-734, KIP-320.
"""

from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ids import NO_TIMESTAMP
from conveyor.log.leader_epochs import NO_EPOCH
from conveyor.log.segments.lookup import find_newest, find_time
from conveyor.replication.leader_term import LeaderTerm
from conveyor.replication.partition import Partition
from conveyor.replication.reads import check_leader_epoch
from conveyor.replication.transactions import last_stable_offset

LATEST, EARLIEST, NEWEST_TIMESTAMP, EARLIEST_LOCAL = -1, -2, -3, -4
LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -5, -6
"""There is no tiered storage, so these offsets do not exist."""
NO_OFFSET = -1


def find_offset(
    partitions: PartitionTable,
    topic: str,
    number: int,
    timestamp_ms: int,
    leader_epoch: int,
    *,
    reads_committed: bool = False,
) -> tuple[int, int, int]:
    """Return (offset, timestamp in ms, epoch of the record) for a time or a constant above; offset -1 if no record is
    as new.

    reads_committed: for a consumer to which the partition ends at the last stable offset.

    Raises RequestError: also OFFSET_NOT_AVAILABLE if the offset may fall behind one that was returned before (KIP-207).
    """
    partition = partitions.find(topic, number)
    check_leader_epoch(partition, leader_epoch)
    term = partition.leading()  # It may have been elected since: the end that it knew may be an old one.
    if timestamp_ms == LATEST:
        _check_epoch_committed(partition, term)
        return _end_offset(partition, reads_committed), NO_TIMESTAMP, term.epoch
    if timestamp_ms in (EARLIEST, EARLIEST_LOCAL):
        start_offset = partition.log.log_start_offset
        return start_offset, NO_TIMESTAMP, partition.log.leader_epochs.epoch_at(start_offset)
    if timestamp_ms in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return NO_OFFSET, NO_TIMESTAMP, NO_EPOCH
    if timestamp_ms < NEWEST_TIMESTAMP:
        raise RequestError(ErrorKind.UNSUPPORTED_VERSION, f"timestamp {timestamp_ms} has no meaning to this broker")
    return _by_time(partition, term, timestamp_ms, _end_offset(partition, reads_committed))


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


def _by_time(partition: Partition, term: LeaderTerm, timestamp_ms: int, limit: int) -> tuple[int, int, int]:
    segments, start = partition.log.segments.all, partition.log.log_start_offset
    try:
        if timestamp_ms == NEWEST_TIMESTAMP:
            record = find_newest(segments, limit, start)
        else:
            record = find_time(segments, timestamp_ms, limit, start)
    except StorageFailure as failure:
        raise partition.failed_read(failure) from failure
    if record is None or timestamp_ms == NEWEST_TIMESTAMP:
        _check_epoch_committed(partition, term)
    if record is None:
        return NO_OFFSET, NO_TIMESTAMP, term.epoch
    return record.offset, record.timestamp_ms, partition.log.leader_epochs.epoch_at(record.offset)


def has_committed_epoch(term: LeaderTerm) -> bool:
    """Return whether the high watermark has reached the log's end at the beginning of a leader's term.

    Before that it may be below offsets that consumers have seen from an earlier leader. Source: KIP-207.
    """
    return term.high_watermark >= term.epoch_start_offset


def _check_epoch_committed(partition: Partition, term: LeaderTerm) -> None:
    if not has_committed_epoch(term):
        raise RequestError(
            ErrorKind.OFFSET_NOT_AVAILABLE,
            f"{partition.identity}: the new leader does not know yet which of its last records are committed",
        )
