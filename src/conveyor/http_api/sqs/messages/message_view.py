"""A leased message as SQS shows it: body, digests, and the attributes that the request asks for.

A value that is not text for SQS, as another client may publish it, is shown in base64, with the message attribute
`conveyor.encoding`: `base64`.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from conveyor.cluster.image import TopicImage
from conveyor.http_api.sqs.content.attribute_digests import attribute_digest, body_digest
from conveyor.http_api.sqs.content.attribute_rules import TRACE_HEADER
from conveyor.http_api.sqs.content.message_text import check_text
from conveyor.http_api.sqs.content.sqs_message_ids import MAX_PARTITION, encode_sqs_message_id, sequence_number
from conveyor.http_api.sqs.messages.fifo_ids import shown_dedup_id
from conveyor.http_api.sqs.messages.message_headers import TRACE, attributes_of
from conveyor.http_api.sqs.protocols.message_operations import ReceivedMessage
from conveyor.http_api.sqs.protocols.sqs_members import MessageAttributeValue
from conveyor.http_api.sqs.queues.queue_names import ACCOUNT, is_fifo_name, queue_arn
from conveyor.http_api.sqs.sqs_errors import SqsError, SqsErrorKind
from conveyor.queues.messages.dead_copies import LAST_OFFSET
from conveyor.queues.queue_commands import LeasedMessage
from conveyor.queues.subscription.policy import Subscription
from conveyor.records.message import Message
from conveyor.records.message_attributes import (
    DEAD_DELIVERIES,
    DEAD_OFFSET,
    DEAD_PARTITION,
    DEAD_SUBSCRIPTION,
    DEAD_TOPIC,
    DEDUP_ID,
    last_header,
)

ENCODING = "conveyor.encoding"

_ALL = "All"
_MAX_DELIVERIES = 1 << 31
_SYSTEM_NAMES = frozenset(
    (
        TRACE_HEADER, "ApproximateFirstReceiveTimestamp", "ApproximateReceiveCount", "DeadLetterQueueSourceArn",
        "MessageDeduplicationId", "MessageGroupId", "SenderId", "SentTimestamp", "SequenceNumber", _ALL,
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageView:
    """What one request shows of messages. topics: of the cluster, by name. attribute_names: `All`, names, or beginnings
    of names as `order.*`.
    """

    queue: Subscription
    topics: Mapping[str, TopicImage]
    region: str
    system_names: frozenset[str]
    attribute_names: Sequence[str]

    def check(self) -> None:
        """Raise SqsError for a system attribute that no message has."""
        for name in sorted(self.system_names - _SYSTEM_NAMES):
            raise SqsError(SqsErrorKind.INVALID_ATTRIBUTE_NAME, f"Unknown Attribute {name[:100]}.")

    def show_all(self, leases: Sequence[LeasedMessage]) -> list[ReceivedMessage]:
        """Return the documents of leased messages, in a FIFO queue those of each message group together."""
        if is_fifo_name(self.queue.name):
            first = {lease.message.key: index for index, lease in reversed(list(enumerate(leases)))}
            leases = sorted(leases, key=lambda lease: first[lease.message.key])
        return [self.show(lease) for lease in leases]

    def show(self, lease: LeasedMessage) -> ReceivedMessage:
        """Return the document of a leased message."""
        message = lease.message
        body, is_encoded = _body(message.value)
        asked = self._attributes(message, is_encoded=is_encoded) if self.attribute_names else {}
        return ReceivedMessage(
            message_id=self._message_id(message),
            receipt_handle=lease.ack_id,
            md5_of_body=body_digest(body),
            body=body,
            attributes=(self._system_attributes(lease) or None) if self.system_names else None,
            md5_of_attributes=attribute_digest(asked),
            message_attributes=asked or None,
        )

    def _attributes(self, message: Message, *, is_encoded: bool) -> dict[str, MessageAttributeValue]:
        found = attributes_of(message.headers)
        if is_encoded:
            found[ENCODING] = MessageAttributeValue(data_type="String", string_value="base64")
        asked = self.attribute_names
        return {name: value for name, value in found.items() if any(_covers(pattern, name) for pattern in asked)}

    def _system_attributes(self, lease: LeasedMessage) -> dict[str, str]:
        message, is_all = lease.message, _ALL in self.system_names
        found = {
            "SenderId": message.publisher or ACCOUNT,
            "SentTimestamp": str(message.timestamp_ms),
            "ApproximateReceiveCount": str(lease.delivery_count + _deliveries_before(message)),
            "ApproximateFirstReceiveTimestamp": str(lease.first_delivered_ms),
        }
        group = (message.key or b"").decode("utf-8", "replace")
        if group:
            found["MessageGroupId"] = group
        if is_fifo_name(self.queue.name):
            found["SequenceNumber"] = sequence_number(message.offset)
            dedup_id = last_header(message.headers, DEDUP_ID)
            if dedup_id is not None:
                found["MessageDeduplicationId"] = shown_dedup_id(self.queue, group, dedup_id.decode("utf-8", "replace"))
        trace, source = last_header(message.headers, TRACE), last_header(message.headers, DEAD_SUBSCRIPTION)
        if trace is not None:
            found[TRACE_HEADER] = trace.decode("utf-8", "replace")
        if source is not None:
            found["DeadLetterQueueSourceArn"] = queue_arn(self.region, source.decode("utf-8", "replace"))
        return {name: value for name, value in found.items() if is_all or name in self.system_names}

    def _message_id(self, message: Message) -> str:
        """Return the id of a message. A dead letter has that of its original, as long as the topic of that exists."""
        topic = last_header(message.headers, DEAD_TOPIC) if message.headers else None
        image = None if topic is None else self.topics.get(topic.decode("utf-8", "replace"))
        partition, offset = (last_header(message.headers, name) for name in (DEAD_PARTITION, DEAD_OFFSET))
        if image is not None and _is_at_most(MAX_PARTITION, partition) and _is_at_most(LAST_OFFSET, offset):
            return encode_sqs_message_id(image.topic_id, int(partition or b""), int(offset or b""))
        return encode_sqs_message_id(self.queue.topic_id, message.partition, message.offset)


def _deliveries_before(message: Message) -> int:
    """Return how often a dead letter was received in the queue that it comes from."""
    count = last_header(message.headers, DEAD_DELIVERIES) if message.headers else None
    return int(count or b"") if _is_at_most(_MAX_DELIVERIES, count) else 0


def _covers(pattern: str, name: str) -> bool:
    """Return whether a request that names attributes by a pattern asks for one."""
    if pattern in (_ALL, ".*", "*"):
        return True
    return name.startswith(pattern[:-2]) if pattern.endswith(".*") else name == pattern


def _body(value: bytes | None) -> tuple[str, bool]:
    """Return the text of a value, and whether it is in base64."""
    if value is None:
        return "", False
    try:
        text = value.decode()
        check_text(text)
    except (UnicodeDecodeError, SqsError):
        return b64encode(value).decode(), True
    return text, False


def _is_at_most(limit: int, text: bytes | None) -> bool:
    return text is not None and text.isdigit() and len(text) <= 19 and int(text) <= limit
