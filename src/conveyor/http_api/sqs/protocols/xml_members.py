"""Writes the members of an answer as XML, by their plan. Lists and maps are repeated elements, without one around them.

A text keeps its line ends: `&#xD;` is a carriage return. Characters that XML 1.0 cannot contain become U+FFFD.
"""

import re
from binascii import b2a_base64
from typing import Any

from conveyor.http_api.sqs.protocols.member_plan import BlobMember, ListMember, MapMember, MemberKind, StructMember

_SPECIAL = re.compile('[&<>"\r\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]')
_ESCAPED = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\r": "&#xD;"}


def xml_text(text: str) -> str:
    """Return a text as the content of an element."""
    return _SPECIAL.sub(lambda found: _ESCAPED.get(found[0], "\ufffd"), text)


def xml_members(structure: StructMember, value: object) -> str:
    """Return the elements of a structure's members. Those that are None are left out."""
    written = []
    for member in structure.members:
        inner = getattr(value, member.attribute)
        if inner is not None:
            written.append(_element(member.kind, inner, member.query_name))
    return "".join(written)


def xml_structure(structure: StructMember, value: object, name: str) -> str:
    """Return the element of a structure, in its short form if it is empty."""
    members = xml_members(structure, value)
    return f"<{name}>{members}</{name}>" if members else f"<{name}/>"


def _element(kind: MemberKind, value: Any, name: str) -> str:
    if isinstance(kind, ListMember):
        return "".join(_element(kind.item, item, name) for item in value)
    if isinstance(kind, MapMember):
        return "".join(_entry(kind, key, inner, name) for key, inner in value.items())
    if isinstance(kind, StructMember):
        return xml_structure(kind, value, name)
    if isinstance(kind, BlobMember):
        return f"<{name}>{b2a_base64(value, newline=False).decode('ascii')}</{name}>"
    if isinstance(value, bool):
        return f"<{name}>{str(value).lower()}</{name}>"
    return f"<{name}>{xml_text(str(value))}</{name}>"


def _entry(kind: MapMember, key: str, value: Any, name: str) -> str:
    written_key = f"<{kind.key_name}>{xml_text(key)}</{kind.key_name}>"
    return f"<{name}>{written_key}{_element(kind.value, value, 'Value')}</{name}>"
