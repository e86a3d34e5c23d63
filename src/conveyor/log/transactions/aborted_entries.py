"""Aborted transactions as they are stored in `<base>.txnindex`, in Kafka's format. The entries of a segment are those
whose markers it contains, in the order of the markers:

    0 version int16 (0) | 2 producer id int64 | 10 first offset int64 | 18 last offset int64 (the marker's)
    26 last stable offset int64, when the marker was appended

Only transactions with records have an entry (KAFKA-10702). Source: Kafka's AbortedTxn and TransactionIndex.
"""

from struct import Struct
from typing import NamedTuple

from conveyor.kernel.ports import Bytes
from conveyor.log.transactions.open_transactions import EndedTransaction

_VERSION = 0
_ENTRY = Struct(">hqqqq")
ENTRY_BYTES = _ENTRY.size


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
    return [AbortedTransaction._make(fields) for _, *fields in _ENTRY.iter_unpack(entries)]


def entries_below(entries: Bytes, offset: int) -> bytearray:
    """Return the entries whose marker is below an offset."""
    count = sum(aborted.last_offset < offset for aborted in decode_aborted(entries))
    return bytearray(entries[: count * ENTRY_BYTES])
