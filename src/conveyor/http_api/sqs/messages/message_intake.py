"""A message that a client sends, as the record to publish, with the digests that its answer has."""

from dataclasses import dataclass
from typing import TypeAlias

from conveyor.broker.produce.outgoing_message import OutgoingMessage
from conveyor.http_api.sqs.content.attribute_digests import attribute_digest, body_digest
from conveyor.http_api.sqs.content.attribute_rules import TRACE_HEADER, check_attributes, check_system_attributes
from conveyor.http_api.sqs.content.message_text import check_body, check_fifo_id, check_message_bytes, message_bytes
from conveyor.http_api.sqs.messages.fifo_ids import needed_group, stored_dedup_id
from conveyor.http_api.sqs.messages.message_headers import TRACE, headers_of
from conveyor.http_api.sqs.protocols.message_operations import SendMessageBatchRequestEntry, SendMessageRequest
from conveyor.http_api.sqs.queues.queue_attribute_rules import DELAY_SECONDS, MAX_MESSAGE_SIZE
from conveyor.http_api.sqs.queues.queue_names import is_fifo_name
from conveyor.http_api.sqs.queues.stored_queue import attribute_of
from conveyor.http_api.sqs.sqs_errors import invalid_parameter
from conveyor.queues.subscription.policy import Subscription
from conveyor.records.message_attributes import DEDUP_ID, DELAY_MS
from conveyor.records.message_attributes import check_attributes as check_header_values
from conveyor.records.record import Header

SentMembers: TypeAlias = SendMessageRequest | SendMessageBatchRequestEntry

_MAX_DELAY_S = 900


@dataclass(frozen=True, slots=True)
class Intake:
    """A valid message. body_digest, attributes_digest, system_digest: MD5 in hexadecimal; None without attributes."""

    outgoing: OutgoingMessage
    body_digest: str
    attributes_digest: str | None
    system_digest: str | None


def take_in(queue: Subscription, members: SentMembers, trace: str | None = None) -> Intake:
    """Return the record of a message. Raises RequestError, also for an attribute with a meaning to the broker.

    trace: the header `X-Amzn-Trace-Id` of the request, which is the trace of a message without AWSTraceHeader.
    """
    attributes, system = members.message_attributes or {}, members.message_system_attributes or {}
    _check(queue, members)
    headers = headers_of(attributes)
    if TRACE_HEADER in system:
        trace = system[TRACE_HEADER].string_value
    if trace and trace.isascii() and trace.isprintable():
        headers.append((TRACE, trace.encode()))
    check_header_values(headers)
    key = None
    if is_fifo_name(queue.name):
        key, fifo_headers = _fifo(queue, members)
        headers += fifo_headers
    else:
        if members.message_deduplication_id is not None:
            raise _not_of_this_type("MessageDeduplicationId", members.message_deduplication_id)
        key = members.message_group_id.encode() if members.message_group_id else None
    headers += _delay(queue, members.delay_seconds)
    return Intake(
        OutgoingMessage(members.message_body.encode(), key, tuple(headers)),
        body_digest(members.message_body),
        attribute_digest(attributes),
        attribute_digest(system),
    )


def _fifo(queue: Subscription, members: SentMembers) -> tuple[bytes, list[Header]]:
    """Return the key and the headers of a message of a FIFO queue."""
    if members.delay_seconds:
        raise _not_of_this_type(DELAY_SECONDS, str(members.delay_seconds))
    group = needed_group(members.message_group_id)
    dedup_id = stored_dedup_id(queue, group, members.message_deduplication_id, members.message_body)
    return group.encode(), [(DEDUP_ID, dedup_id.encode())]


def _delay(queue: Subscription, seconds: int | None) -> list[Header]:
    if seconds is None or is_fifo_name(queue.name):
        seconds = int(attribute_of(queue, DELAY_SECONDS))
    elif not 0 <= seconds <= _MAX_DELAY_S:
        raise invalid_parameter(
            f"Value {seconds} for parameter DelaySeconds is invalid. Reason: DelaySeconds must be >= 0 and <= 900."
        )
    return [(DELAY_MS, b"%d" % (1000 * seconds))] if seconds else []


def _check(queue: Subscription, members: SentMembers) -> None:
    """Raise SqsError if the texts of a message are not valid, or too long."""
    check_body(members.message_body)
    check_attributes(members.message_attributes)
    check_system_attributes(members.message_system_attributes)
    check_fifo_id(members.message_group_id, "MessageGroupId")
    check_fifo_id(members.message_deduplication_id, "MessageDeduplicationId")
    size = message_bytes(members.message_body, members.message_attributes)
    is_of_batch = isinstance(members, SendMessageBatchRequestEntry)
    check_message_bytes(size, int(attribute_of(queue, MAX_MESSAGE_SIZE)), is_of_batch=is_of_batch)


def _not_of_this_type(name: str, value: str) -> Exception:
    return invalid_parameter(
        f"Value {value[:200]} for parameter {name} is invalid. Reason: The request include parameter that is not valid"
        " for this queue type."
    )
