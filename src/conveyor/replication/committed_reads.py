"""Reads for consumers with `isolation.level=read_committed`: no record at or above the last stable offset.

The records of aborted transactions are part of what is read; the consumer skips them by the list that comes with them.
Replicas that lead and replicas that follow are read alike: both know the transactions of their logs.
"""

from collections.abc import Sequence

import msgspec

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ports import FileSlice
from conveyor.log.log import Log
from conveyor.log.segments import lookup
from conveyor.log.transactions.aborted_entries import AbortedTransaction
from conveyor.replication.partition import Partition
from conveyor.replication.transactions import aborted_transactions, last_stable_offset


class CommittedSlice(msgspec.Struct, frozen=True):
    """Stored records below the last stable offset, and the aborted transactions that have records among them."""

    records: FileSlice | None
    aborted: Sequence[AbortedTransaction] = ()


NOTHING = CommittedSlice(None)


def read_committed(partition: Partition, offset: int, max_bytes: int, *, at_least_one: bool) -> CommittedSlice:
    """Read from an offset on. An offset between the last stable offset and the end of what is readable is valid:
    there are no records for the consumer yet.

    The caller has checked that this replica serves the partition. Raises RequestError: see `Log.read`.
    """
    limit = last_stable_offset(partition)
    if limit <= offset <= max(partition.high_watermark, partition.acknowledged_offset):
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
    segment = lookup.segment_for(log.segments, offset)
    if segment.file is not records.file:
        segment = lookup.first_with_records(log.segments, segment)
    end = records.position + records.length
    return segment.next_offset if end >= segment.size else segment.header_at(end).base_offset
