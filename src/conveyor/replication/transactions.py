"""Appends markers on a leader, and computes the last stable offset.

    last stable offset = max(log start, min(high watermark, first unstable offset))

All records below it are committed, aborted, or not part of a transaction. It may fall behind the log end for as long as
a transaction is open, but not behind the log start: deletion does not wait for transactions.
"""

from conveyor.kernel.ids import Offset
from conveyor.log.aborted_search import aborted_between
from conveyor.log.append_info import AppendInfo
from conveyor.log.transactions.aborted_entries import AbortedTransaction
from conveyor.records.checked_batch import own_batch
from conveyor.records.transaction_marker import TransactionMarker, encode_marker
from conveyor.replication.partition import Partition


def append_marker(
    partition: Partition, marker: TransactionMarker, transaction_version: int, now_ms: int
) -> AppendInfo | None:
    """Append the marker that ends a producer's transaction. Returns None if it was appended before.

    Also then the caller waits until the high watermark has reached the log end: the first one may not be committed yet.
    Where no transaction is open, a leader without a record of its epoch appends a marker all the same: another replica
    may have records of the transaction, and be elected with them, until it has copied something of this epoch.
    Raises RequestError: see `ProducerState.check_marker` and `Partition.append`.
    """
    term = partition.leading()
    term.check_writable()
    partition.log.producers.transactions.forget_decided(term.high_watermark)
    is_repeated = not partition.log.producers.check_marker(marker, transaction_version)
    if is_repeated and partition.log.log_end_offset > term.epoch_start_offset:
        return None
    return partition.append(own_batch(encode_marker(marker, now_ms)), now_ms)


def last_stable_offset(partition: Partition) -> Offset:
    """Return the offset below which all transactions are decided."""
    high_watermark, transactions = partition.term.high_watermark, partition.log.producers.transactions
    if not transactions.opened and not transactions.undecided:
        return high_watermark
    unstable = transactions.first_unstable_offset(high_watermark)
    if unstable is None:
        return high_watermark
    return Offset(max(partition.log.log_start_offset, min(high_watermark, unstable)))


def aborted_transactions(partition: Partition, offset: int, limit_offset: int) -> list[AbortedTransaction]:
    """Return the aborted transactions with records in [offset, limit_offset), for a reader of committed records.

    limit_offset: the end of the records that the reader gets, at most the last stable offset.
    """
    return aborted_between(partition.log.segments.all, offset, limit_offset)
