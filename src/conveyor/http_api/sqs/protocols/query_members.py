"""Reads the members of a request from a form's tree, by their plan: the values that AWS JSON would have.

Lists and maps are numbered. One without a number, as in `AttributeName=All`, has one item. Where the query protocol has
had several names for a member, its name in AWS JSON is one of them: `Tags.1.Key` beside `Tag.1.Key`.
"""

import re
from typing import Any

from conveyor.http_api.sqs.protocols.form_tree import Tree
from conveyor.http_api.sqs.protocols.member_errors import malformed
from conveyor.http_api.sqs.protocols.member_plan import (
    ListMember,
    MapMember,
    MemberKind,
    NumberMember,
    StructMember,
)
from conveyor.http_api.sqs.sqs_errors import invalid_parameter

_NUMBER = re.compile(r"-?[0-9]{1,18}")
_MAX_DIGITS = 10
"""Of a position in a list."""
_NO_VALUE = "Start of structure or map found where not expected."


def read_members(structure: StructMember, tree: Tree) -> dict[str, Any]:
    """Return the members that a tree has, by their names in AWS JSON. Raises SqsError."""
    found: dict[str, Any] = {}
    for member in structure.members:
        node = tree.get(member.query_name, tree.get(member.wire_name))
        if node is not None:
            found[member.wire_name] = _value(member.kind, node, member.query_name)
    return found


def _value(kind: MemberKind, node: Tree | str, name: str) -> Any:
    if isinstance(kind, ListMember):
        return [_value(kind.item, item, name) for item in _items(node)]
    if isinstance(kind, MapMember):
        return _map(kind, node, name)
    if isinstance(kind, StructMember):
        if isinstance(node, str):
            raise malformed(f"The parameter {name} needs members, such as {name}.1.{kind.members[0].wire_name}")
        return read_members(kind, node)
    if not isinstance(node, str):
        raise malformed(_NO_VALUE)
    return _number(node, name) if isinstance(kind, NumberMember) else node


def _items(node: Tree | str) -> list[Tree | str]:
    """Return the items of a list in the order of their numbers. An empty text is an empty list."""
    if isinstance(node, str):
        return [node] if node else []
    if not all(key.isascii() and key.isdigit() and len(key) <= _MAX_DIGITS for key in node):
        return [node]
    return [node[key] for key in sorted(node, key=int)]


def _map(kind: MapMember, node: Tree | str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for item in _items(node):
        key = item.get(kind.key_name) if isinstance(item, dict) else None
        if not isinstance(key, str) or isinstance(item, str):
            raise malformed(f"An item of {name} needs {kind.key_name} and Value")
        if key in found:
            raise invalid_parameter(f"Value {key} for parameter {name} is invalid. Reason: It occurs twice.")
        found[key] = _value(kind.value, item.get("Value", ""), name)
    return found


def _number(text: str, name: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise invalid_parameter(f"Value {text} for parameter {name} is invalid. Reason: Must be an integer.")
    return int(text)
