"""Resolves the ids by which clients identify messages: the ack id of a lease, or the id of the message."""

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
