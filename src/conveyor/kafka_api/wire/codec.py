"""Decodes requests and encodes responses of every version with kio. Schemas are loaded on first use.

A response is a plain dict of kio's field names, so no API depends on the classes that kio has for each version. The
encoder ignores fields that the version does not have, and gives missing fields the schema's defaults.
"""

import io
import logging
import struct
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import timedelta
from functools import cache
from typing import Any, cast, get_args, get_origin

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError

from conveyor.kafka_api.wire.skim import skimmer, without_none
from conveyor.kernel.errors import ProtocolViolation
from conveyor.kernel.ports import Bytes

log = logging.getLogger(__name__)

Body = Mapping[str, Any]
Reader = Callable[[Bytes, int], tuple[Any, int]]
Skim = Callable[[Bytes, int], None]

_NO_THROTTLE = timedelta(0)


@cache
def _request_readers(api_key: int, version: int) -> tuple[Reader, Skim, Reader]:
    schema = load_request_schema(api_key, version)
    read_header, read_body = entity_reader(schema.__header_schema__), entity_reader(schema)
    return cast("Reader", read_header), skimmer(schema), cast("Reader", read_body)


def decode_request(api_key: int, version: int, frame: Bytes) -> tuple[Any, Any]:
    """Decode the header and the body of a request. Raises ProtocolViolation if the frame does not match the schema."""
    read_header, skim_body, read_body = _request_readers(api_key, version)
    try:
        header, size = read_header(frame, 0)
        skim_body(frame, size)
        return header, read_body(frame, size)[0]
    except ProtocolViolation:
        raise
    except (SerialError, ValueError, OverflowError, LookupError, TypeError) as error:
        raise ProtocolViolation(f"api key {api_key} version {version}: {type(error).__name__}: {error}") from error
    except Exception as bug:
        log.exception("request not decoded api_key=%d version=%d", api_key, version)
        raise ProtocolViolation(f"api key {api_key} version {version}: {type(bug).__name__}") from bug


class UnencodableResponse(Exception):  # noqa: N818 - named for what it is
    """A bug: a response does not match its schema."""


def encode_response(api_key: int, version: int, correlation_id: int, body: Body) -> bytes:
    """Encode a response and its header, without the length prefix. Raises UnencodableResponse."""
    schema, write_header, write_body = _response_writers(api_key, version)
    buffer = io.BytesIO()
    try:
        write_header(buffer, schema.__header_schema__(correlation_id=correlation_id))
        write_body(buffer, build(schema, body))
    except (SerialError, ValueError, TypeError, LookupError, OverflowError, struct.error) as error:
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
