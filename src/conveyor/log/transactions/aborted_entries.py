"""Aborted transactions as they are stored in `<base>.txnindex`, in Kafka's format. The entries of a segment are those
whose markers it contains, in the order of the markers:

    0 version int16 (0) | 2 producer id int64 | 10 first offset int64 | 18 last offset int64 (the marker's)
    26 last stable offset int64, when the marker was appended

Only transactions with records have an entry (KAFKA-10702). Source: Kafka's AbortedTxn and TransactionIndex.
"""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import count
from struct import Struct
from typing import NamedTuple

from conveyor.kernel.ports import Bytes
from conveyor.log.transactions.open_transactions import EndedTransaction

_VERSION = 0
_ENTRY = Struct(">hqqqq")
ENTRY_BYTES = _ENTRY.size
_MARKER_OFFSET = Struct(">q")
_MARKER_POSITION = 18
_PIECE_BYTES = 64 * ENTRY_BYTES


class AbortedTransaction(NamedTuple):
    """One aborted transaction; see the module's docstring."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def encode_aborted(producer_id: int, ended: EndedTransaction) -> bytes:
    """Return one entry."""
    return _ENTRY.pack(_VERSION, producer_id, *ended)


def decode_aborted(entries: Bytes) -> list[AbortedTransaction]:
    """Return all entries."""
    return list(aborted_from(entries, 0))


def aborted_from(entries: Bytes, offset: int) -> Iterator[AbortedTransaction]:
    """Yield the entries whose marker is not below an offset. The cost of the first grows with the logarithm of their
    number. Another thread may append entries meanwhile.
    """
    first = bisect_left(range(len(entries) // ENTRY_BYTES), offset, key=lambda index: _marker_offset(entries, index))
    for start in count(first * ENTRY_BYTES, _PIECE_BYTES):
        piece = bytes(entries[start : start + _PIECE_BYTES])
        for _, *fields in _ENTRY.iter_unpack(piece):
            yield AbortedTransaction._make(fields)
        if len(piece) < _PIECE_BYTES:
            return


def _marker_offset(entries: Bytes, index: int) -> int:
    marker_offset: int = _MARKER_OFFSET.unpack_from(entries, index * ENTRY_BYTES + _MARKER_POSITION)[0]
    return marker_offset


def entries_below(entries: Bytes, offset: int) -> bytearray:
    """Return the entries whose marker is below an offset."""
    below = sum(aborted.last_offset < offset for aborted in decode_aborted(entries))
    return bytearray(entries[: below * ENTRY_BYTES])
