"""Finds the aborted transactions whose records a reader of committed records must skip."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import islice

from conveyor.kernel.errors import StorageFailure
from conveyor.log.segments.lookup import base_offset
from conveyor.log.segments.segment import Segment
from conveyor.log.transactions.aborted_entries import AbortedTransaction, aborted_from
from conveyor.records.batch import BatchHeader, is_transactional


def aborted_between(segments: Sequence[Segment], offset: int, limit_offset: int) -> list[AbortedTransaction]:
    """Return the aborted transactions that have records in [offset, limit_offset), in the order of their markers.

    The search ends at the entry after which no transaction begins below the limit. Raises StorageFailure if a segment
    was never completely recovered.
    """
    found: list[AbortedTransaction] = []
    first = max(0, bisect_right(segments, offset, key=base_offset) - 1)
    for segment in islice(segments, first, None):
        if segment.indexes.aborted is None:
            raise StorageFailure(f"the aborted transactions of {segment.files.path('log')} are not known")
        for aborted in aborted_from(segment.indexes.aborted, offset):
            if aborted.first_offset < limit_offset:
                found.append(aborted)
            if aborted.last_stable_offset >= limit_offset:
                return found
    return found


class AbortedBatches:
    """The batches of some aborted transactions, in the order of their markers."""

    def __init__(self, transactions: Iterable[AbortedTransaction] = ()) -> None:
        self._by_producer: dict[int, list[AbortedTransaction]] = {}
        for transaction in transactions:
            self._by_producer.setdefault(transaction.producer_id, []).append(transaction)

    def has(self, header: BatchHeader) -> bool:
        """Return whether a batch belongs to one of the transactions."""
        if not is_transactional(header):
            return False
        own = self._by_producer.get(header.producer_id, ())
        index = bisect_right(own, header.base_offset, key=_last_offset)
        return index < len(own) and own[index].first_offset <= header.base_offset


def _last_offset(transaction: AbortedTransaction) -> int:
    return transaction.last_offset
