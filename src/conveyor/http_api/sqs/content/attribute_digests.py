"""The MD5 digests by which a client checks that its message arrived unchanged. They protect against no attacker.

    for each attribute, ordered by name:
        length of the name        uint32    name          UTF-8
        length of the data type   uint32    data type     UTF-8
        transport type            uint8     1 for a text, 2 for bytes
        length of the value       uint32    value         UTF-8, or bytes

Source: SQS developer guide, "Calculating the MD5 message digest for message attributes".
"""

from collections.abc import Mapping
from hashlib import md5
from struct import Struct

from conveyor.http_api.sqs.protocols.sqs_members import MessageAttributeValue

_LENGTH = Struct(">I")
_TEXT, _BYTES = b"\x01", b"\x02"


def body_digest(body: str) -> str:
    """Return the digest of a message's body, in hexadecimal."""
    return md5(body.encode(), usedforsecurity=False).hexdigest()


def attribute_digest(attributes: Mapping[str, MessageAttributeValue] | None) -> str | None:
    """Return the digest of attributes, in hexadecimal, or None if there are none. Serves system attributes as well."""
    if not attributes:
        return None
    digest = md5(usedforsecurity=False)
    for name in sorted(attributes):
        value = attributes[name]
        digest.update(_sized(name.encode()) + _sized(value.data_type.encode()))
        if value.binary_value is not None:
            digest.update(_BYTES + _sized(value.binary_value))
        else:
            digest.update(_TEXT + _sized((value.string_value or "").encode()))
    return digest.hexdigest()


def _sized(field: bytes) -> bytes:
    return _LENGTH.pack(len(field)) + field
