"""The steps of the second demonstration, as functions from tables to tables.

flights-raw -> checked -> routed -> flights-clean | flights-rejected
flights-clean, planes, weather -> enriched -> flights-enriched
"""

from typing import TYPE_CHECKING, Any

from conveyor.records.message_attributes import DEAD_OFFSET, DEAD_PARTITION, DEAD_REASON, DEAD_TOPIC
from pyspark_conveyor.flights.raw_events import CLEAN, ENRICHED, REJECTED
from pyspark_conveyor.payloads.json_payloads import json_schema
from pyspark_conveyor.payloads.payload_columns import with_payload

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FLIGHT = (
    "carrier string, flight long, tailnum string, origin string, dest string, time_hour string, hour long,"
    " distance double, dep_delay double, arr_delay double, air_time double"
)
PLANE = "tailnum string, year long, manufacturer string, model string, seats long"
WEATHER_HOUR = "origin string, time_hour string, temp double, wind_speed double, precip double, visib double"
ENRICHED_FLIGHT = (
    f"{FLIGHT}, plane struct<year: long, manufacturer: string, model: string, seats: long>,"
    " weather struct<temp: double, wind_speed: double, precip: double, visib: double>"
)


def checked(records: "DataFrame") -> "DataFrame":
    """Parse and validate raw flights. Adds `payload` (struct) and `reason` (string, null for a valid flight)."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

    parsed = with_payload(records, json_schema(_type(FLIGHT)))
    rule = (
        F.when(F.col("payload.carrier").isNull(), "the carrier is missing")
        .when(F.col("payload.time_hour").isNull(), "the departure is missing")
        .when(~(F.col("payload.distance") > 0), "the distance is not positive")
    )
    return parsed.withColumn("reason", F.coalesce("reason", F.when(F.col("value").isNull(), "no value"), rule))


def routed(flights: "DataFrame") -> "DataFrame":
    """Return checked flights as rows to write: valid ones to flights-clean, others, as they came, to flights-rejected.

    Rejected records have the headers of a dead letter, which say why they are there and where they were.
    """
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

    is_bad = F.col("reason").isNotNull()
    headers = F.coalesce("headers", F.array().cast("array<struct<key: string, value: binary>>"))
    origin = [
        _header(DEAD_REASON, F.col("reason")),
        _header(DEAD_TOPIC, F.col("topic")),
        _header(DEAD_PARTITION, F.col("partition")),
        _header(DEAD_OFFSET, F.col("offset")),
    ]
    return flights.select(
        F.when(is_bad, REJECTED).otherwise(CLEAN).alias("topic"),
        "key",
        F.when(is_bad, F.col("value")).otherwise(F.to_json("payload").cast("binary")).alias("value"),
        F.when(is_bad, F.concat(headers, F.array(*origin))).otherwise(headers).alias("headers"),
        "timestamp",
    )


def enriched(flights: "DataFrame", planes: "DataFrame", weather: "DataFrame") -> "DataFrame":
    """Join clean flights with their plane and with the weather at their departure, and return rows to write.

    All arguments are records of topics. A flight whose plane or weather is unknown stays, with null in its place.
    """
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

    plane = _parsed(planes, PLANE).dropDuplicates(["tailnum"])
    hour = _parsed(weather, WEATHER_HOUR).dropDuplicates(["origin", "time_hour"])
    plane = plane.select("tailnum", F.struct("year", "manufacturer", "model", "seats").alias("plane"))
    hour = hour.select("origin", "time_hour", F.struct("temp", "wind_speed", "precip", "visib").alias("weather"))
    flight = flights.select("key", "headers", "timestamp", F.from_json(_text("value"), FLIGHT).alias("flight"))
    columns = flight.select("key", "headers", "timestamp", "flight.*")
    joined = columns.join(F.broadcast(plane), "tailnum", "left").join(
        F.broadcast(hour), ["origin", "time_hour"], "left"
    )
    document = F.struct(*(field.name for field in _type(ENRICHED_FLIGHT)))
    return joined.select(
        F.lit(ENRICHED).alias("topic"), "key", F.to_json(document).cast("binary").alias("value"), "headers", "timestamp"
    )


def _parsed(records: "DataFrame", columns: str) -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

    return records.select(F.from_json(_text("value"), columns).alias("row")).select("row.*")


def _text(column: str) -> "Column":
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

    return F.col(column).cast("string")


def _header(name: str, value: "Column") -> "Column":
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

    return F.struct(F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))


def _type(columns: str) -> Any:
    from pyspark.sql.types import StructType

    return StructType.fromDDL(columns)
