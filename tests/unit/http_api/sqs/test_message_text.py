"""Bodies, sizes and ids that a message can have, and the words of the errors."""

import pytest

from conveyor.http_api.sqs.content.message_text import (
    MAX_MESSAGE_BYTES,
    check_batch_bytes,
    check_body,
    check_fifo_id,
    check_message_bytes,
    message_bytes,
)
from conveyor.http_api.sqs.protocols.sqs_members import MessageAttributeValue
from conveyor.http_api.sqs.sqs_errors import SqsError, SqsErrorKind


@pytest.mark.parametrize("body", [" ", "\t\n\r", "\u0020\ud7ff\ue000\ufffd\U00010000\U0010ffff", "\x7f\x85"])
def test_permitted_bodies(body: str) -> None:
    check_body(body)


@pytest.mark.parametrize("character", ["\x00", "\x08", "\x0b", "\x0c", "\x0e", "\x1f", "\ud800", "\ufffe", "\uffff"])
def test_forbidden_characters(character: str) -> None:
    with pytest.raises(
        SqsError, match=r"^Invalid characters found\. Valid unicode characters are #x9 \| #xA"
    ) as caught:
        check_body(f"a{character}b")
    assert caught.value.sqs_kind is SqsErrorKind.INVALID_MESSAGE_CONTENTS


def test_body_cannot_be_empty() -> None:
    with pytest.raises(SqsError, match=r"^The request must contain the parameter MessageBody\.$") as caught:
        check_body("")
    assert caught.value.sqs_kind is SqsErrorKind.MISSING_PARAMETER


def test_size_of_a_message_has_its_attributes() -> None:
    attributes = {
        "é": MessageAttributeValue(data_type="String", string_value="ab"),
        "b": MessageAttributeValue(data_type="Binary", binary_value=b"\x00\x01"),
    }
    assert message_bytes("ü", None) == 2
    assert message_bytes("body", attributes) == 4 + (2 + 6 + 2) + (1 + 6 + 2)


def test_message_may_be_as_large_as_the_queue_says() -> None:
    check_message_bytes(1024, 1024, is_of_batch=True)
    with pytest.raises(SqsError, match=r"^One or more parameters are invalid. Reason: Message must be shorter than 10"):
        check_message_bytes(1025, 1024, is_of_batch=False)


def test_size_of_a_batch() -> None:
    check_batch_bytes(MAX_MESSAGE_BYTES)
    expected = "Batch requests cannot be longer than 1048576 bytes. You have sent 1048577 bytes."
    with pytest.raises(SqsError, match=f"^{expected}$") as caught:
        check_batch_bytes(MAX_MESSAGE_BYTES + 1)
    assert caught.value.sqs_kind is SqsErrorKind.BATCH_REQUEST_TOO_LONG


@pytest.mark.parametrize("text", [None, "a", "!~/:", "x" * 128])
def test_permitted_fifo_ids(text: str | None) -> None:
    check_fifo_id(text, "MessageGroupId")


@pytest.mark.parametrize("text", ["", "a b", "é", "x" * 129, "a\n"])
def test_forbidden_fifo_ids(text: str) -> None:
    with pytest.raises(SqsError, match="MessageGroupId can only include alphanumeric and punctuation characters"):
        check_fifo_id(text, "MessageGroupId")
