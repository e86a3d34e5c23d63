"""Message attributes as the headers of a record, so that every other client sees plain headers.

    "total": {"DataType": "Number", "StringValue": "12"}     is the header    total: 12

The types are in one header more, `sqs.types`, a JSON object: `{"total": "Number"}`. An attribute that it does not list
is a String; a header of another client whose value is no text is a Binary. Headers that begin with `conveyor-` or
`sqs.` are the broker's and this door's own: they are shown as attributes only if `sqs.types` lists them, because a
client has sent them so.
"""

from collections.abc import Iterable, Mapping

import msgspec

from conveyor.http_api.sqs.protocols.sqs_members import MessageAttributeValue
from conveyor.records.message_attributes import PREFIX, last_header
from conveyor.records.record import Header, header_name, shown_name

TYPES = "sqs.types"
TRACE = "sqs.trace"
"""The system attribute AWSTraceHeader."""

_OWN = (PREFIX, "sqs.")
_STRING, _BINARY = "String", "Binary"


def headers_of(attributes: Mapping[str, MessageAttributeValue]) -> list[Header]:
    """Return the headers of message attributes, which are valid."""
    headers: list[Header] = []
    types: dict[str, str] = {}
    for name, value in attributes.items():
        data_type = value.data_type
        content = value.binary_value if value.binary_value is not None else (value.string_value or "").encode()
        headers.append((header_name(name.encode()), content))
        if data_type != _STRING or name.startswith(_OWN):
            types[name] = data_type
    if types:
        headers.append((TYPES, msgspec.json.encode(types)))
    return headers


def attributes_of(headers: Iterable[Header]) -> dict[str, MessageAttributeValue]:
    """Return the message attributes of a record's headers. Of a repeated name the last header counts."""
    headers = list(headers)
    types = _types_of(headers)
    values = {shown_name(name): value for name, value in headers}
    return {
        name: _attribute(value, types.get(name))
        for name, value in values.items()
        if value and (name in types or not name.startswith(_OWN))
    }


def _types_of(headers: list[Header]) -> Mapping[str, str]:
    try:
        return msgspec.json.decode(last_header(headers, TYPES) or b"{}", type=dict[str, str])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}


def _attribute(value: bytes, data_type: str | None) -> MessageAttributeValue:
    if data_type is None or not data_type.startswith(_BINARY):
        try:
            return MessageAttributeValue(data_type=data_type or _STRING, string_value=value.decode())
        except UnicodeDecodeError:
            data_type = _BINARY
    return MessageAttributeValue(data_type=data_type, binary_value=value)
