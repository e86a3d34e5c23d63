"""A form as a tree: `Attribute.1.Name=DelaySeconds` is `{"Attribute": {"1": {"Name": "DelaySeconds"}}}`.

Numbers in names are keys, not positions, so that `.1000000000` costs no more than `.1`.
"""

import re
from binascii import a2b_qp

from conveyor.http_api.sqs.protocols.member_errors import malformed

Tree = dict[str, "Tree | str"]

_MAX_FIELDS = 2_000
"""A batch of ten messages with ten attributes each, in three fields, and the members of a message, are about 400."""
_MAX_DEPTH = 8
_PRINTABLE = bytes(range(0x20, 0x7F))
_INCOMPLETE = re.compile(rb"%(?![0-9A-Fa-f]{2})")


def parse_form(form: bytes) -> Tree:
    """Parse a form, `application/x-www-form-urlencoded`. Raises SqsError if it is none, or repeats a name."""
    if form.translate(None, _PRINTABLE) or _INCOMPLETE.search(form) or form.count(b"&") >= _MAX_FIELDS:
        raise malformed(f"The body has to be an URL-encoded form of {_MAX_FIELDS} fields at most")
    tree: Tree = {}
    for field in form.split(b"&"):
        name, _, value = field.partition(b"=")
        if name:
            _insert(tree, _decoded(name), _decoded(value))
    return tree


def _decoded(text: bytes) -> str:
    """Decode a name or a value.

    Its escapes become those of quoted-printable text, which C decodes. `urllib` would hold up the event loop for half a
    second for a message of 1 MiB.
    """
    if b"%" in text:
        text = a2b_qp(text.replace(b"+", b" ").replace(b"=", b"=3D").replace(b"%", b"="))
    else:
        text = text.replace(b"+", b" ")
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise malformed("The form is not UTF-8") from error


def _insert(tree: Tree, name: str, value: str) -> None:
    *path, last = name.split(".", _MAX_DEPTH)
    node = tree
    for part in path:
        below = node.setdefault(part, {})
        if isinstance(below, str):
            raise malformed(f"The parameter {name} belongs to one that has a value of its own")
        node = below
    if last in node or len(path) == _MAX_DEPTH:
        raise malformed(f"The parameter {name} occurs twice, or has more than {_MAX_DEPTH} parts")
    node[last] = value
