"""The requests and answers of operations on messages: to send, receive, delete and change their visibility."""

from typing import Annotated

from msgspec import Meta, Struct, field

from conveyor.http_api.sqs.protocols.sqs_members import (
    AttributeNames,
    FailedEntries,
    Int32,
    MessageAttributes,
    MessageSystemAttributes,
    QueueAttributes,
    wire_name,
)


class MessageToSend(Struct, rename=wire_name, frozen=True, kw_only=True):
    """The members that SendMessage and an entry of SendMessageBatch have in common."""

    message_body: str
    delay_seconds: Int32 | None = None
    message_attributes: MessageAttributes | None = None
    message_system_attributes: MessageSystemAttributes | None = None
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class SendMessageRequest(MessageToSend, rename=wire_name, frozen=True, kw_only=True):
    """SendMessage."""

    queue_url: str


class SentMessage(Struct, rename=wire_name, omit_defaults=True, frozen=True, kw_only=True):
    """The members that the answers to SendMessage and of an entry of SendMessageBatch have in common.

    md5_...: digests in hexadecimal. sequence_number: of FIFO queues.
    """

    message_id: str
    md5_of_body: str = field(name="MD5OfMessageBody")
    md5_of_attributes: str | None = field(name="MD5OfMessageAttributes", default=None)
    md5_of_system_attributes: str | None = field(name="MD5OfMessageSystemAttributes", default=None)
    sequence_number: str | None = None


class SendMessageResult(SentMessage, rename=wire_name, omit_defaults=True, frozen=True, kw_only=True):
    """The message that was sent."""


class SendMessageBatchRequestEntry(MessageToSend, rename=wire_name, frozen=True, kw_only=True):
    """One message of a batch."""

    id: str


class SendMessageBatchRequest(Struct, rename=wire_name, frozen=True, kw_only=True):
    """SendMessageBatch."""

    queue_url: str
    entries: Annotated[list[SendMessageBatchRequestEntry], Meta(extra={"name": "SendMessageBatchRequestEntry"})]


class SendMessageBatchResultEntry(SentMessage, rename=wire_name, omit_defaults=True, frozen=True, kw_only=True):
    """One message of a batch that was sent."""

    id: str


class SendMessageBatchResult(Struct, rename=wire_name, omit_defaults=True, frozen=True, kw_only=True):
    """The entries of a batch."""

    successful: (
        Annotated[list[SendMessageBatchResultEntry], Meta(extra={"name": "SendMessageBatchResultEntry"})] | None
    ) = None
    failed: FailedEntries | None = None


class ReceiveMessageRequest(Struct, rename=wire_name, frozen=True, kw_only=True):
    """ReceiveMessage. attribute_names: the older name of message_system_attribute_names."""

    queue_url: str
    attribute_names: AttributeNames | None = None
    message_system_attribute_names: Annotated[list[str], Meta(extra={"name": "MessageSystemAttributeName"})] | None = (
        None
    )
    message_attribute_names: Annotated[list[str], Meta(extra={"name": "MessageAttributeName"})] | None = None
    max_number_of_messages: Int32 | None = None
    visibility_timeout: Int32 | None = None
    wait_time_seconds: Int32 | None = None
    receive_request_attempt_id: str | None = None


class ReceivedMessage(Struct, rename=wire_name, omit_defaults=True, frozen=True, kw_only=True):
    """A message with the receipt handle of this delivery. attributes: those of the system."""

    message_id: str
    receipt_handle: str
    md5_of_body: str = field(name="MD5OfBody")
    body: str
    attributes: QueueAttributes | None = None
    md5_of_attributes: str | None = field(name="MD5OfMessageAttributes", default=None)
    message_attributes: MessageAttributes | None = None


class ReceiveMessageResult(Struct, rename=wire_name, omit_defaults=True, frozen=True, kw_only=True):
    """The messages, ten at most."""

    messages: Annotated[list[ReceivedMessage], Meta(extra={"name": "Message"})] | None = None


class DeleteMessageRequest(Struct, rename=wire_name, frozen=True, kw_only=True):
    """DeleteMessage."""

    queue_url: str
    receipt_handle: str


class DeleteMessageBatchRequestEntry(Struct, rename=wire_name, frozen=True, kw_only=True):
    """One message to delete."""

    id: str
    receipt_handle: str


class DeleteMessageBatchRequest(Struct, rename=wire_name, frozen=True, kw_only=True):
    """DeleteMessageBatch."""

    queue_url: str
    entries: Annotated[list[DeleteMessageBatchRequestEntry], Meta(extra={"name": "DeleteMessageBatchRequestEntry"})]


class DeleteMessageBatchResultEntry(Struct, rename=wire_name, frozen=True, kw_only=True):
    """A message that was deleted."""

    id: str


class DeleteMessageBatchResult(Struct, rename=wire_name, omit_defaults=True, frozen=True, kw_only=True):
    """The entries of a batch."""

    successful: (
        Annotated[list[DeleteMessageBatchResultEntry], Meta(extra={"name": "DeleteMessageBatchResultEntry"})] | None
    ) = None
    failed: FailedEntries | None = None


class ChangeMessageVisibilityRequest(Struct, rename=wire_name, frozen=True, kw_only=True):
    """ChangeMessageVisibility. visibility_timeout: in seconds from now; 0 makes the message visible."""

    queue_url: str
    receipt_handle: str
    visibility_timeout: Int32


class ChangeMessageVisibilityBatchRequestEntry(Struct, rename=wire_name, frozen=True, kw_only=True):
    """One message whose visibility timeout changes."""

    id: str
    receipt_handle: str
    visibility_timeout: Int32 | None = None


class ChangeMessageVisibilityBatchRequest(Struct, rename=wire_name, frozen=True, kw_only=True):
    """ChangeMessageVisibilityBatch."""

    queue_url: str
    entries: Annotated[
        list[ChangeMessageVisibilityBatchRequestEntry],
        Meta(extra={"name": "ChangeMessageVisibilityBatchRequestEntry"}),
    ]


class ChangeMessageVisibilityBatchResultEntry(Struct, rename=wire_name, frozen=True, kw_only=True):
    """A message whose visibility timeout was changed."""

    id: str


class ChangeMessageVisibilityBatchResult(Struct, rename=wire_name, omit_defaults=True, frozen=True, kw_only=True):
    """The entries of a batch."""

    successful: (
        Annotated[
            list[ChangeMessageVisibilityBatchResultEntry],
            Meta(extra={"name": "ChangeMessageVisibilityBatchResultEntry"}),
        ]
        | None
    ) = None
    failed: FailedEntries | None = None
