"""Reads of a partition's records for consumers.

    read_available     below the high watermark
    read_committed     below the last stable offset, for `isolation.level=read_committed`

The records of aborted transactions are part of what is read; the consumer skips them by the list that comes with them.
Replicas that lead and replicas that follow are read alike: both know the transactions of their logs. The caller has
checked that this replica serves the partition.

An offset above those, up to the end of the log, is valid and has no records yet: another leader may have committed
more than this replica knows, and a consumer that is refused resets its position.
"""

from collections.abc import Sequence

import msgspec

from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ports import FileSlice
from conveyor.log.log import Log
from conveyor.log.segments import lookup
from conveyor.log.transactions.aborted_entries import AbortedTransaction
from conveyor.replication import partition_refusals as refusals
from conveyor.replication.partition import Partition
from conveyor.replication.roles import fenced_epoch
from conveyor.replication.transactions import aborted_transactions, last_stable_offset


class CommittedSlice(msgspec.Struct, frozen=True):
    """Stored records below the last stable offset, and the aborted transactions that have records among them."""

    records: FileSlice | None
    aborted: Sequence[AbortedTransaction] = ()


NOTHING = CommittedSlice(None)


def check_leader_epoch(partition: Partition, epoch: int) -> None:
    """Check the client's epoch (-1: unknown), then the role. Raises RequestError. Source: KIP-320."""
    term = partition.term
    if 0 <= epoch < term.epoch:
        raise fenced_epoch(term.role, f"{partition.identity}: epoch is {term.epoch}")
    if epoch > term.epoch:
        raise RequestError(ErrorKind.UNKNOWN_LEADER_EPOCH, f"{partition.identity}: epoch is {term.epoch}")
    if partition.leader_term is None:
        raise refusals.not_leader(partition.identity, term.role)


def read_available(partition: Partition, offset: int, max_bytes: int, *, at_least_one: bool) -> FileSlice | None:
    """Read from an offset on. Returns None if there are no records yet.

    Raises RequestError: see `Log.read`.
    """
    limit = partition.term.high_watermark
    if limit < offset <= partition.log.log_end_offset:
        return None
    try:
        return partition.log.read(offset, max_bytes, limit, at_least_one=at_least_one, failed=partition.failed_read)
    except StorageFailure as failure:
        raise partition.failed_read(failure) from failure


def read_committed(partition: Partition, offset: int, max_bytes: int, *, at_least_one: bool) -> CommittedSlice:
    """Read from an offset on. Raises RequestError: see `Log.read`."""
    limit = last_stable_offset(partition)
    if limit <= offset <= partition.log.log_end_offset:
        return NOTHING
    try:
        records = partition.log.read(offset, max_bytes, limit, at_least_one=at_least_one, failed=partition.failed_read)
        if records is None:
            return NOTHING
        end = min(limit, _end_offset(partition.log, offset, records))
        return CommittedSlice(records, aborted_transactions(partition, offset, end))
    except StorageFailure as failure:
        raise partition.failed_read(failure) from failure


def _end_offset(log: Log, offset: int, records: FileSlice) -> int:
    """Return the first offset above the records of a slice that was just read from an offset on."""
    segment = lookup.segment_for(log.segments.all, offset)
    if segment.file is not records.file:
        segment = lookup.first_with_records(log.segments.all, segment)
    end = records.position + records.length
    return segment.next_offset if end >= segment.size else segment.files.header_at(end).base_offset
