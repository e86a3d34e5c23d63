"""The schema that a user asks for: the options `--schema`, `--message` and `--evolve`."""

from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from pyspark_conveyor.payloads.avro_payloads import avro_schema
from pyspark_conveyor.payloads.json_payloads import inferred, json_schema
from pyspark_conveyor.payloads.payload_schema import PayloadSchema, changed
from pyspark_conveyor.payloads.protobuf_payloads import protobuf_schema
from pyspark_conveyor.pipeline_errors import PipelineError

INFER = "infer"
_AVRO, _PROTOBUF, _DDL = (".avsc",), (".desc", ".binpb", ".pb", ".protoset"), (".ddl", ".sql")


class SchemaRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The schema that the user has given.

    text: columns in Spark's notation (`name type, ...`) or a file of them (.ddl, .sql) for JSON payloads; `infer` for
    JSON payloads whose columns are unknown; an Avro schema (.avsc); a Protobuf descriptor set (.desc, .binpb, .pb,
    .protoset).
    message: the full name of the Protobuf message.
    may_evolve: whether a lake may gain fields.
    """

    text: str
    message: str = ""
    may_evolve: bool = False


def schema_to_pin(
    request: SchemaRequest | None, pinned: PayloadSchema | None, is_new: bool, sample: Callable[[], Iterable[bytes]]
) -> PayloadSchema | None:
    """Return the schema that a lake has from now on. Raises PipelineError. Needs an active Spark session.

    pinned, is_new: of the lake. sample: payloads of the topics to infer columns from.
    """
    if request is None:
        return pinned
    if request.text == INFER and pinned is not None:
        if request.may_evolve:
            raise PipelineError("--evolve needs a schema that names the new fields: --schema 'name type, ...'")
        return pinned
    wanted = _given(request, sample)
    if pinned is not None:
        return changed(pinned, wanted, may_evolve=request.may_evolve)
    if not is_new and not request.may_evolve:
        raise PipelineError(
            "the lake has records without a schema: --evolve adds the column payload, which stays null for them"
        )
    return wanted


def _given(request: SchemaRequest, sample: Callable[[], Iterable[bytes]]) -> PayloadSchema:
    file, suffix = Path(request.text), Path(request.text).suffix
    if request.message and suffix not in _PROTOBUF:
        raise PipelineError(f"--message is for Protobuf, which {request.text} is not ({', '.join(_PROTOBUF)})")
    if suffix in _AVRO:
        return avro_schema(file)
    if suffix in _PROTOBUF:
        return protobuf_schema(file, request.message)
    if request.text == INFER:
        return inferred(sample())
    try:
        return _of_columns(file.read_text() if suffix in _DDL else request.text)
    except OSError as error:
        raise PipelineError(f"{file} cannot be read: {error.strerror}") from error


def _of_columns(columns: str) -> PayloadSchema:
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    advice = f"the schema {columns!r} is not a list of columns, such as 'id long, name string'"
    try:
        kind = StructType.fromDDL(columns)
    except PySparkException as error:
        raise PipelineError(advice) from error
    if not isinstance(kind, StructType) or not kind.fields:
        raise PipelineError(advice)
    return json_schema(kind)
