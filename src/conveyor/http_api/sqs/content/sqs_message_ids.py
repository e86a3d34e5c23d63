"""The ids that SQS shows of a message: its id, its sequence number, and the receipt handle of a delivery.

A message id is a UUID of version 8 (RFC 9562), from which the place of the message can be read again. Its 122 bits are

    tag of the topic   32 bits    the first of its id
    partition          26 bits
    offset             64 bits

A receipt handle is the ack id of a lease (`conveyor.queues.delivery.ack_id`), which names its subscription.
"""

import re
from uuid import UUID

from conveyor.http_api.sqs.sqs_errors import SqsError, SqsErrorKind
from conveyor.queues.delivery.ack_id import decode_ack_id

MAX_PARTITION = 2**26 - 1

_CANONICAL = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_VERSION, _VARIANT = 8 << 76, 2 << 62
_TAG_SHIFT, _PARTITION_SHIFT = 90, 64


def encode_sqs_message_id(topic: UUID, partition: int, offset: int) -> str:
    """Return the id of a message. topic: the topic's id."""
    assert 0 <= partition <= MAX_PARTITION
    assert 0 <= offset < 2**64
    bits = topic.int >> 96 << _TAG_SHIFT | partition << _PARTITION_SHIFT | offset
    upper, middle, lower = bits >> 74, bits >> 62 & 0xFFF, bits & 2**62 - 1
    digits = f"{upper << 80 | _VERSION | middle << 64 | _VARIANT | lower:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def decode_sqs_message_id(topic: UUID, text: str) -> tuple[int, int] | None:
    """Return the partition and the offset of a message, or None if the text is no id of a message of this topic."""
    if not _CANONICAL.fullmatch(text):
        return None
    value = int(text.replace("-", ""), 16)
    bits = value >> 80 << 74 | (value >> 64 & 0xFFF) << 62 | value & 2**62 - 1
    place = bits >> _PARTITION_SHIFT & MAX_PARTITION, bits & 2**64 - 1
    return place if bits >> _TAG_SHIFT == topic.int >> 96 else None


def sequence_number(offset: int) -> str:
    """Return the sequence number of a message in a FIFO queue: 20 digits, so that texts are ordered as numbers are."""
    return f"{offset:020}"


def check_receipt_handle(subscription: UUID, handle: str) -> None:
    """Raise SqsError if a text is no receipt handle of this queue. subscription: its id."""
    if decode_ack_id(subscription, handle) is None:
        raise SqsError(
            SqsErrorKind.RECEIPT_HANDLE_IS_INVALID,
            f'The input receipt handle "{handle}" is not a valid receipt handle.',
        )
