"""Markers have Kafka's bytes. The golden ones are from `MemoryRecords.withEndTransactionMarker` of Kafka 4.3.1."""

import msgspec
import pytest

from conveyor.records.batch import CONTROL, read_header, with_producer
from conveyor.records.checked_batch import check_stored
from conveyor.records.record import encode_batch
from conveyor.records.transaction_marker import MARKER, TransactionMarker, decode_marker, encode_marker, is_marker

ABORT = bytes.fromhex(
    "000000000000000000000042ffffffff02323320550030000000000000018bcfe568000000018bcfe5680000000000000000070003"
    "ffffffff000000012000000008000000000c00000000000500"
)
COMMIT = bytes.fromhex(
    "000000000000002a0000004200000009020db461160030000000000000018bcfe5687b0000018bcfe5687b40000000000000007fff"
    "ffffffff000000012000000008000000010c00007fffffff00"
)


def marker(**changes: int | bool) -> TransactionMarker:
    fenced = TransactionMarker(producer_id=7, producer_epoch=3, coordinator_epoch=5, commits=False)
    return msgspec.structs.replace(fenced, **changes)


def test_encoded_marker_has_kafkas_bytes() -> None:
    assert encode_marker(marker(), 1_700_000_000_000) == ABORT


def test_marker_of_kafka_is_decoded() -> None:
    assert decode_marker(read_header(ABORT), ABORT) == marker()
    assert decode_marker(read_header(COMMIT), COMMIT) == marker(
        producer_id=1 << 62, producer_epoch=32767, coordinator_epoch=2**31 - 1, commits=True
    )
    assert check_stored(COMMIT).header.base_offset == 42


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"\0\0\0\0\0\1"),
        (b"\0\0\0", b"\0\0\0\0\0\1"),
        (b"\0\0\0\2", b"\0\0\0\0\0\1"),
        (b"\0\0\0\1", b"\0\0\0\0\0"),
        (b"\0\0\0\1", None),
    ],
)
def test_other_control_records_are_no_markers(key: bytes | None, value: bytes | None) -> None:
    content = encode_batch([(1, key, value, ())], attributes=MARKER, producer_id=1, producer_epoch=0)
    assert decode_marker(read_header(content), content) is None


def test_unreadable_or_second_records_are_no_markers() -> None:
    torn = bytearray(ABORT)
    torn[61] = 0x7F
    assert decode_marker(read_header(torn), torn) is None
    record = (1, b"\0\0\0\1", b"\0\0\0\0\0\1", ())
    two = encode_batch([record, record], attributes=MARKER, producer_id=1, producer_epoch=0)
    assert decode_marker(read_header(two), two) is None


def test_only_transactional_control_batches_are_markers() -> None:
    assert is_marker(read_header(ABORT))
    assert not is_marker(read_header(encode_batch([(1, None, b"", ())], attributes=CONTROL)))


def test_batch_of_another_producer_is_in_no_transaction() -> None:
    content = encode_batch([(1, None, b"", ())], attributes=0x11, producer_id=1, producer_epoch=0, base_sequence=0)
    header = read_header(with_producer(content, 9, 1, 5))
    assert (header.attributes, header.producer_id, header.producer_epoch, header.base_sequence) == (1, 9, 1, 5)
