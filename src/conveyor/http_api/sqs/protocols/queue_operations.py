"""The requests and answers of operations on queues, their attributes, tags and permissions."""

from typing import Annotated

from msgspec import Meta, Struct, field

from conveyor.http_api.sqs.protocols.sqs_members import (
    AttributeNames,
    Int32,
    QueueAttributes,
    QueueUrls,
    Tags,
    wire_name,
)


class AddPermissionRequest(Struct, rename=wire_name, frozen=True, kw_only=True):
    """AddPermission: a statement of the queue's policy."""

    queue_url: str
    label: str
    account_ids: Annotated[list[str], Meta(extra={"name": "AWSAccountId"})] = field(name="AWSAccountIds")
    actions: Annotated[list[str], Meta(extra={"name": "ActionName"})]


class RemovePermissionRequest(Struct, rename=wire_name, frozen=True, kw_only=True):
    """RemovePermission: the statement with this label."""

    queue_url: str
    label: str


class CreateQueueRequest(Struct, rename=wire_name, frozen=True, kw_only=True):
    """CreateQueue."""

    queue_name: str
    attributes: QueueAttributes | None = None
    tags: Tags | None = field(name="tags", default=None)


class CreateQueueResult(Struct, rename=wire_name, frozen=True, kw_only=True):
    """The URL of the queue."""

    queue_url: str


class DeleteQueueRequest(Struct, rename=wire_name, frozen=True, kw_only=True):
    """DeleteQueue."""

    queue_url: str


class GetQueueUrlRequest(Struct, rename=wire_name, frozen=True, kw_only=True):
    """GetQueueUrl. owner: an account of twelve digits."""

    queue_name: str
    owner: str | None = field(name="QueueOwnerAWSAccountId", default=None)


class GetQueueUrlResult(Struct, rename=wire_name, frozen=True, kw_only=True):
    """The URL of the queue."""

    queue_url: str


class ListQueuesRequest(Struct, rename=wire_name, frozen=True, kw_only=True):
    """ListQueues."""

    queue_name_prefix: str | None = None
    next_token: str | None = None
    max_results: Int32 | None = None


class ListQueuesResult(Struct, rename=wire_name, omit_defaults=True, frozen=True, kw_only=True):
    """A page of URLs. next_token: None on the last page."""

    queue_urls: QueueUrls | None = None
    next_token: str | None = None


class ListDeadLetterSourceQueuesRequest(Struct, rename=wire_name, frozen=True, kw_only=True):
    """ListDeadLetterSourceQueues: the queues whose dead letters this queue takes."""

    queue_url: str
    next_token: str | None = None
    max_results: Int32 | None = None


class ListDeadLetterSourceQueuesResult(Struct, rename=wire_name, omit_defaults=True, frozen=True, kw_only=True):
    """A page of URLs. The list's name begins with a small letter, and an empty list is written."""

    queue_urls: QueueUrls = field(name="queueUrls")
    next_token: str | None = None


class GetQueueAttributesRequest(Struct, rename=wire_name, frozen=True, kw_only=True):
    """GetQueueAttributes. attribute_names: `All` for every one."""

    queue_url: str
    attribute_names: AttributeNames | None = None


class GetQueueAttributesResult(Struct, rename=wire_name, omit_defaults=True, frozen=True, kw_only=True):
    """The values by name."""

    attributes: QueueAttributes | None = None


class SetQueueAttributesRequest(Struct, rename=wire_name, frozen=True, kw_only=True):
    """SetQueueAttributes."""

    queue_url: str
    attributes: QueueAttributes


class PurgeQueueRequest(Struct, rename=wire_name, frozen=True, kw_only=True):
    """PurgeQueue."""

    queue_url: str


class TagQueueRequest(Struct, rename=wire_name, frozen=True, kw_only=True):
    """TagQueue."""

    queue_url: str
    tags: Tags


class UntagQueueRequest(Struct, rename=wire_name, frozen=True, kw_only=True):
    """UntagQueue."""

    queue_url: str
    tag_keys: Annotated[list[str], Meta(extra={"name": "TagKey"})]


class ListQueueTagsRequest(Struct, rename=wire_name, frozen=True, kw_only=True):
    """ListQueueTags."""

    queue_url: str


class ListQueueTagsResult(Struct, rename=wire_name, omit_defaults=True, frozen=True, kw_only=True):
    """The tags of the queue."""

    tags: Tags | None = None
