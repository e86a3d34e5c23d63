"""Tables that are written to topics: what arrives, and what is refused."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from conveyor.testing import Broker
from pyspark_conveyor.spark.stream_runs import run_stream
from tests.pipeline.topics import (
    BASE_TIME_MS,
    HasAddress,
    Sent,
    connection_options,
    create_topic,
    numbered,
    numbers_of,
    produce,
    read,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HEADERS = "array<struct<key:string,value:binary>>"


def write(table: "DataFrame", broker: HasAddress, **options: str) -> None:
    writer = table.write.format("conveyor").options(**connection_options(broker.bootstrap_servers))
    writer.options(**options).mode("append").save()


def contents(table: "DataFrame") -> list[tuple[object, ...]]:
    """The records without their places, in a fixed order."""
    rows = table.select("key", "value", "timestamp", "headers").collect()
    return sorted((tuple(row) for row in rows), key=repr)


def test_a_topic_is_copied_with_all_that_its_records_have(spark: "SparkSession", broker: Broker, topic: str) -> None:
    check_copy(spark, broker, topic)


def check_copy(spark: "SparkSession", broker: HasAddress, topic: str) -> None:
    """A topic is copied with all that its records have."""
    create_topic(broker, topic, partitions=2)
    create_topic(broker, f"{topic}-copy", partitions=2)
    sent = [
        Sent(value=b"plain", timestamp_ms=BASE_TIME_MS),
        Sent(value=None, key=b"deleted", timestamp_ms=BASE_TIME_MS + 1),
        Sent(value=b"", key=b"", partition=1, timestamp_ms=BASE_TIME_MS + 2),
        Sent(value=bytes(range(256)), headers=(("a", b"1"), ("a", None), ("b", b"")), timestamp_ms=BASE_TIME_MS + 3),
    ]
    produce(broker, topic, sent)
    table = read(spark, broker, topic)
    write(table, broker, topic=f"{topic}-copy")
    copied = read(spark, broker, f"{topic}-copy")
    assert contents(copied) == contents(table)
    places = [(row.partition, row.offset) for row in copied.orderBy("partition", "offset").collect()]
    assert places == [(0, 0), (0, 1), (0, 2), (1, 0)]


def test_rows_can_name_their_topic_and_leave_columns_out(spark: "SparkSession", broker: Broker, topic: str) -> None:
    for name in ("a", "b"):
        create_topic(broker, f"{topic}-{name}")
    table = spark.createDataFrame(
        [(f"{topic}-a", "1"), (f"{topic}-b", "2"), (f"{topic}-a", "3")], "topic string, value string"
    )
    write(table.coalesce(1), broker)
    assert numbers_of(read(spark, broker, f"{topic}-a")) == [1, 3]
    assert numbers_of(read(spark, broker, f"{topic}-b")) == [2]


def test_texts_maps_and_times_become_records(spark: "SparkSession", broker: Broker, topic: str) -> None:
    create_topic(broker, topic)
    moment = datetime(2026, 3, 1, 12, 30, 0, 123_456, tzinfo=UTC)
    schema = "key string, value string, timestamp timestamp, headers map<string,string>"
    write(spark.createDataFrame([("clé", "été", moment, {"tag": "x"})], schema), broker, topic=topic)
    row = read(spark, broker, topic, headersAs="map").collect()[0]
    assert (row.key.decode(), row.value.decode(), row.headers) == ("clé", "été", {"tag": b"x"})
    assert row.timestamp.replace(tzinfo=UTC) == moment.replace(microsecond=123_000)


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("1 AS value", {"topic": "t"}, "column 'value' is int: it must be binary or string; use CAST"),
        ("'x' AS vaule", {"topic": "t"}, "column 'vaule' cannot be written, only topic, key, value"),
        ("'x' AS key", {"topic": "t"}, "column 'value' is missing: select what is to be written AS value"),
        ("'x' AS value", {}, "option 'topic' is missing: set .option\\('topic', ...\\), or add a column 'topic'"),
        ("'x' AS value, 1 AS headers", {"topic": "t"}, "column 'headers' is int: it must be array"),
        ("'x' AS value", {"topic": "t", "delivery": "once"}, "it takes at-least-once or exactly-once"),
        ("'x' AS value", {"topic": "t", "delivery": "exactly-once"}, "option 'jobId' is missing"),
        (
            "'x' AS value",
            {"topic": "t", "jobId": "j"},
            "options 'jobId', 'streamId' and 'markerTopic' are for delivery=exactly-once",
        ),
        ("'x' AS value", {"topic": "t", "acks": "1"}, "unknown option 'acks': there are bootstrap.servers, topic"),
        (
            "'x' AS value",
            {"topic": "t", "kafka.acks": "1"},
            "option 'kafka.acks' cannot be set: the sink sets it itself",
        ),
    ],
)
def test_what_cannot_be_written_is_said_in_one_line(
    spark: "SparkSession", broker: Broker, columns: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=f"PipelineError: .*{message}"):
        write(spark.sql(f"SELECT {columns}"), broker, **options)


def test_a_topic_is_not_overwritten(spark: "SparkSession", broker: Broker, topic: str) -> None:
    writer = spark.sql("SELECT 'x' AS value").write.format("conveyor").option("topic", topic)
    with pytest.raises(Exception, match=r"a topic cannot be overwritten: use \.mode\('append'\)"):
        writer.option("bootstrap.servers", broker.bootstrap_servers).mode("overwrite").save()


def test_records_that_the_broker_refuses_fail_the_write(spark: "SparkSession", broker: Broker, topic: str) -> None:
    create_topic(broker, topic, max_message_bytes="1000")
    table = spark.sql("SELECT repeat('x', 5000) AS value")
    with pytest.raises(Exception, match=f"records were refused: topic '{topic}'"):
        write(table, broker, topic=topic)


def test_an_exactly_once_job_writes_once(spark: "SparkSession", broker: Broker, topic: str) -> None:
    create_topic(broker, topic, partitions=2)
    table = spark.range(0, 1000, 1, 3).selectExpr("CAST(id AS STRING) AS value", "CAST(id AS STRING) AS key")
    for _ in range(2):
        write(table, broker, topic=topic, delivery="exactly-once", jobId=f"{topic}-job")
    assert sorted(numbers_of(read(spark, broker, topic))) == list(range(1000))
    with pytest.raises(Exception, match=r"batch 0 was written before with \d+ rows, and now has"):
        write(table.where("value < 500"), broker, topic=topic, delivery="exactly-once", jobId=f"{topic}-job")
    assert sorted(numbers_of(read(spark, broker, topic))) == list(range(1000))


def test_a_stream_is_copied(spark: "SparkSession", broker: Broker, topic: str, tmp_path: str) -> None:
    create_topic(broker, topic, partitions=2)
    create_topic(broker, f"{topic}-copy", partitions=2)
    for start in (0, 100):
        produce(broker, topic, numbered(range(start, start + 100), partitions=2))
        run_stream(
            spark.readStream.format("conveyor")
            .option("bootstrap.servers", broker.bootstrap_servers)
            .option("topic", topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "30")
            .load()
            .select("key", "value", "timestamp", "headers")
            .writeStream.format("conveyor")
            .option("bootstrap.servers", broker.bootstrap_servers)
            .option("topic", f"{topic}-copy")
            .option("delivery", "exactly-once")
            .queryName(f"copy of {topic}")
            .option("checkpointLocation", f"{tmp_path}/checkpoint")
            .trigger(availableNow=True)
        )
    assert sorted(numbers_of(read(spark, broker, f"{topic}-copy"))) == list(range(200))
