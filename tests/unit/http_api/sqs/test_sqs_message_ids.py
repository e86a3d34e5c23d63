"""Message ids that can be read again, sequence numbers and receipt handles."""

from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.http_api.sqs.content.sqs_message_ids import (
    MAX_PARTITION,
    check_receipt_handle,
    decode_sqs_message_id,
    encode_sqs_message_id,
    sequence_number,
)
from conveyor.http_api.sqs.sqs_errors import SqsError, SqsErrorKind
from conveyor.queues.delivery.ack_id import LeaseId, encode_ack_id

TOPIC = UUID("0123456789abcdef0123456789abcdef")
PARTITIONS = st.integers(0, MAX_PARTITION)
OFFSETS = st.integers(0, 2**64 - 1)


@given(topic=st.uuids(), partition=PARTITIONS, offset=OFFSETS)
def test_place_is_read_from_the_id(topic: UUID, partition: int, offset: int) -> None:
    text = encode_sqs_message_id(topic, partition, offset)
    assert decode_sqs_message_id(topic, text) == (partition, offset)
    parsed = UUID(text)
    assert (parsed.version, parsed.variant, str(parsed)) == (8, RFC_4122, text)
    other = UUID(int=topic.int ^ 1 << 96)
    assert decode_sqs_message_id(other, text) is None


@given(first=st.tuples(PARTITIONS, OFFSETS), second=st.tuples(PARTITIONS, OFFSETS))
def test_ids_are_distinct(first: tuple[int, int], second: tuple[int, int]) -> None:
    ids = encode_sqs_message_id(TOPIC, *first), encode_sqs_message_id(TOPIC, *second)
    assert (ids[0] == ids[1]) == (first == second)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "0123456789abcdef0123456789abcdef",
        "01234567-0000-4000-8000-000000000000",
        "01234567-0000-8000-0000-000000000000",
        "01234567-0000-8000-8000-00000000000",
        "01234567-0000-8000-8000-000000000000\n",
        "{01234567-0000-8000-8000-000000000000}",
    ],
)
def test_other_texts_are_no_ids(text: str) -> None:
    assert decode_sqs_message_id(TOPIC, text) is None


def test_id_is_as_documented() -> None:
    assert encode_sqs_message_id(TOPIC, 0, 0) == "01234567-0000-8000-8000-000000000000"
    assert encode_sqs_message_id(TOPIC, 0, 42) == "01234567-0000-8000-8000-00000000002a"


def test_sequence_numbers_are_ordered_as_texts() -> None:
    assert sequence_number(7) == "00000000000000000007"
    assert len(sequence_number(2**64 - 1)) == 20


def test_receipt_handle_belongs_to_its_queue() -> None:
    handle = encode_ack_id(TOPIC, LeaseId(1, 2, 3, 4))
    check_receipt_handle(TOPIC, handle)
    for queue, text in ((UUID(int=1), handle), (TOPIC, "garbage"), (TOPIC, ""), (TOPIC, handle + "0")):
        with pytest.raises(SqsError) as caught:
            check_receipt_handle(queue, text)
        assert caught.value.sqs_kind is SqsErrorKind.RECEIPT_HANDLE_IS_INVALID
        assert caught.value.message == f'The input receipt handle "{text}" is not a valid receipt handle.'
