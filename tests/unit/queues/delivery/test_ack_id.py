"""The ack id, which identifies a lease."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.queues.delivery.ack_id import LeaseId, decode_ack_id, encode_ack_id

MINE = UUID(int=7 << 96)
OTHER = UUID(int=8 << 96)
NAME = LeaseId(3, 1 << 40, 12, 99)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**63 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_ack_id_names_the_lease_again(partition: int, offset: int, incarnation: int, number: int) -> None:
    name = LeaseId(partition, offset, incarnation, number)
    assert decode_ack_id(MINE, encode_ack_id(MINE, name)) == name


def test_ack_id_is_text_that_needs_no_quotes() -> None:
    text = encode_ack_id(MINE, NAME)
    assert len(text) == 64
    assert text.isascii()
    assert text.isalnum()


def test_ack_id_of_another_subscription_is_none() -> None:
    assert decode_ack_id(OTHER, encode_ack_id(MINE, NAME)) is None


@pytest.mark.parametrize("text", ["", "x", "!" * 64, " " * 64, "é" * 64, "\0" * 64, "A" * 63 + "!", "A" * 65])
def test_other_text_is_no_ack_id(text: str) -> None:
    assert decode_ack_id(MINE, text) is None


def test_negative_offset_is_no_ack_id() -> None:
    assert decode_ack_id(MINE, encode_ack_id(MINE, NAME._replace(offset=-1))) is None


@given(st.text(min_size=56, max_size=56))
def test_any_text_is_answered(text: str) -> None:
    decode_ack_id(MINE, text)
