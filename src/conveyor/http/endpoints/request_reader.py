"""Reads the query and the body of a request into the types that an endpoint declares."""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from json import JSONDecoder
from typing import Any, get_origin, get_type_hints

import msgspec

from conveyor.http.endpoints.endpoint import LONG_BODY_BYTES, AnyQuery
from conveyor.http.endpoints.fields import decode_field, decoder
from conveyor.http.endpoints.type_errors import explain
from conveyor.kernel.errors import ErrorKind, RequestError

_MAX_BARE_BYTES = 256 << 10
_MAX_VALUES = 90_000
"""Limits of a long body: of its bytes besides texts and white space, and of its texts and commas."""
_MAX_EXPONENTS = 100
"""Limit of a body's numbers with an exponent, some of which take 16 us each."""
_MAX_QUOTED = 64
"""Characters of a name that an error quotes."""

QueryValues = Mapping[str, list[str]]


def query_reader(kind: type[msgspec.Struct]) -> Callable[[QueryValues], Any]:
    """Return a function that parses query parameters into a struct and raises RequestError (INVALID_REQUEST)."""
    if kind is AnyQuery:
        return AnyQuery
    hints = get_type_hints(kind)
    fields = {field.encode_name: field.name for field in msgspec.structs.fields(kind)}
    lists = {name: get_origin(hints[field]) is list for name, field in fields.items()}

    defaults = kind()

    def read(given: QueryValues) -> Any:
        if not given:
            return defaults
        values = {name: _parameter(lists, name, values) for name, values in given.items()}
        try:
            made = msgspec.convert(values, kind, strict=False, dec_hook=decode_field)
        except msgspec.ValidationError as error:
            what, where = explain(kind, error)
            name = re.findall(r"\w+", where)[0]
            raise _wrong(f"query parameter '{name}': {what}") from error
        for name in values:
            if getattr(made, fields[name]) is None:
                raise _wrong(f"query parameter '{name}' is null: leave it out instead")
        return made

    return read


def body_parser(kind: Any) -> Callable[[bytes], Any]:
    """Return a function that parses a body into an endpoint's type and raises RequestError (INVALID_REQUEST)."""
    if kind is bytes:
        return bytes
    decode = decoder(kind).decode

    def parse(body: bytes) -> Any:
        if len(body) > LONG_BODY_BYTES or body.count(b"e") + body.count(b"E") > _MAX_EXPONENTS:
            _check_work(body)
        try:
            decoded = decode(body or b"{}")
            if body:
                _check_names(body.decode())
        except msgspec.ValidationError as error:
            what, where = explain(kind, error)
            raise _wrong(f"in the request's body: {what} - at {where}".removesuffix(" - at ")) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _wrong(f"the request's body is not JSON: {error}") from error
        except RecursionError as error:
            raise _wrong("the request's body is nested too deeply") from error
        return decoded

    return parse


def _parameter(lists: Mapping[str, bool], name: str, values: list[str]) -> str | list[str]:
    if name not in lists:
        accepted = f"use one of {', '.join(sorted(lists))}" if lists else "this request takes none"
        raise _wrong(f"unknown query parameter '{name}': {accepted}")
    if lists[name]:
        return values
    if len(values) > 1:
        raise _wrong(f"query parameter '{name}' is given {len(values)} times: give it once")
    return values[0]


def _check_work(body: bytes) -> None:
    """Refuse a body whose decoding takes long: it is done at once, before it is known what the client may do.

    Raises RequestError.
    """
    pieces = body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
    bare = b"".join(pieces[::2]).translate(None, b" \t\r\n")
    values = len(pieces) // 2 + bare.count(b",")
    exponents = bare.count(b"e") + bare.count(b"E") - bare.count(b"true") - bare.count(b"false")
    if len(bare) > _MAX_BARE_BYTES or values > _MAX_VALUES or exponents > _MAX_EXPONENTS:
        raise _wrong(
            f"the request's body has more than {_MAX_VALUES} names and values, {_MAX_BARE_BYTES} bytes besides texts,"
            f" or {_MAX_EXPONENTS} numbers with an exponent: send it in several requests"
        )


def _check_object(members: list[tuple[str, Any]]) -> None:
    """Refuse an object that gives a name twice: msgspec would take the last value. Raises RequestError."""
    if len(dict(members)) < len(members):
        name = Counter(name for name, _ in members).most_common(1)[0][0]
        raise _wrong(f"in the request's body: the name {name[:_MAX_QUOTED]!r} is given more than once in an object")


_check_names = JSONDecoder(object_pairs_hook=_check_object, parse_int=str, parse_float=str, strict=False).decode
"""Check all objects of a document that msgspec has decoded."""


def _wrong(detail: str) -> RequestError:
    return RequestError(ErrorKind.INVALID_REQUEST, detail)
