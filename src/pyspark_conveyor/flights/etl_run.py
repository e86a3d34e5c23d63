"""Runs the second demonstration: extract, transform, enrich, load, each a job that could run by itself."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from conveyor.records.message_attributes import DEAD_REASON
from pyspark_conveyor.brokers.brokers import Brokers
from pyspark_conveyor.flights.flight_etl import ENRICHED_FLIGHT, checked, enriched, routed
from pyspark_conveyor.flights.flight_events import PARTITIONS, PLANES, RECORDS, WEATHER
from pyspark_conveyor.flights.flights_producer import create_topics, produce_events
from pyspark_conveyor.flights.raw_events import BROKEN_EVERY, CLEAN, ENRICHED, RAW, REJECTED, raw_events
from pyspark_conveyor.jobs.archive import archive
from pyspark_conveyor.lake.lake_table import read_lake
from pyspark_conveyor.payloads.schema_request import SchemaRequest
from pyspark_conveyor.spark.stream_runs import run_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPICS = {RAW: 6, CLEAN: 6, ENRICHED: 6, REJECTED: 1, PLANES: PARTITIONS[PLANES], WEATHER: PARTITIONS[WEATHER]}
_BATCH_RECORDS = 200_000

Progress = Callable[[int, int], None]


class EtlCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Flights after each step. rejected: by reason. distinct: different flights among those that were loaded."""

    extracted: int
    broken: int
    clean: int
    rejected: dict[str, int]
    enriched: int
    loaded: int
    distinct: int
    with_plane: int
    with_weather: int

    @property
    def balances(self) -> bool:
        """True if every flight is in the lake or in the dead-letter topic, once, and the broken ones in the latter."""
        rejected = sum(self.rejected.values())
        return (
            self.extracted == self.clean + rejected
            and rejected == self.broken
            and self.clean == self.enriched == self.loaded == self.distinct
        )


def extract(brokers: Brokers, replicas: int, flights: int | None, progress: Progress) -> int:
    """Create the topics and produce the raw events. flights: their number, None for all. Returns it."""
    create_topics(brokers, replicas, TOPICS)
    others = RECORDS[PLANES] + RECORDS[WEATHER]
    total = others + (RECORDS["flights"] if flights is None else flights)
    return produce_events(brokers, raw_events(flights), total, progress).total - others


def transform(spark: "SparkSession", brokers: Brokers, checkpoint: Path) -> None:
    """Validate the raw flights, each into the topic of clean flights or, with the reason, that of rejected ones."""
    _write_topics(routed(checked(_stream(spark, brokers, RAW))), brokers, checkpoint, CLEAN)


def enrich(spark: "SparkSession", brokers: Brokers, checkpoint: Path) -> None:
    """Add plane and weather to the clean flights."""
    planes, weather = (_table(spark, brokers, topic) for topic in (PLANES, WEATHER))
    _write_topics(enriched(_stream(spark, brokers, CLEAN), planes, weather), brokers, checkpoint, ENRICHED)


def load(spark: "SparkSession", brokers: Brokers, lake: Path, progress: Progress) -> None:
    """Archive the enriched flights in typed columns."""
    schema = SchemaRequest(text=ENRICHED_FLIGHT)
    archive(lambda: spark, brokers, [ENRICHED], lake, _BATCH_RECORDS, progress, schema=schema)


def count(spark: "SparkSession", brokers: Brokers, lake: Path, extracted: int) -> EtlCounts:
    """Count the flights of every step. extracted: those that the broker has acknowledged."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

    reason = F.filter("headers", lambda header: header["key"] == DEAD_REASON)[0]["value"].cast("string")
    rejected = _table(spark, brokers, REJECTED).groupBy(reason.alias("reason")).count().orderBy("reason")
    sequence = F.filter("headers", lambda header: header["key"] == "sequence")[0]["value"]
    loaded = (
        read_lake(spark, lake)
        .agg(
            F.count("*").alias("loaded"),
            F.countDistinct(sequence).alias("distinct"),
            F.count("payload.plane").alias("with_plane"),
            F.count("payload.weather").alias("with_weather"),
        )
        .collect()[0]
    )
    return EtlCounts(
        extracted=extracted,
        broken=extracted // BROKEN_EVERY,
        clean=_table(spark, brokers, CLEAN).count(),
        rejected={row["reason"]: row["count"] for row in rejected.collect()},
        enriched=_table(spark, brokers, ENRICHED).count(),
        **loaded.asDict(),
    )


def _stream(spark: "SparkSession", brokers: Brokers, topic: str) -> "DataFrame":
    source = spark.readStream.format("conveyor").options(**brokers.options).option("topic", topic)
    return source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", _BATCH_RECORDS).load()


def _table(spark: "SparkSession", brokers: Brokers, topic: str) -> "DataFrame":
    return spark.read.format("conveyor").options(**brokers.options).option("topic", topic).load()


def _write_topics(rows: "DataFrame", brokers: Brokers, checkpoint: Path, marker_topic: str) -> None:
    """Write rows to the topics that their column `topic` names, exactly once, up to the current end of the source."""
    run_stream(
        rows.writeStream.format("conveyor")
        .options(**brokers.options)
        .option("delivery", "exactly-once")
        .option("markerTopic", marker_topic)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
    )
