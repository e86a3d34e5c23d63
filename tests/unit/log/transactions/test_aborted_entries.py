"""Aborted transactions have Kafka's bytes. The golden ones are from `TransactionIndex` of Kafka 4.3.1."""

from conveyor.log.transactions.aborted_entries import (
    AbortedTransaction,
    aborted_from,
    decode_aborted,
    encode_aborted,
    entries_below,
)
from conveyor.log.transactions.open_transactions import EndedTransaction

KAFKAS = bytes.fromhex(
    "00000000000000000007000000000000000a0000000000000014000000000000000f"
    "000040000000000000000000010000000000000001000000000e000001000000000f"
)
FIRST = AbortedTransaction(7, 10, 20, 15)
SECOND = AbortedTransaction(1 << 62, 1 << 40, (1 << 40) + 14, (1 << 40) + 15)


def test_entries_have_kafkas_bytes() -> None:
    encoded = [encode_aborted(each.producer_id, EndedTransaction(*each[1:])) for each in (FIRST, SECOND)]
    assert b"".join(encoded) == KAFKAS


def test_entries_of_kafka_are_decoded() -> None:
    assert decode_aborted(KAFKAS) == [FIRST, SECOND]


def test_entries_below_an_offset_have_their_marker_below_it() -> None:
    assert decode_aborted(entries_below(KAFKAS, 20)) == []
    assert decode_aborted(entries_below(KAFKAS, 21)) == [FIRST]


def test_entries_are_found_by_their_marker() -> None:
    entries = b"".join(encode_aborted(1, EndedTransaction(2 * n, 2 * n + 1, 2 * n + 2)) for n in range(200))
    found = list(aborted_from(entries, 201))
    assert [entry.last_offset for entry in found] == list(range(201, 400, 2))
    assert list(aborted_from(entries, 400)) == []
