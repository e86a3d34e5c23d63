"""The header of a record batch: decoding, refusals, and the fields that the broker sets."""

import pytest
from crc32c import crc32c

from conveyor.records.batch import (
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAGIC_END,
    BatchHeader,
    batch_is_intact,
    iterate_batches,
    placed_prefix,
    read_header,
    with_append_time,
)
from conveyor.records.record import decode_records
from tests.unit.log.logs import NOW_MS, batch

ROOM = 1 << 20


def changed(content: bytes, **fields: int) -> bytes:
    """Return the batch with changed header fields and a matching CRC."""
    header = read_header(content)._replace(**fields)
    made = bytearray(HEADER.pack(*header) + content[HEADER_BYTES:])
    made[MAGIC_END:CRC_START] = crc32c(memoryview(made)[CRC_START:]).to_bytes(4, "big")
    return bytes(made)


def test_header_has_the_sizes_of_the_format() -> None:
    assert (HEADER_BYTES, MAGIC_END, CRC_START) == (61, 17, 21)
    assert len(BatchHeader._fields) == 13


def test_batch_that_is_stored_is_intact_whatever_it_counts() -> None:
    assert batch_is_intact(changed(batch(b"a"), records_count=99, last_offset_delta=98))


def test_placed_prefix_sets_offset_and_epoch_and_keeps_the_checksum() -> None:
    content = batch(b"a", b"b")
    placed = placed_prefix(1234, read_header(content), 9) + content[MAGIC_END:]
    header = read_header(placed)
    assert (header.base_offset, header.leader_epoch, header.next_offset) == (1234, 9, 1236)
    assert batch_is_intact(placed)


def test_with_append_time_stamps_every_record() -> None:
    stamped = with_append_time(batch(b"a", b"b", at_ms=5), NOW_MS)
    assert batch_is_intact(stamped)
    assert read_header(stamped).attributes == LOG_APPEND_TIME
    assert [record.timestamp_ms for record in decode_records(stamped)] == [NOW_MS, NOW_MS]


def test_batch_is_intact_wants_the_whole_batch_and_no_more() -> None:
    content = batch(b"a")
    assert batch_is_intact(content)
    assert not batch_is_intact(content + b"\0")
    assert not batch_is_intact(content[:-1])


def test_iterate_batches_leaves_out_a_cut_one() -> None:
    first, second = batch(b"a"), batch(b"bb")
    both = first + second
    assert [position for position, _ in iterate_batches(both)] == [0, len(first)]
    assert [position for position, _ in iterate_batches(both[:-1])] == [0]
    assert [position for position, _ in iterate_batches(both[: len(first) + 60])] == [0]


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 48])
def test_iterate_batches_ends_at_a_length_that_cannot_be(length: int) -> None:
    assert list(iterate_batches(changed(batch(b"a"), batch_length=length))) == []
