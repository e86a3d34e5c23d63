"""Records of `__transaction_state` are Kafka's, byte for byte."""

import pytest

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ids import ProducerEpoch, ProducerId, TopicPartition
from conveyor.transactions.transaction_log import decode_transaction, decode_transactional_id, transaction_record
from conveyor.transactions.transaction_value import TransactionState, TransactionValue

PARTITIONS = frozenset({TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1)})
VALUE = TransactionValue(
    producer_id=ProducerId(1000),
    producer_epoch=ProducerEpoch(7),
    timeout_ms=60_000,
    state=TransactionState.ONGOING,
    partitions=PARTITIONS,
    last_update_ms=1_700_000_000_001,
    start_ms=1_700_000_000_000,
    previous_producer_id=ProducerId(999),
    next_producer_id=ProducerId(1001),
    transaction_version=2,
    next_producer_epoch=ProducerEpoch(3),
    last_producer_epoch=ProducerEpoch(32766),
)
UNTAGGED = (
    "00000000000003e8" "0007" "0000ea60" "01"  # producer id, epoch, timeout, state
)  # fmt: skip
TIMES = "0000018bcfe56801" "0000018bcfe56800"  # fmt: skip
GOLDEN = (
    "0001" + UNTAGGED + "03" "0261" "03" "00000000" "00000002" "00" "0262" "02" "00000001" "00" + TIMES
    + "05" "0008" "00000000000003e7" "0108" "00000000000003e9" "0202" "0002" "0302" "0003" "d68601" "02" "7ffe"
)  # fmt: skip
VERSION_0 = (
    "0000" + UNTAGGED + "00000002" "000161" "00000002" "00000000" "00000002" "000162" "00000001" "00000001" + TIMES
)  # fmt: skip
KAFKAS_WITHOUT_TAGS = "0001" + UNTAGGED + "00" + TIMES + "00"
"""Kafka leaves out tagged fields that have their defaults, and writes null for no partitions."""


def test_record_has_the_bytes_of_kafkas_definitions() -> None:
    record = transaction_record("orders", VALUE)
    assert record.key == bytes.fromhex("0000" "0006") + b"orders"  # fmt: skip
    assert record.value is not None
    assert record.value.hex() == GOLDEN


def test_record_survives_a_round_trip() -> None:
    assert decode_transaction(bytes.fromhex(GOLDEN)) == VALUE


def test_record_of_version_0_can_be_read() -> None:
    value = decode_transaction(bytes.fromhex(VERSION_0))
    assert (value.partitions, value.start_ms) == (PARTITIONS, VALUE.start_ms)
    assert (value.previous_producer_id, value.next_producer_epoch, value.last_producer_epoch) == (-1, -1, -1)


def test_record_without_tags_has_their_defaults() -> None:
    value = decode_transaction(bytes.fromhex(KAFKAS_WITHOUT_TAGS))
    assert (value.partitions, value.next_producer_id, value.transaction_version) == (frozenset(), -1, 0)


def test_tombstone_has_no_value() -> None:
    assert transaction_record("orders", None).value is None


def test_key_of_another_version_is_skipped() -> None:
    assert decode_transactional_id(bytes.fromhex("0001000161")) is None
    assert decode_transactional_id(bytes.fromhex("0000000161")) == "a"


@pytest.mark.parametrize("length", range(len(GOLDEN) // 2))
def test_truncated_record_is_a_storage_failure(length: int) -> None:
    with pytest.raises(StorageFailure):
        decode_transaction(bytes.fromhex(GOLDEN)[:length])


@pytest.mark.parametrize("damaged", ["0002" + GOLDEN[4:], GOLDEN.replace("ea6001", "ea6007"), GOLDEN[:42] + "02ff"])
def test_damaged_record_is_a_storage_failure(damaged: str) -> None:
    with pytest.raises(StorageFailure):
        decode_transaction(bytes.fromhex(damaged))


@pytest.mark.parametrize("key", ["", "0000", "00000009ff", "00000001ff"])
def test_damaged_key_is_a_storage_failure(key: str) -> None:
    with pytest.raises(StorageFailure):
        decode_transactional_id(bytes.fromhex(key))


def test_length_of_too_many_bytes_is_a_storage_failure() -> None:
    """The time to decode it would grow with the square of its size."""
    with pytest.raises(StorageFailure, match="five bytes"):
        decode_transaction(bytes.fromhex(GOLDEN[:34]) + b"\x81" + b"\x80" * 10 + bytes(18))
