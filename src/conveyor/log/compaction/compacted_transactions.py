"""The transactions and producers of a log that is being compacted. Pure.

    aborted records      are removed at once
    a marker             stays until no batch of its transaction is left, and then for `delete.retention.ms`; an abort
                         marker and its entry in the transaction index go together
    a producer's last    stays while the log remembers the producer: as an empty batch, or as a marker if that began a
    batch                new epoch. A new replica learns the producer's epoch and sequence from it

An empty batch of a transaction counts as a batch of it, because it begins the transaction at a new replica. One object
is used for all segments of a compaction, in the order of the log: a transaction may begin in one and end in another
(KAFKA-8351). Records above the cleaned offset are copied unchanged, and so are the markers there, which may end
transactions that begin there (KAFKA-13727). Source: KIP-98, KIP-534; Kafka's CleanedTransactionMetadata.
"""

from array import array
from bisect import bisect_right

from conveyor.log.compaction.compaction_plan import CompactionPlan
from conveyor.log.transactions.aborted_entries import ENTRY_BYTES, AbortedTransaction, decode_aborted
from conveyor.records.batch import CONTROL, TRANSACTIONAL, BatchHeader


class CompactedTransactions:
    """See the module's docstring."""

    def __init__(self, plan: CompactionPlan) -> None:
        self._entries: dict[int, bytes] = {}
        """By the marker's offset."""
        self._aborted: dict[int, list[AbortedTransaction]] = {}
        """By producer id, in the order of the log."""
        for number, aborted in enumerate(decode_aborted(plan.aborted)):
            self._entries[aborted.last_offset] = plan.aborted[number * ENTRY_BYTES : (number + 1) * ENTRY_BYTES]
            self._aborted.setdefault(aborted.producer_id, []).append(aborted)
        markers = _numbers(plan.markers)
        self._last_offsets = frozenset(_numbers(plan.last_offsets))
        self._marker_epochs = dict(zip(markers[::2], markers[1::2], strict=True))
        self._with_batches: set[int] = set()
        """The producers with a batch that was kept since their last marker."""

    def is_aborted(self, header: BatchHeader) -> bool:
        """Return whether a batch belongs to an aborted transaction."""
        if header.attributes & (TRANSACTIONAL | CONTROL) != TRANSACTIONAL:
            return False
        aborted = self._aborted.get(header.producer_id)
        if aborted is None:
            return False
        index = bisect_right(aborted, header.base_offset, key=_first_offset) - 1
        return index >= 0 and header.base_offset < aborted[index].last_offset

    def is_last_of_producer(self, header: BatchHeader) -> bool:
        """Return whether a batch of records is the last one of a producer that the log remembers."""
        return header.producer_id >= 0 and header.next_offset - 1 in self._last_offsets

    def note_kept(self, header: BatchHeader) -> None:
        """Note a batch of records, possibly none, that stays in the log."""
        if header.attributes & TRANSACTIONAL:
            self._with_batches.add(header.producer_id)

    def end_is_unneeded(self, header: BatchHeader) -> bool:
        """Note a marker. Returns whether no batch of its transaction is left, and no producer depends on it."""
        has_batches = header.producer_id in self._with_batches
        self._with_batches.discard(header.producer_id)
        return not has_batches and self._marker_epochs.get(header.producer_id) != header.producer_epoch

    def aborted_at(self, header: BatchHeader) -> bytes:
        """Return the entry in the transaction index for a batch, if it is an abort marker with an entry."""
        return self._entries.get(header.base_offset, b"") if header.attributes & CONTROL else b""


def _first_offset(aborted: AbortedTransaction) -> int:
    return aborted.first_offset


def _numbers(packed: bytes) -> "array[int]":
    numbers = array("q")
    numbers.frombytes(packed)
    return numbers
