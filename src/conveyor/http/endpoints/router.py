"""Finds the endpoint of a request target: `/topics/{topic}/messages` has two literal segments and a parameter.

A literal segment takes precedence over a parameter, which matches any segment that is not empty. Segments are compared
after percent-decoding, so an encoded slash is part of a segment.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Generic, TypeVar
from urllib.parse import unquote_to_bytes

from conveyor.kernel.errors import ErrorKind, RequestError

Target = TypeVar("Target")
_REMEMBERED = 256
_REMEMBERED_LENGTH = 256
"""Of a query. The values of a longer one may take a hundred times its length, and any client may send it."""
_ORIGIN = re.compile("^https?://[^/?]*", re.IGNORECASE)


class Router(Generic[Target]):
    """The targets by path and method. Paths that differ only in the names of their parameters are one path."""

    def __init__(self, entries: Iterable[tuple[str, str, Target]]) -> None:
        """entries: method, path and target."""
        self.find = lru_cache(_REMEMBERED)(self._find)
        """The result of `_find`, which is shared: most requests repeat the path of an earlier one."""
        self._root: _Node[Target] = _Node()
        for method, path, target in entries:
            node = self._root
            for segment in path.split("/")[1:]:
                if segment.startswith("{"):
                    node.parameter = node.parameter or (_Node())
                    node = node.parameter
                else:
                    node = node.literals.setdefault(segment, _Node())
            node.targets[method] = (target, re.findall(r"{(\w+)}", path))

    def _find(self, path: str, method: str) -> tuple[Target, Mapping[str, str]] | list[str]:
        """Return the target and its parameters, or the methods that the path supports.

        path: as in the request. Raises RequestError (INVALID_REQUEST) if it is not UTF-8.
        """
        segments = path.split("/")
        if "%" in path:
            segments = [_decode(segment, path) for segment in segments]
        values: list[str] = []
        node = self._root.find(segments, 1, values) if not segments[0] else None
        if node is None:
            return []
        found = node.targets.get(method)
        if found is None:
            return sorted(node.targets)
        target, names = found
        return target, dict(zip(names, values, strict=True))


class _Node(Generic[Target]):
    """The paths that begin with the same segments. targets: by method, with the names of the path's parameters."""

    __slots__ = ("literals", "parameter", "targets")

    def __init__(self) -> None:
        self.literals: dict[str, _Node[Target]] = {}
        self.parameter: _Node[Target] | None = None
        self.targets: dict[str, tuple[Target, list[str]]] = {}

    def find(self, segments: list[str], index: int, values: list[str]) -> "_Node[Target] | None":
        """Return the node of the segments from `index` on. Appends the values of parameters."""
        if index == len(segments):
            return self if self.targets else None
        segment = segments[index]
        literal = self.literals.get(segment)
        if literal is not None and (node := literal.find(segments, index + 1, values)) is not None:
            return node
        if self.parameter is None or not segment:
            return None
        count = len(values)
        values.append(segment)
        node = self.parameter.find(segments, index + 1, values)
        if node is None:
            del values[count:]
        return node


def split_target(target: bytes) -> tuple[str, str]:
    """Return the path and the query of a request target. A target may name the scheme and host (RFC 9112, 3.2.2)."""
    text = target.decode("ascii")
    if text[:1] != "/":
        text = _ORIGIN.sub("", text)
        if text[:1] == "?":
            text = f"/{text}"
    path, _, query = text.partition("?")
    return path, query


def parse_query(query: str) -> Mapping[str, list[str]]:
    """Return the values of each parameter, shared. Raises RequestError (INVALID_REQUEST) if one is not UTF-8."""
    return _parse_short(query) if len(query) <= _REMEMBERED_LENGTH else _parse(query)


def _parse(query: str) -> Mapping[str, list[str]]:
    values: dict[str, list[str]] = {}
    for part in query.split("&"):
        if part:
            name, _, value = part.partition("=")
            if "%" in part or "+" in part:
                name, value = _decode(name.replace("+", " "), part), _decode(value.replace("+", " "), part)
            values.setdefault(name, []).append(value)
    return values


_parse_short = lru_cache(_REMEMBERED)(_parse)


def _decode(text: str, part: str) -> str:
    """Decode percent-encoded UTF-8. Raises RequestError (INVALID_REQUEST) for other bytes: if they were replaced,
    different keys would become one. part: the part of the target that the error names.
    """
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError as error:
        detail = f"{part!r} in the request's path or query is not UTF-8"
        raise RequestError(ErrorKind.INVALID_REQUEST, detail) from error
