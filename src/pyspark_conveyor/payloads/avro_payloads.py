"""Avro payloads: one datum in Avro's binary encoding, without a file header and without a registry's prefix.

Source: Apache Avro 1.12 specification, "Schema Declaration" and "Binary encoding".
"""

import io
import json
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark_conveyor.payloads.payload_schema import BadPayloadError, Decoder, PayloadSchema
from pyspark_conveyor.pipeline_errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

_MAX_PRECISION = 38
_BROKEN = (ValueError, TypeError, EOFError, LookupError, ArithmeticError, struct.error, RecursionError, MemoryError)


def avro_schema(file: Path) -> PayloadSchema:
    """Return the schema of an .avsc file, whose top level must be a record. Raises PipelineError."""
    from pyspark.sql.types import StructType

    fastavro = _fastavro()
    try:
        document = json.loads(file.read_text())
        fastavro.parse_schema(document)
    except (OSError, ValueError, fastavro.schema.SchemaParseException, fastavro.schema.UnknownType) as error:
        raise PipelineError(f"{file} is no Avro schema: {error}") from error
    kind = _AvroTypes(file).spark_type(document)
    if not isinstance(kind, StructType):
        raise PipelineError(f"{file} describes no record: the top level of a payload must be a record")
    return PayloadSchema(format="avro", columns=kind.json(), definitions=(json.dumps(document),))


def avro_decoder(schema: PayloadSchema) -> Decoder:
    """Return a decoder that tries the schemas in turn, newest first: each must consume the whole payload."""
    fastavro = _fastavro()
    parsed = [fastavro.parse_schema(json.loads(definition)) for definition in schema.definitions]

    def decode(payload: bytes) -> dict[str, Any]:
        reason = ""
        for definition in parsed:
            stream = io.BytesIO(payload)
            try:
                document = fastavro.schemaless_reader(stream, definition, None)
            except _BROKEN as error:
                reason = reason or f"{type(error).__name__}: {error}".removesuffix(": ")
                continue
            left = len(payload) - stream.tell()
            if not left:
                return document  # type: ignore[no-any-return]
            reason = reason or f"{left} bytes are left after the record"
        raise BadPayloadError(f"no Avro record of the schema: {reason}")

    return decode


def _fastavro() -> Any:
    try:
        import fastavro
        import fastavro.schema
    except ImportError as error:
        raise PipelineError("fastavro is not installed: pip install 'conveyor[schemas]'") from error
    return fastavro


class _AvroTypes:
    """Translates a schema into Spark's types. Refuses what a column cannot hold."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._named: dict[str, DataType | None] = {}

    def spark_type(self, schema: Any, namespace: str = "") -> "DataType":
        from pyspark.sql import types as T  # noqa: N812 - Spark's own habit

        if isinstance(schema, list):
            return self._union(schema, namespace)
        if isinstance(schema, str):
            return self._primitive(schema, namespace)
        if "logicalType" in schema and (logical := self._logical(schema)) is not None:
            return logical
        match schema["type"]:
            case "record":
                return self._record(schema, namespace)
            case "enum":
                return self._define(schema, namespace, T.StringType())
            case "fixed":
                if schema["size"] == 0:
                    raise self._refused("a fixed of no bytes")
                return self._define(schema, namespace, T.BinaryType())
            case "array":
                return T.ArrayType(self.spark_type(schema["items"], namespace))
            case "map":
                return T.MapType(T.StringType(), self.spark_type(schema["values"], namespace))
            case inner:
                return self.spark_type(inner, namespace)

    def _record(self, schema: dict[str, Any], namespace: str) -> "DataType":
        from pyspark.sql import types as T  # noqa: N812 - Spark's own habit

        # Values without bytes would let a short payload claim any number of them.
        if not schema["fields"]:
            raise self._refused(f"record {schema['name']} without fields")
        name = _full_name(schema, namespace)
        self._named[name] = None
        inner = name.rpartition(".")[0]
        kind = T.StructType(
            [T.StructField(field["name"], self.spark_type(field["type"], inner)) for field in schema["fields"]]
        )
        self._named[name] = kind
        return kind

    def _define(self, schema: dict[str, Any], namespace: str, kind: "DataType") -> "DataType":
        self._named[_full_name(schema, namespace)] = kind
        return kind

    def _union(self, branches: list[Any], namespace: str) -> "DataType":
        others = [branch for branch in branches if branch != "null"]
        if len(others) != 1:
            raise self._refused(f"a union of several types ({json.dumps(branches)})")
        return self.spark_type(others[0], namespace)

    def _primitive(self, name: str, namespace: str) -> "DataType":
        from pyspark.sql import types as T  # noqa: N812 - Spark's own habit

        primitives: dict[str, DataType] = {
            "boolean": T.BooleanType(),
            "int": T.IntegerType(),
            "long": T.LongType(),
            "float": T.FloatType(),
            "double": T.DoubleType(),
            "bytes": T.BinaryType(),
            "string": T.StringType(),
        }
        if name in primitives:
            return primitives[name]
        for full_name in (name, f"{namespace}.{name}"):
            if full_name in self._named:
                kind = self._named[full_name]
                if kind is None:
                    raise self._refused(f"record {full_name} inside itself")
                return kind
        raise self._refused(f"type {name}")

    def _logical(self, schema: dict[str, Any]) -> "DataType | None":
        """Return the type of a logical type; None for one that counts as its plain type, as Avro requires."""
        from pyspark.sql import types as T  # noqa: N812 - Spark's own habit

        match schema["logicalType"]:
            case "decimal":
                if schema["precision"] > _MAX_PRECISION:
                    raise self._refused(f"a decimal of {schema['precision']} digits")
                return T.DecimalType(schema["precision"], schema.get("scale", 0))
            case "date":
                return T.DateType()
            case "timestamp-millis" | "timestamp-micros":
                return T.TimestampType()
            case "uuid" if schema["type"] == "string":
                return T.StringType()
            case name:
                raise self._refused(f"logical type {name}")

    def _refused(self, what: str) -> PipelineError:
        return PipelineError(f"{self._file} has {what}, which a lake has no column for: leave it out of the schema")


def _full_name(schema: dict[str, Any], namespace: str) -> str:
    if "." in schema["name"]:
        return str(schema["name"])
    return f"{schema.get('namespace', namespace)}.{schema['name']}".removeprefix(".")
