"""The header of a record batch: what is read from it, what is refused, what the broker may set in it."""

from collections.abc import Mapping

import pytest
from crc32c import crc32c

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.records.batch import (
    CONTROL,
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAGIC_END,
    TRANSACTIONAL,
    BatchHeader,
    batch_is_intact,
    check_batch,
    iterate_batches,
    placed_prefix,
    read_header,
    with_append_time,
)
from conveyor.records.record import decode_records, encode_batch
from tests.unit.log.logs import NOW_MS, batch, idempotent_batch

ROOM = 1 << 20


def changed(content: bytes, **fields: int) -> bytes:
    """The batch with other header fields, and a CRC that fits them."""
    header = read_header(content)._replace(**fields)
    made = bytearray(HEADER.pack(*header) + content[HEADER_BYTES:])
    made[MAGIC_END:CRC_START] = crc32c(memoryview(made)[CRC_START:]).to_bytes(4, "big")
    return bytes(made)


def refusal(content: bytes, max_bytes: int = ROOM) -> ErrorKind:
    with pytest.raises(RequestError) as refused:
        check_batch(content, max_bytes)
    return refused.value.kind


def test_header_has_the_sizes_of_the_format() -> None:
    assert (HEADER_BYTES, MAGIC_END, CRC_START) == (61, 17, 21)
    assert len(BatchHeader._fields) == 13


def test_check_batch_returns_the_header() -> None:
    header = check_batch(idempotent_batch(4, b"a", b"b"), ROOM)
    assert (header.records_count, header.last_offset_delta, header.base_sequence, header.producer_id) == (2, 1, 4, 7)
    assert header.max_timestamp == NOW_MS


def test_check_batch_takes_a_view() -> None:
    assert check_batch(memoryview(batch(b"a")), ROOM).records_count == 1


def test_check_batch_takes_just_the_largest_size() -> None:
    content = batch(b"a")
    assert check_batch(content, len(content)).size == len(content)
    assert refusal(content, len(content) - 1) is ErrorKind.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("position", [MAGIC_END, 20, CRC_START, 43, 60, -1])
def test_check_batch_refuses_a_flipped_bit(position: int) -> None:
    content = bytearray(batch(b"a"))
    content[position] ^= 0x10
    assert refusal(bytes(content)) is ErrorKind.CORRUPT_BATCH


@pytest.mark.parametrize("magic", [0, 1])
def test_check_batch_refuses_old_formats(magic: int) -> None:
    assert refusal(changed(batch(b"a"), magic=magic)) is ErrorKind.INVALID_RECORD


@pytest.mark.parametrize("magic", [3, -1])
def test_check_batch_takes_a_format_that_never_was_for_damage(magic: int) -> None:
    assert refusal(changed(batch(b"a"), magic=magic)) is ErrorKind.CORRUPT_BATCH


@pytest.mark.parametrize(("size", "kind"), [(0, "INVALID_RECORD"), (16, "INVALID_RECORD"), (17, "CORRUPT_BATCH")])
def test_check_batch_refuses_what_is_no_batch(size: int, kind: str) -> None:
    assert refusal(b"\xff" * size) is ErrorKind[kind]


def test_check_batch_refuses_a_base_offset() -> None:
    assert refusal(changed(batch(b"a"), base_offset=1)) is ErrorKind.INVALID_RECORD


def test_check_batch_knows_a_short_message_of_an_old_format() -> None:
    assert refusal(bytes(16) + b"\1" + bytes(9)) is ErrorKind.INVALID_RECORD


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 48])
def test_check_batch_refuses_a_wrong_length(length: int) -> None:
    assert refusal(changed(batch(b"a"), batch_length=length)) is ErrorKind.CORRUPT_BATCH


def test_check_batch_refuses_a_cut_batch() -> None:
    assert refusal(batch(b"abc")[:-1]) is ErrorKind.INVALID_RECORD


def test_check_batch_refuses_two_batches() -> None:
    assert refusal(batch(b"a") + batch(b"b")) is ErrorKind.INVALID_RECORD


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"records_count": 0, "last_offset_delta": -1}, ErrorKind.INVALID_RECORD),
        ({"records_count": -1, "last_offset_delta": -2}, ErrorKind.INVALID_RECORD),
        ({"records_count": 3}, ErrorKind.INVALID_RECORD),
        ({"last_offset_delta": 2**31 - 1}, ErrorKind.INVALID_RECORD),
        ({"attributes": 5}, ErrorKind.UNSUPPORTED_COMPRESSION),
        ({"attributes": CONTROL}, ErrorKind.INVALID_RECORD),
        ({"attributes": TRANSACTIONAL}, ErrorKind.TRANSACTIONS_UNSUPPORTED),
        ({"producer_id": 1, "producer_epoch": -1, "base_sequence": 0}, ErrorKind.INVALID_RECORD),
        ({"producer_id": 1, "producer_epoch": 0, "base_sequence": -1}, ErrorKind.INVALID_RECORD),
    ],
)
def test_check_batch_refuses_fields(fields: Mapping[str, int], kind: ErrorKind) -> None:
    assert refusal(changed(batch(b"a"), **fields)) is kind


def test_check_batch_refuses_more_records_than_there_is_room_for() -> None:
    smallest = encode_batch([(NOW_MS, None, None, [])] * 3)
    assert len(smallest) == HEADER_BYTES + 3 * 7
    assert check_batch(smallest, ROOM).records_count == 3
    assert refusal(changed(smallest, records_count=4, last_offset_delta=3)) is ErrorKind.INVALID_RECORD
    assert refusal(changed(batch(b"a"), records_count=2**31 - 1, last_offset_delta=2**31 - 2)) is (
        ErrorKind.INVALID_RECORD
    )


def test_check_batch_cannot_say_how_many_records_a_compressed_batch_holds() -> None:
    assert check_batch(changed(batch(b"a"), attributes=1, records_count=99, last_offset_delta=98), ROOM)


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
