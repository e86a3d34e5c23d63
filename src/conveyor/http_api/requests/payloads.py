"""Lossless bytes in JSON: UTF-8 as text, other bytes in base64 with an `..._encoding` field."""

import binascii
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.records.record import Header, header_name, shown_name

Encoding: TypeAlias = Literal["base64"]


class Base64(Struct, forbid_unknown_fields=True):
    """A header value that is not UTF-8."""

    base64: str


HeaderValue: TypeAlias = str | Base64 | None
Headers: TypeAlias = dict[str, HeaderValue | list[HeaderValue]]
"""A record's headers by name; a repeated name has a list of values."""


def as_text(value: bytes | None) -> tuple[str | None, Encoding | UnsetType]:
    """Return bytes as text, and the encoding: UNSET for UTF-8, else base64."""
    if value is None:
        return None, UNSET
    try:
        return value.decode(), UNSET
    except UnicodeDecodeError:
        return b64encode(value).decode(), "base64"


def as_bytes(text: str | None, encoding: Encoding | None, field: str) -> bytes | None:
    """Reverse `as_text`. Raises RequestError (INVALID_REQUEST)."""
    if text is None:
        return None
    return text.encode() if encoding is None else _from_base64(text, field)


def show_headers(headers: Iterable[Header]) -> Headers:
    """Return a record's headers as an object, in their order."""
    shown: Headers = {}
    for raw_name, value in headers:
        name = shown_name(raw_name)
        text, encoding = as_text(value)
        shown_value = text if encoding is UNSET or text is None else Base64(base64=text)
        before = shown.get(name, UNSET)
        if before is UNSET:
            shown[name] = shown_value
        elif isinstance(before, list):
            before.append(shown_value)
        else:
            shown[name] = [before, shown_value]
    return shown


def headers_count(headers: Mapping[str, HeaderValue | list[HeaderValue]]) -> int:
    """Return the number of a record's headers: each value is one."""
    return sum([len(values) if isinstance(values, list) else 1 for values in headers.values()])


def read_headers(headers: Mapping[str, HeaderValue | list[HeaderValue]]) -> list[Header]:
    """Reverse `show_headers`; equal names become adjacent. Raises RequestError (INVALID_REQUEST)."""
    return [
        (header_name(name.encode()), _header_bytes(name, value))
        for name, values in headers.items()
        for value in (values if isinstance(values, list) else [values])
    ]


def _header_bytes(name: str, value: HeaderValue) -> bytes | None:
    if isinstance(value, Base64):
        return _from_base64(value.base64, f"headers.{name}.base64")
    return None if value is None else value.encode()


def _from_base64(text: str, field: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RequestError(ErrorKind.INVALID_REQUEST, f"{field} is not base64: {error}") from error
