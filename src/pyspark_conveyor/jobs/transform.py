"""The transform job's tables: records with decoded values, records that cannot be decoded, and results as records.

Pure functions from DataFrame to DataFrame, for batches and streams alike. `declared` reads, runs and writes them.
"""

from typing import TYPE_CHECKING, Literal

from pyspark_conveyor.payloads.payload_columns import PAYLOAD, REASON, with_payload
from pyspark_conveyor.payloads.payload_schema import PayloadSchema
from pyspark_conveyor.pipeline_errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ValueFormat = Literal["raw", "text", "json"]
EVENT_TIME = "event_time"
_PLACE = ("topic", "partition", "offset", "timestampType")
_RECORD = ("key", "value", "headers", "timestamp")
_HEADERS = "array<struct<key:string,value:binary>>"


def with_decoded_value(records: "DataFrame", value_format: ValueFormat, schema: PayloadSchema | None) -> "DataFrame":
    """Decode the values of the source's records, and add the column `reason` (string): why a value cannot be decoded,
    otherwise null.

    json: adds `payload` (struct; null for a record that is bad or has no value). text and raw: `value` stays binary.
    """
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

    if value_format == "json":
        assert schema is not None, "a JSON source has a schema"
        return with_payload(records, schema)
    if value_format == "raw":
        return records.withColumn(REASON, F.lit(None).cast("string"))
    is_bad = ~F.is_valid_utf8(F.col("value").cast("string"))
    return records.withColumn(REASON, F.when(is_bad, F.lit("the value is not UTF-8 text")))


def good_records(decoded: "DataFrame", value_format: ValueFormat, *, fails: bool) -> "DataFrame":
    """Return the records of `with_decoded_value` that have no reason, without that column.

    text: `key` and `value` become strings. fails: whether a bad record ends the query instead of being left out.
    """
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

    is_good = F.col(REASON).isNull()
    if fails:
        place = F.concat_ws(" ", "topic", F.lit("partition"), "partition", F.lit("offset"), "offset")
        error = F.concat(F.lit("a record cannot be decoded ("), place, F.lit("): "), F.col(REASON))
        is_good = F.when(is_good, F.lit(True)).otherwise(F.raise_error(error).cast("boolean"))
    good = decoded.where(is_good).drop(REASON)
    if value_format != "text":
        return good
    return good.withColumns({name: F.col(name).cast("string") for name in ("key", "value")})


def with_event_time(records: "DataFrame", event_time: str, watermark: str, deduplicate: str) -> "DataFrame":
    """Add `event_time` (timestamp), its watermark, and leave out repeated records.

    event_time: an SQL expression. watermark: a delay, such as "10 minutes"; "" for none. deduplicate: an SQL expression
    with the same value in repeated records, which arrive within the watermark; "" to keep all records.
    """
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

    if not event_time and not watermark:
        return records
    timed = records.withColumn(EVENT_TIME, F.expr(event_time or "timestamp").cast("timestamp"))
    if watermark:
        timed = timed.withWatermark(EVENT_TIME, watermark)
    if not deduplicate:
        return timed
    repeated = "_deduplicate"
    return timed.withColumn(repeated, F.expr(deduplicate)).dropDuplicatesWithinWatermark([repeated]).drop(repeated)


def dead_letters(decoded: "DataFrame") -> "DataFrame":
    """Return the bad records of `with_decoded_value` as records to write: `key`, `value`, and `headers` with the reason
    and the origin, named as those of queues.
    """
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

    origin = {name: F.col(name).cast("string") for name in ("topic", "partition", "offset")}
    headers = [_dead_header(name, text) for name, text in ({"reason": F.col(REASON)} | origin).items()]
    bad = decoded.where(F.col(REASON).isNotNull())
    kept = F.coalesce("headers", F.array().cast(_HEADERS))
    return bad.select("key", "value", F.concat(kept, F.array(*headers)).alias("headers"))


def outgoing_records(result: "DataFrame", topic: str, dead_letter_topic: str = "") -> "DataFrame":
    """Return a step's result as records to write, with a column `topic`.

    result: with a column `value`, its columns `key`, `value`, `headers` and `timestamp` are the record, and the other
    columns of the source are left out. Without `value`, all columns but these are the fields of a JSON object.
    dead_letter_topic: the topic of rows whose column `reason` (string) is not null, if there is one. It gets their
    reason as a header. Raises PipelineError for columns that have no place in a record.
    """
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

    has_reason = bool(dead_letter_topic) and REASON in result.columns
    left_out = {*_PLACE, PAYLOAD, EVENT_TIME, *([REASON] if has_reason else [])}
    others = [name for name in result.columns if name not in {*_RECORD, *([REASON] if has_reason else [])}]
    if "value" in result.columns:
        unplaced = [name for name in others if name not in left_out]
        if unplaced:
            raise PipelineError(
                f"the result has the columns value and {', '.join(unplaced)}: drop the others, or rename value so that"
                " all of them become a JSON object"
            )
        value = _as_bytes(result, "value")
    elif others:
        value = F.to_json(F.struct(*[F.col(f"`{name}`") for name in others]))
    else:
        raise PipelineError("the result has no column for the value: select one AS value, or the fields of an object")
    columns = {"topic": F.lit(topic), "value": value}
    if "key" in result.columns:
        columns["key"] = _as_bytes(result, "key")
    if "timestamp" in result.columns:
        columns["timestamp"] = F.col("timestamp")
    if "headers" in result.columns or has_reason:
        columns["headers"] = _result_headers(result)
    if has_reason:
        is_dead = F.col(REASON).isNotNull()
        columns["topic"] = F.when(is_dead, F.lit(dead_letter_topic)).otherwise(columns["topic"])
        marked = F.concat(
            F.coalesce(columns["headers"], F.array().cast(_HEADERS)), F.array(_dead_header("reason", F.col(REASON)))
        )
        columns["headers"] = F.when(is_dead, marked).otherwise(columns["headers"])
    return result.select(*[column.alias(name) for name, column in columns.items()])


def _dead_header(name: str, text: "Column") -> "Column":
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

    return F.struct(F.lit(f"conveyor-dead-{name}").alias("key"), text.cast("binary").alias("value"))


def _as_bytes(result: "DataFrame", name: str) -> "Column":
    """Return a column as a key or a value: nested types as JSON, all others as text."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

    kind = result.schema[name].dataType.typeName()
    if kind in ("binary", "string"):
        return F.col(name)
    return F.to_json(name) if kind in ("struct", "array", "map") else F.col(name).cast("string")


def _result_headers(result: "DataFrame") -> "Column":
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

    if "headers" not in result.columns:
        return F.lit(None).cast(_HEADERS)
    kind = result.schema["headers"].dataType.typeName()
    return (F.map_entries("headers") if kind == "map" else F.col("headers")).cast(_HEADERS)
