"""The functions that create a checked batch: their refusals, and at most one CRC check."""

from collections.abc import Mapping

import pytest

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.records import compression
from conveyor.records.batch import (
    CONTROL,
    CRC_START,
    HEADER_BYTES,
    MAGIC_END,
    TRANSACTIONAL,
    batch_is_intact,
    read_header,
)
from conveyor.records.checked_batch import check_batch, check_size, own_batch, rebuild_checked
from conveyor.records.record import encode_batch
from tests.unit.log.logs import NOW_MS, batch, idempotent_batch
from tests.unit.records.test_batch import changed

ROOM = 1 << 20


def refusal(content: bytes, max_bytes: int = ROOM) -> ErrorKind:
    with pytest.raises(RequestError) as refused:
        check_batch(content, max_bytes)
    return refused.value.kind


def test_check_batch_returns_the_header() -> None:
    header = check_batch(idempotent_batch(4, b"a", b"b"), ROOM).header
    assert (header.records_count, header.last_offset_delta, header.base_sequence, header.producer_id) == (2, 1, 4, 7)
    assert header.max_timestamp == NOW_MS


def test_check_batch_takes_a_view() -> None:
    assert check_batch(memoryview(batch(b"a")), ROOM).header.records_count == 1


def test_check_batch_takes_just_the_largest_size() -> None:
    content = batch(b"a")
    assert check_batch(content, len(content)).header.size == len(content)
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
        ({"attributes": TRANSACTIONAL}, ErrorKind.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ({"producer_id": 1, "producer_epoch": -1, "base_sequence": 0}, ErrorKind.INVALID_RECORD),
        ({"producer_id": 1, "producer_epoch": 0, "base_sequence": -1}, ErrorKind.INVALID_RECORD),
    ],
)
def test_check_batch_refuses_fields(fields: Mapping[str, int], kind: ErrorKind) -> None:
    assert refusal(changed(batch(b"a"), **fields)) is kind


def test_check_batch_refuses_more_records_than_there_is_room_for() -> None:
    smallest = encode_batch([(NOW_MS, None, None, [])] * 3)
    assert len(smallest) == HEADER_BYTES + 3 * 7
    assert check_batch(smallest, ROOM).header.records_count == 3
    assert refusal(changed(smallest, records_count=4, last_offset_delta=3)) is ErrorKind.INVALID_RECORD
    assert refusal(changed(batch(b"a"), records_count=2**31 - 1, last_offset_delta=2**31 - 2)) is (
        ErrorKind.INVALID_RECORD
    )


def test_check_batch_cannot_say_how_many_records_a_compressed_batch_holds() -> None:
    content = changed(batch(b"a"), attributes=1, records_count=99, last_offset_delta=98)
    assert check_batch(content, ROOM).header.records_count == 99


def test_rebuilt_batch_is_sealed_and_may_have_gaps() -> None:
    checked = check_batch(batch(b"a", b"b", b"c"), ROOM)
    packed = checked.content[HEADER_BYTES:][: (checked.header.size - HEADER_BYTES) // 3]
    rebuilt = rebuild_checked(checked.header._replace(records_count=1), packed, ROOM)
    assert batch_is_intact(rebuilt.content)
    assert rebuilt.header == read_header(rebuilt.content)
    assert (rebuilt.header.records_count, rebuilt.header.last_offset_delta) == (1, 2)


def test_rebuilt_batch_may_have_no_records_left() -> None:
    header = check_batch(batch(b"a", b"b"), ROOM).header._replace(records_count=0)
    assert batch_is_intact(rebuild_checked(header, b"", ROOM).content)


@pytest.mark.parametrize(("max_bytes", "kind"), [(ROOM, "INVALID_RECORD"), (60, "MESSAGE_TOO_LARGE")])
def test_rebuilt_batch_is_refused_if_it_is_too_large_or_cannot_hold_its_records(max_bytes: int, kind: str) -> None:
    header = read_header(encode_batch([(NOW_MS, None, b"", ())] * 9, codec=compression.ZSTD))
    with pytest.raises(RequestError) as refused:
        rebuild_checked(header._replace(attributes=compression.NONE), bytes(7), max_bytes)
    assert refused.value.kind is ErrorKind[kind]


def test_own_batch_may_be_a_control_batch_of_any_size() -> None:
    content = encode_batch([(NOW_MS, b"k", bytes(100), ())], attributes=CONTROL)
    own = own_batch(content)
    assert (own.content, own.header) == (content, read_header(content))
    assert check_size(own, len(content)) is own
    with pytest.raises(RequestError) as refused:
        check_size(own, len(content) - 1)
    assert refused.value.kind is ErrorKind.MESSAGE_TOO_LARGE
