"""The types of members that requests and answers share, with their names in the query protocol.

AWS JSON writes `"Attributes": {"DelaySeconds": "5"}`, the query protocol `Attribute.1.Name=DelaySeconds` and
`Attribute.1.Value=5`: lists and maps are numbered under a name in the singular, which a type carries as `extra`.
"""

from typing import Annotated

from msgspec import Meta, Struct

Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]


def wire_name(field: str) -> str:
    """Return the name of a member: `queue_url` is `QueueUrl`."""
    return "".join(word[:1].upper() + word[1:] for word in field.split("_"))


class MessageAttributeValue(Struct, rename=wire_name, omit_defaults=True, frozen=True, kw_only=True):
    """The value of a message attribute. data_type: `String`, `Number` or `Binary`, perhaps with a label: `Number.int`.

    SQS has reserved the lists, and refuses them.
    """

    data_type: str = ""
    string_value: str | None = None
    binary_value: bytes | None = None
    string_list_values: Annotated[list[str], Meta(extra={"name": "StringListValue"})] | None = None
    binary_list_values: Annotated[list[bytes], Meta(extra={"name": "BinaryListValue"})] | None = None


class BatchResultErrorEntry(Struct, rename=wire_name, omit_defaults=True, frozen=True, kw_only=True):
    """An entry of a batch that failed. code: as in `x-amzn-query-error`."""

    id: str
    sender_fault: bool
    code: str
    message: str | None = None


QueueAttributes = Annotated[dict[str, str], Meta(extra={"name": "Attribute", "key": "Name"})]
Tags = Annotated[dict[str, str], Meta(extra={"name": "Tag", "key": "Key"})]
AttributeNames = Annotated[list[str], Meta(extra={"name": "AttributeName"})]
QueueUrls = Annotated[list[str], Meta(extra={"name": "QueueUrl"})]
MessageAttributes = Annotated[dict[str, MessageAttributeValue], Meta(extra={"name": "MessageAttribute", "key": "Name"})]
MessageSystemAttributes = Annotated[
    dict[str, MessageAttributeValue], Meta(extra={"name": "MessageSystemAttribute", "key": "Name"})
]
FailedEntries = Annotated[list[BatchResultErrorEntry], Meta(extra={"name": "BatchResultErrorEntry"})]
