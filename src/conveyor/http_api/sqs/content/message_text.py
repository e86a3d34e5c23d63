"""The texts of a message that a client chooses: permitted characters and sizes. Errors have the words of AWS.

Source: SQS API reference, SendMessage; developer guide, "Amazon SQS message quotas".
"""

import re
from collections.abc import Mapping

from conveyor.http_api.sqs.protocols.sqs_members import MessageAttributeValue
from conveyor.http_api.sqs.sqs_errors import SqsError, SqsErrorKind, invalid_parameter, missing_parameter

MAX_MESSAGE_BYTES = 1024 * 1024
"""The size of a message with its attributes, and of all messages of a batch together."""

_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_CHARACTERS = (
    "Invalid characters found. Valid unicode characters are "
    "#x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF"
)
_FIFO_ID = re.compile(r"[!-~]{1,128}")


def check_body(body: str) -> None:
    """Raise SqsError if a message cannot have this body."""
    if not body:
        raise missing_parameter("MessageBody")
    if not _is_permitted(body):
        raise SqsError(SqsErrorKind.INVALID_MESSAGE_CONTENTS, _CHARACTERS)


def check_text(text: str) -> None:
    """Raise SqsError if the value of an attribute has characters that it cannot have."""
    if not _is_permitted(text):
        raise invalid_parameter(_CHARACTERS)


def message_bytes(body: str, attributes: Mapping[str, MessageAttributeValue] | None) -> int:
    """Return the size of a message: body, and the attributes' names, types and values. System attributes are free."""
    size = _length(body)
    for name, value in (attributes or {}).items():
        size += _length(name) + _length(value.data_type) + _length(value.string_value or "")
        size += len(value.binary_value or b"")
    return size


def check_message_bytes(size: int, maximum: int, *, is_of_batch: bool) -> None:
    """Raise SqsError if a message is too large. maximum: the queue's MaximumMessageSize."""
    if size > maximum:
        reason = "cannot be validated" if is_of_batch else "are invalid"
        raise invalid_parameter(
            f"One or more parameters {reason}. Reason: Message must be shorter than {maximum} bytes."
        )


def check_batch_bytes(size: int) -> None:
    """Raise SqsError if the messages of a batch are too large together. size: the sum of their sizes."""
    if size > MAX_MESSAGE_BYTES:
        raise SqsError(
            SqsErrorKind.BATCH_REQUEST_TOO_LONG,
            f"Batch requests cannot be longer than {MAX_MESSAGE_BYTES} bytes. You have sent {size} bytes.",
        )


def check_fifo_id(text: str | None, parameter: str) -> None:
    """Raise SqsError if a text cannot be this parameter: MessageGroupId, MessageDeduplicationId or so."""
    if text is not None and not _FIFO_ID.fullmatch(text):
        raise invalid_parameter(
            f"Value {text} for parameter {parameter} is invalid. "
            f"Reason: {parameter} can only include alphanumeric and punctuation characters. 1 to 128 in length."
        )


def _is_permitted(text: str) -> bool:
    """Return whether a text has permitted characters only. Most texts are printable ASCII, which is quick to see."""
    return (text.isascii() and text.isprintable()) or _FORBIDDEN.search(text) is None


def _length(text: str) -> int:
    """Return the length in UTF-8. That of ASCII needs no copy."""
    return len(text) if text.isascii() else len(text.encode())
