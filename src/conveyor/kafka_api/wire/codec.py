"""Decodes requests and encodes responses of every version with kio. Schemas are loaded on first use.

A response is a plain dict of kio's field names, so no API depends on the classes that kio has for each version. The
encoder ignores fields that the version does not have, and gives missing fields the schema's defaults.
"""

import io
import struct
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import timedelta
from functools import cache
from typing import Any, cast, get_args, get_origin

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.request_header.v1.header import RequestHeader as UntaggedHeader
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError

from conveyor.kafka_api.wire.skim import (
    Room,
    Skim,
    TooManyItems,
    skimmer,
    skip_tags,
    without_none,
    without_unknown_tags,
)
from conveyor.kafka_api.wire.versions import CONSUMER_GROUP_HEARTBEAT_KEY
from conveyor.kernel.errors import ProtocolViolation
from conveyor.kernel.ports import Bytes

_MALFORMED = (SerialError, ValueError, OverflowError, LookupError, TypeError)
"""The errors that decoders raise for bytes that do not match the schema."""

ITEM_WEIGHTS: Mapping[int, Mapping[str, int]] = {CONSUMER_GROUP_HEARTBEAT_KEY: {"subscribed_topic_names": 4}}
"""By API key: as how many items each element of an array counts, because one turn of the loop handles all of them. The
names of topics in a heartbeat are one record of the member, and 5,000 of them take 10 ms.
"""

Body = Mapping[str, Any]
Reader = Callable[[Bytes, int], tuple[Any, int]]

_LARGE_BYTES = 1 << 20
_NO_THROTTLE = timedelta(0)
_MAX_HEADER_TAGS = 100


@cache
def _request_readers(api_key: int, version: int) -> tuple[Reader, Skim, Reader]:
    schema = load_request_schema(api_key, version)
    read_header, read_body = entity_reader(schema.__header_schema__), entity_reader(schema)
    return cast("Reader", read_header), skimmer(schema, ITEM_WEIGHTS.get(api_key, {})), cast("Reader", read_body)


@cache
def _untagged_header_reader() -> Reader:
    return cast("Reader", entity_reader(UntaggedHeader))


def decode_request(api_key: int, version: int, frame: Bytes, most_items: int) -> tuple[Any, Any]:
    """Decode the header and the body of a request.

    Raises ProtocolViolation if the frame does not match the schema: TooManyItems if it has more items than this, or is
    large and has to be copied because of tagged fields that the schema does not have.
    """
    unknown: Room = []
    count_items(api_key, version, frame, most_items, unknown)
    if unknown and len(frame) > _LARGE_BYTES:
        raise TooManyItems(f"unknown tagged fields in {len(frame)} bytes")
    header, size = decode_header(api_key, version, frame)
    return header, decode_body(api_key, version, frame, size, unknown)


def count_items(api_key: int, version: int, frame: Bytes, most_items: int, unknown: Room) -> int:
    """Check all lengths in a request, and count its items; see `skim`. Raises ProtocolViolation."""
    return _request_readers(api_key, version)[1](frame, most_items, unknown)


def decode_header(api_key: int, version: int, frame: Bytes) -> tuple[Any, int]:
    """Decode the header of a request whose lengths are checked. Returns its size, too. Raises ProtocolViolation, also
    if it has too many tagged fields: it is decoded before the items of a long request are counted.
    """
    try:
        try:
            return _request_readers(api_key, version)[0](frame, 0)
        except KeyError:  # It has tagged fields, which no schema of a header has.
            header, size = _untagged_header_reader()(frame, 0)
            return header, skip_tags(frame, size, [_MAX_HEADER_TAGS])
    except _MALFORMED as error:
        raise _violation(api_key, version, error) from error


def decode_body(api_key: int, version: int, frame: Bytes, position: int, unknown: Room) -> Any:
    """Decode the body of a request. unknown: what `count_items` has found in it. Raises ProtocolViolation."""
    read = _request_readers(api_key, version)[2]
    try:
        return read(without_unknown_tags(frame, position, unknown), position)[0]
    except _MALFORMED as error:
        raise _violation(api_key, version, error) from error


def _violation(api_key: int, version: int, error: Exception) -> ProtocolViolation:
    return ProtocolViolation(f"api key {api_key} version {version}: {type(error).__name__}: {error}")


class UnencodableResponse(Exception):  # noqa: N818 - named for what it is
    """A bug: a response does not match its schema."""


_UNENCODABLE = (SerialError, ValueError, TypeError, LookupError, OverflowError, struct.error)


def build_response(api_key: int, version: int, body: Body) -> Any:
    """Build the entity of a response. Raises UnencodableResponse."""
    try:
        return build(_response_writers(api_key, version)[0], body)
    except _UNENCODABLE as error:
        raise UnencodableResponse(f"api key {api_key} version {version}: {error!r}") from error


def encode_response(api_key: int, version: int, correlation_id: int, body: Body) -> bytes:
    """Encode a response and its header, without the length prefix. Raises UnencodableResponse."""
    return encode_built(api_key, version, correlation_id, build_response(api_key, version, body))


def encode_built(api_key: int, version: int, correlation_id: int, response: Any) -> bytes:
    """Encode the entity of a response; see `encode_response`."""
    schema, write_header, write_body = _response_writers(api_key, version)
    buffer = io.BytesIO()
    try:
        write_header(buffer, schema.__header_schema__(correlation_id=correlation_id))
        write_body(buffer, response)
    except _UNENCODABLE as error:
        raise UnencodableResponse(f"api key {api_key} version {version}: {error!r}") from error
    return buffer.getvalue()


def build(schema: Any, values: Body) -> Any:
    """Build an entity of a kio class from its fields. Raises AssertionError if a required field is missing."""
    arguments = {}
    for name, convert, required in _plan(schema):
        if name in values:
            value = values[name]
            arguments[name] = value if convert is None or value is None else convert(value)
        elif name == "throttle_time":
            arguments[name] = _NO_THROTTLE
        else:
            assert not required, f"{schema.__module__} requires the field {name}"
    return schema(**arguments)


@cache
def _response_writers(api_key: int, version: int) -> tuple[Any, Any, Any]:
    schema = load_response_schema(api_key, version)
    return schema, entity_writer(schema.__header_schema__), entity_writer(schema)


@cache
def _plan(schema: Any) -> tuple[tuple[str, Callable[[Any], Any] | None, bool], ...]:
    return tuple((field.name, _converter(field), field.default is MISSING) for field in fields(schema))


def _converter(declared: "Field[Any]") -> Callable[[Any], Any] | None:
    kafka_type = declared.metadata.get("kafka_type")
    if kafka_type == "error_code":
        return ErrorCode
    if kafka_type in ("timedelta_i32", "timedelta_i64"):
        return lambda milliseconds: timedelta(milliseconds=milliseconds)
    bare = without_none(declared.type)
    if get_origin(bare) is tuple:
        item = without_none(get_args(bare)[0])
        if is_dataclass(item):
            return lambda values: tuple(build(item, value) for value in values)
        return tuple
    if is_dataclass(bare):
        return lambda values: build(bare, values)
    return None
