"""Resolves the ids by which clients identify messages: the ack id of a lease, the id of the message, or its position in
a list of scheduled messages.
"""

import re
from typing import NamedTuple

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.delivery.ack_id import decode_ack_id
from conveyor.queues.queue_commands import Target
from conveyor.queues.subscription.policy import Subscription
from conveyor.records.message import is_message_id, parse_message_id


def find_target(subscription: Subscription, text: str, partition_count: int) -> tuple[int, Target] | RequestError:
    """Return the partition and the target of an ack id or a message id, or the error to answer with."""
    lease_id = decode_ack_id(subscription.id, text)
    if lease_id is not None and lease_id.partition < partition_count:
        return lease_id.partition, Target(lease_id.offset, (lease_id.incarnation, lease_id.number))
    if not is_message_id(text):
        return RequestError(
            ErrorKind.INVALID_ACK_ID,
            f"'{text[:60]}' is neither an ack_id of subscription '{subscription.name}' nor a message_id",
        )
    number, offset = parse_message_id(text)
    if number < partition_count:
        return number, Target(offset)
    return RequestError(ErrorKind.UNKNOWN_MESSAGE, f"there is no message '{text}': no such partition")


def parse_place(message_id: str) -> tuple[int, int]:
    """Return the partition and the offset of a message id. Raises RequestError (UNKNOWN_MESSAGE)."""
    if not is_message_id(message_id):
        raise RequestError(
            ErrorKind.UNKNOWN_MESSAGE,
            f"'{message_id[:60]}' is not a message_id, which has the form <partition>-<offset>",
        )
    return parse_message_id(message_id)


def check_number(number: int, partition_count: int, topic: str) -> None:
    """Raise RequestError (UNKNOWN_MESSAGE) if a topic has no such partition."""
    if number >= partition_count:
        raise RequestError(ErrorKind.UNKNOWN_MESSAGE, f"topic '{topic}' has no partition {number}")


_POSITION = re.compile(r"(\d{1,18})-(\d{1,9})-(\d{1,18})", re.ASCII)


class Position(NamedTuple):
    """A position in a list of messages that is sorted by due time, partition and offset: behind this message."""

    due_ms: int
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.due_ms}-{self.partition}-{self.offset}"

    def in_partition(self, number: int, now_ms: int) -> tuple[int, int]:
        """Return the due time and the offset behind which the messages of a partition are that are due after now."""
        if self.due_ms <= now_ms:
            return now_ms + 1, -1
        if self.partition == number:
            return self.due_ms, self.offset
        return (self.due_ms, -1) if self.partition < number else (self.due_ms + 1, -1)


def parse_position(text: str | None) -> Position:
    """Return the position that `str` has written; the first one for None. Raises RequestError (INVALID_REQUEST)."""
    if text is None:
        return Position(0, 0, 0)
    parts = _POSITION.fullmatch(text)
    if parts is None:
        raise RequestError(ErrorKind.INVALID_REQUEST, f"'{text[:60]}' is not the 'next' of a page")
    return Position(*map(int, parts.groups()))
