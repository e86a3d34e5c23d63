"""JSON payloads: a decoder for a Spark type, and a type for sampled payloads.

Decoding is strict: text is not a number, and a number with a fraction is not an integer. Unknown fields are ignored,
missing fields are null. Dates and timestamps are ISO 8601 text; a timestamp without an offset is refused.
"""

import datetime as dt
import decimal
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from pyspark_conveyor.payloads.payload_schema import BadPayloadError, Decoder, PayloadSchema
from pyspark_conveyor.pipeline_errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_MOST_PLACES = 1_000


def json_schema(kind: "StructType") -> PayloadSchema:
    """Return the schema of JSON objects. Raises PipelineError for a type that JSON payloads cannot have."""
    _python_type(kind)
    return PayloadSchema(format="json", columns=kind.json())


def json_decoder(schema: PayloadSchema) -> Decoder:
    kind = schema.spark_type()
    decoder: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(_python_type(kind))
    has_decimals = '"decimal(' in kind.json()

    def decode(payload: bytes) -> dict[str, Any]:
        try:
            document = decoder.decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadPayloadError(str(error)) from error
        if has_decimals:
            _check_decimals(document)
        return document

    return decode


def _check_decimals(value: Any) -> None:
    """Raise BadPayloadError for a decimal with so many places that Arrow would crash on it."""
    if isinstance(value, dict):
        value = value.values()
    elif isinstance(value, decimal.Decimal):
        exponent = value.as_tuple().exponent
        if isinstance(exponent, int) and exponent < -_MOST_PLACES:
            raise BadPayloadError(f"a decimal has {-exponent} places, and at most {_MOST_PLACES} can be read")
        return
    elif not isinstance(value, list):
        return
    for inner in value:
        _check_decimals(inner)


def inferred(payloads: Iterable[bytes]) -> PayloadSchema:
    """Infer a schema from sampled payloads; payloads that are no JSON objects are passed over. Raises PipelineError.

    Fields that are null in the whole sample get no column. Text stays text.
    """
    import pyarrow as pa

    decoder = msgspec.json.Decoder(dict[str, Any])
    documents = []
    for payload in payloads:
        try:
            documents.append(decoder.decode(payload))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
    if not documents:
        raise PipelineError("no sampled record is a JSON object: give the schema with --schema 'name type, ...'")
    try:
        kind = _spark_type(pa.array(documents).type)
    except (pa.ArrowException, OverflowError) as error:
        raise PipelineError(
            f"a field has several types in the sample ({error}): give the schema with --schema 'name type, ...'"
        ) from error
    if kind is None:
        raise PipelineError("the sampled records have no fields: give the schema with --schema 'name type, ...'")
    return json_schema(kind)


def _spark_type(kind: Any) -> Any:
    """Return Spark's type of an inferred Arrow type, None where nothing is known of it."""
    import pyarrow as pa
    from pyspark.sql import types as T  # noqa: N812 - Spark's own habit

    if pa.types.is_struct(kind):
        found = [(field.name, _spark_type(field.type)) for field in kind]
        fields = [T.StructField(name, inner) for name, inner in found if inner is not None]
        return T.StructType(fields) if fields else None
    if pa.types.is_list(kind):
        inner = _spark_type(kind.value_type)
        return None if inner is None else T.ArrayType(inner)
    scalars = {pa.bool_(): T.BooleanType(), pa.int64(): T.LongType(), pa.float64(): T.DoubleType()}
    return scalars.get(kind, None if pa.types.is_null(kind) else T.StringType())


def _python_type(kind: Any) -> Any:
    """Return the type as msgspec decodes it. Every value may be null, every field may be missing."""
    from typing import TypedDict

    from pyspark.sql import types as T  # noqa: N812 - Spark's own habit

    if isinstance(kind, T.StructType):
        fields = {field.name: _python_type(field.dataType) | None for field in kind}
        make_type: Any = TypedDict
        return make_type("Payload", fields, total=False)
    if isinstance(kind, T.ArrayType):
        return list[_python_type(kind.elementType) | None]  # type: ignore[misc]
    if isinstance(kind, T.MapType) and isinstance(kind.keyType, T.StringType):
        return dict[str, _python_type(kind.valueType) | None]  # type: ignore[misc]
    scalars: dict[type, Any] = {
        T.StringType: str,
        T.BooleanType: bool,
        T.ByteType: _integer(8),
        T.ShortType: _integer(16),
        T.IntegerType: _integer(32),
        T.LongType: _integer(64),
        T.FloatType: float,
        T.DoubleType: float,
        T.DecimalType: decimal.Decimal,
        T.DateType: dt.date,
        T.TimestampType: Annotated[dt.datetime, msgspec.Meta(tz=True)],
    }
    if type(kind) not in scalars:
        raise PipelineError(f"JSON payloads have no type {kind.simpleString()}: use string instead, and cast it")
    return scalars[type(kind)]


def _integer(bits: int) -> Any:
    if bits == 64:
        return Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
    return Annotated[int, msgspec.Meta(ge=-(2 ** (bits - 1)), le=2 ** (bits - 1) - 1)]
