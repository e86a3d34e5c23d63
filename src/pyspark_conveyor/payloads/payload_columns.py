"""Adds payloads as typed columns to records."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark_conveyor.payloads.avro_payloads import avro_decoder
from pyspark_conveyor.payloads.json_payloads import json_decoder
from pyspark_conveyor.payloads.payload_schema import BadPayloadError, Decoder, PayloadSchema
from pyspark_conveyor.payloads.protobuf_payloads import protobuf_decoder

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

PAYLOAD, REASON = "payload", "reason"
_DECODERS: dict[str, Callable[[PayloadSchema], Decoder]] = {
    "json": json_decoder,
    "avro": avro_decoder,
    "protobuf": protobuf_decoder,
}


def with_payload(records: "DataFrame", schema: PayloadSchema) -> "DataFrame":
    """Decode the column `value` (binary).

    Returns the records with columns `payload` (struct, null for a record that is bad or has no value) and `reason`
    (string, why a record is bad, otherwise null). Grain: one row per record.
    """
    from pyspark.sql import types as T  # noqa: N812 - Spark's own habit

    kind = schema.spark_type()
    # A new type each time: `add` changes the schema it is called on.
    columns = T.StructType([*records.schema, T.StructField(PAYLOAD, kind), T.StructField(REASON, T.StringType())])
    return records.mapInArrow(_decode_batches(schema), columns)


def _decode_batches(
    schema: PayloadSchema,
) -> Callable[[Iterable["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]:
    def decode(batches: Iterable["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_type

        decoder = _DECODERS[schema.format](schema)
        kind = to_arrow_type(schema.spark_type(), timezone="UTC")
        for batch in batches:
            payloads, reasons = _decoded(decoder, batch.column("value").to_pylist(), kind)
            yield pa.RecordBatch.from_arrays(
                [*batch.columns, payloads, pa.array(reasons, pa.string())],
                names=[*batch.schema.names, PAYLOAD, REASON],
            )

    return decode


def _decoded(decoder: Decoder, values: list[bytes | None], kind: "pa.DataType") -> tuple["pa.Array", list[str | None]]:
    """Return the payloads as a column, and the reasons of those that are bad."""
    import pyarrow as pa

    payloads: list[dict[str, Any] | None] = [None] * len(values)
    reasons: list[str | None] = [None] * len(values)
    for number, value in enumerate(values):
        if value is not None:
            try:
                payloads[number] = decoder(value)
            except BadPayloadError as error:
                reasons[number] = str(error)
    try:
        return pa.array(payloads, kind), reasons
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        # A value does not fit into its column, such as a decimal with too many digits: find its record.
        for number, payload in enumerate(payloads):
            reason = _misfit(payload, kind)
            if reason is not None:
                payloads[number], reasons[number] = None, reason
        return pa.array(payloads, kind), reasons


def _misfit(payload: dict[str, Any] | None, kind: "pa.DataType") -> str | None:
    import pyarrow as pa

    try:
        pa.array([payload], kind)
    except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
        return str(error)
    return None
