"""A topic as a Spark table: what a row says, and that it says it for every record."""

from typing import TYPE_CHECKING

from conveyor.testing import Broker
from tests.pipeline.topics import BASE_TIME_MS, Sent, create_topic, numbered, numbers_of, produce, read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = (
    "topic string, partition int, offset bigint, timestamp timestamp, timestampType int, key binary, value binary,"
    " headers array<struct<key:string,value:binary>>"
)
YEAR_9999_MS = 253_402_300_799_999


def test_a_topic_has_the_documented_columns(spark: "SparkSession", broker: Broker, topic: str) -> None:
    create_topic(broker, topic)
    table = read(spark, broker, topic)
    assert ", ".join(f"{name} {kind}" for name, kind in table.dtypes) == SCHEMA
    assert [each.name for each in table.schema if not each.nullable] == SCHEMA.replace(",", "").split()[0:10:2]


def test_an_empty_topic_is_an_empty_table(spark: "SparkSession", broker: Broker, topic: str) -> None:
    create_topic(broker, topic, partitions=2)
    assert read(spark, broker, topic).count() == 0


def test_a_row_holds_every_part_of_its_record(spark: "SparkSession", broker: Broker, topic: str) -> None:
    headers: tuple[tuple[str, bytes | None], ...] = (("a", b"1"), ("none", None), ("empty", b""), ("a", b"\x00\xff"))
    create_topic(broker, topic, partitions=2)
    produce(broker, topic, [Sent(key=b"key", value=b"\x00value", partition=1, headers=headers)])
    (row,) = read(spark, broker, topic).collect()
    assert (row.topic, row.partition, row.offset, row.timestampType) == (topic, 1, 0, 0)
    assert (row.key, row.value) == (b"key", b"\x00value")
    assert [tuple(each) for each in row.headers] == list(headers)


def test_keys_and_values_keep_null_and_empty_apart(spark: "SparkSession", broker: Broker, topic: str) -> None:
    pairs = [(None, None), (b"", b""), (None, b"v"), (b"k", None), (b"k", b"")]
    create_topic(broker, topic)
    produce(broker, topic, [Sent(key=key, value=value) for key, value in pairs])
    rows = read(spark, broker, topic).collect()
    assert [(row.key, row.value) for row in rows] == pairs
    assert [row.headers for row in rows] == [None] * len(pairs)


def test_headers_stay_away_when_they_are_not_wanted(spark: "SparkSession", broker: Broker, topic: str) -> None:
    create_topic(broker, topic)
    produce(broker, topic, [Sent(headers=(("a", b"1"),))])
    (row,) = read(spark, broker, topic, includeHeaders="false").collect()
    assert row.headers is None
    assert row.value == b"value"


def test_timestamps_are_exact_to_the_millisecond(spark: "SparkSession", broker: Broker, topic: str) -> None:
    stamps = [1, 999, 1_000, BASE_TIME_MS + 123, 1_700_000_000_999, YEAR_9999_MS]
    create_topic(broker, topic, message_timestamp_after_max_ms=str(2**63 - 1))
    produce(broker, topic, [Sent(timestamp_ms=stamp) for stamp in stamps])
    table = read(spark, broker, topic).selectExpr("unix_micros(timestamp) AS us")
    assert [row.us for row in table.collect()] == [stamp * 1000 for stamp in stamps]


def test_a_timestamp_beyond_all_calendars_does_not_end_the_query(
    spark: "SparkSession", broker: Broker, topic: str
) -> None:
    create_topic(broker, topic, message_timestamp_after_max_ms=str(2**63 - 1))
    produce(broker, topic, [Sent(timestamp_ms=2**62), Sent(timestamp_ms=BASE_TIME_MS)])
    table = read(spark, broker, topic).selectExpr("unix_millis(timestamp) AS ms")
    assert [row.ms for row in table.collect()] == [YEAR_9999_MS, BASE_TIME_MS]


def test_a_timestamp_of_the_broker_is_marked_as_such(spark: "SparkSession", broker: Broker, topic: str) -> None:
    create_topic(broker, topic, message_timestamp_type="LogAppendTime")
    produce(broker, topic, [Sent(timestamp_ms=1)])
    (row,) = read(spark, broker, topic).selectExpr("timestampType", "unix_millis(timestamp) AS ms").collect()
    assert row.timestampType == 1
    assert row.ms > BASE_TIME_MS


def test_each_partition_is_whole_and_in_the_order_of_offsets(spark: "SparkSession", broker: Broker, topic: str) -> None:
    create_topic(broker, topic, partitions=3)
    produce(broker, topic, numbered(range(30_000), partitions=3))
    rows = read(spark, broker, topic).select("partition", "offset", "value").collect()
    for partition in range(3):
        found = [(row.offset, int(row.value)) for row in rows if row.partition == partition]
        assert found == [(offset, offset * 3 + partition) for offset in range(10_000)]


def test_long_partitions_are_read_in_several_ranges(spark: "SparkSession", broker: Broker, topic: str) -> None:
    create_topic(broker, topic, partitions=2)
    produce(broker, topic, numbered(range(2_000), partitions=2))
    whole, parts = read(spark, broker, topic), read(spark, broker, topic, maxRecordsPerPartition=300)
    assert whole.rdd.getNumPartitions() == 2
    assert parts.rdd.getNumPartitions() == 8
    assert sorted(numbers_of(parts)) == list(range(2_000))


def test_several_topics_are_one_table(spark: "SparkSession", broker: Broker, topic: str) -> None:
    for name, value in ((topic, b"1"), (f"{topic}-b", b"2"), (f"{topic}-c", b"3")):
        create_topic(broker, name)
        produce(broker, name, [Sent(value=value)])
    rows = read(spark, broker, f"{topic}, {topic}-b,{topic}").collect()
    assert sorted((row.topic, row.value) for row in rows) == [(topic, b"1"), (f"{topic}-b", b"2")]


def test_columns_can_be_chosen_and_filtered(spark: "SparkSession", broker: Broker, topic: str) -> None:
    create_topic(broker, topic, partitions=2)
    produce(broker, topic, numbered(range(100), partitions=2))
    table = read(spark, broker, topic).where("partition = 1 AND offset >= 40").select("value", "partition")
    assert table.columns == ["value", "partition"]
    assert sorted(numbers_of(table)) == list(range(81, 100, 2))


def test_a_limit_ends_the_reading_early(spark: "SparkSession", broker: Broker, topic: str) -> None:
    create_topic(broker, topic)
    produce(broker, topic, numbered(range(25_000)))
    assert numbers_of(read(spark, broker, topic).limit(3)) == [0, 1, 2]


def test_sql_reads_a_topic_through_a_view(spark: "SparkSession", broker: Broker, topic: str) -> None:
    create_topic(broker, topic)
    produce(broker, topic, numbered(range(10)))
    read(spark, broker, topic).createOrReplaceTempView("some_topic")
    (row,) = spark.sql("SELECT sum(CAST(CAST(value AS STRING) AS INT)) AS total FROM some_topic").collect()
    assert row.total == 45


def test_a_record_of_a_megabyte_is_read(spark: "SparkSession", broker: Broker, topic: str) -> None:
    large = bytes(range(256)) * 3_900
    create_topic(broker, topic)
    produce(broker, topic, [Sent(value=large), Sent(value=b"small"), Sent(value=large)])
    assert [row.value for row in read(spark, broker, topic).collect()] == [large, b"small", large]
