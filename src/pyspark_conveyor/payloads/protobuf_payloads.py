"""Protobuf payloads: one message in the wire format.

The schema is a descriptor set, as `protoc --include_imports --descriptor_set_out=FILE` writes it. Fields without
presence have their default where a payload leaves them out; other fields are null. Unknown fields are ignored.

Source: https://protobuf.dev/programming-guides/field_presence/
"""

import base64
import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark_conveyor.payloads.payload_schema import BadPayloadError, Decoder, PayloadSchema
from pyspark_conveyor.pipeline_errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

_TIMESTAMP = "google.protobuf.Timestamp"
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def protobuf_schema(file: Path, message: str) -> PayloadSchema:
    """Return the schema of a message in a descriptor set. Raises PipelineError."""
    if not message:
        raise PipelineError(f"{file} may hold several messages: name one with --message package.Name")
    try:
        definition = file.read_bytes()
    except OSError as error:
        raise PipelineError(f"{file} cannot be read: {error.strerror}") from error
    descriptor = _descriptor(definition, message, str(file))
    kind = _message_type(descriptor, str(file), ())
    return PayloadSchema(
        format="protobuf",
        columns=kind.json(),
        definitions=(base64.b64encode(definition).decode(),),
        message=message,
    )


def protobuf_decoder(schema: PayloadSchema) -> Decoder:
    descriptor = _descriptor(base64.b64decode(schema.definitions[0]), schema.message, "the lake's schema")
    from google.protobuf import message, message_factory

    message_class = message_factory.GetMessageClass(descriptor)
    read = _message_reader(descriptor)

    def decode(payload: bytes) -> dict[str, Any]:
        try:
            return read(message_class.FromString(payload))  # type: ignore[no-any-return]
        except (message.DecodeError, ValueError, OverflowError, RecursionError) as error:
            raise BadPayloadError(f"no Protobuf message of the schema: {error}") from error

    return decode


def _descriptor(definition: bytes, name: str, where: str) -> Any:
    """Return the descriptor of a message, from a pool of its own. Raises PipelineError."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message
    except ImportError as error:
        raise PipelineError("protobuf is not installed: pip install 'conveyor[schemas]'") from error
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(definition)
        pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            pool.Add(file)
        return pool.FindMessageTypeByName(name)
    except (message.DecodeError, TypeError) as error:
        raise PipelineError(
            f"{where} is no descriptor set: make one with protoc --include_imports --descriptor_set_out=FILE"
        ) from error
    except KeyError as error:
        raise PipelineError(f"{where} has no message {name}: give its full name with --message") from error


def _message_type(descriptor: Any, where: str, outer: tuple[str, ...]) -> Any:
    from pyspark.sql import types as T  # noqa: N812 - Spark's own habit

    if descriptor.full_name in outer:
        raise PipelineError(f"{where}: message {descriptor.full_name} is inside itself, which no column can hold")
    if not descriptor.fields:
        raise PipelineError(f"{where}: message {descriptor.full_name} has no fields, which no column can hold")
    inner = (*outer, descriptor.full_name)
    return T.StructType([T.StructField(field.name, _field_type(field, where, inner)) for field in descriptor.fields])


def _field_type(field: Any, where: str, outer: tuple[str, ...]) -> "DataType":
    from pyspark.sql import types as T  # noqa: N812 - Spark's own habit

    if _is_map(field):
        entry = field.message_type.fields_by_name
        key, value = (_single_type(entry[name], where, outer) for name in ("key", "value"))
        return T.MapType(key, value)
    single = _single_type(field, where, outer)
    return T.ArrayType(single) if field.is_repeated else single


def _single_type(field: Any, where: str, outer: tuple[str, ...]) -> "DataType":
    from pyspark.sql import types as T  # noqa: N812 - Spark's own habit

    if field.message_type is not None:
        if field.message_type.full_name == _TIMESTAMP:
            return T.TimestampType()
        return _message_type(field.message_type, where, outer)  # type: ignore[no-any-return]
    scalars: dict[int, DataType] = {
        field.CPPTYPE_INT32: T.IntegerType(),
        field.CPPTYPE_UINT32: T.LongType(),
        field.CPPTYPE_INT64: T.LongType(),
        field.CPPTYPE_UINT64: T.DecimalType(20, 0),
        field.CPPTYPE_DOUBLE: T.DoubleType(),
        field.CPPTYPE_FLOAT: T.FloatType(),
        field.CPPTYPE_BOOL: T.BooleanType(),
        field.CPPTYPE_ENUM: T.StringType(),
        field.CPPTYPE_STRING: T.BinaryType() if field.type == field.TYPE_BYTES else T.StringType(),
    }
    return scalars[field.cpp_type]


def _message_reader(descriptor: Any) -> Callable[[Any], Any]:
    """Return a function from a message to its row."""
    readers = [(field.name, field.has_presence, _field_reader(field)) for field in descriptor.fields]

    def read(message: Any) -> dict[str, Any]:
        return {
            name: None if has_presence and not message.HasField(name) else reader(getattr(message, name))
            for name, has_presence, reader in readers
        }

    return read


def _field_reader(field: Any) -> Callable[[Any], Any]:
    if _is_map(field):
        of_value = _single_reader(field.message_type.fields_by_name["value"])
        return lambda values: [(key, of_value(values[key])) for key in values]
    single = _single_reader(field)
    return (lambda values: [single(value) for value in values]) if field.is_repeated else single


def _single_reader(field: Any) -> Callable[[Any], Any]:
    if field.message_type is not None:
        if field.message_type.full_name == _TIMESTAMP:
            return lambda stamp: _EPOCH + dt.timedelta(seconds=stamp.seconds, microseconds=stamp.nanos // 1000)
        return _message_reader(field.message_type)
    if field.enum_type is not None:
        names = {value.number: value.name for value in field.enum_type.values}
        return lambda number: names.get(number, str(number))
    return lambda value: value


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry
