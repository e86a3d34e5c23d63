"""What a batch read can be told: patterns, partitions, isolation, maps, filters; and what compaction has left."""

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from conveyor.testing import Broker
from tests.pipeline.topics import BASE_TIME_MS, Sent, create_topic, numbered, numbers_of, produce, read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def tasks(table: "DataFrame") -> int:
    return int(table.rdd.getNumPartitions())


def test_a_pattern_reads_all_topics_whose_whole_name_matches(spark: "SparkSession", broker: Broker, topic: str) -> None:
    for number, name in enumerate((f"{topic}-a", f"{topic}-b", f"{topic}-b-not")):
        create_topic(broker, name)
        produce(broker, name, numbered([number]))
    table = spark.read.format("conveyor").option("bootstrap.servers", broker.bootstrap_servers)
    assert sorted(numbers_of(table.option("topicPattern", f"{topic}-[ab]").load())) == [0, 1]
    with pytest.raises(Exception, match=r"no topic matches 'nothing\.\*'"):
        table.option("topicPattern", "nothing.*").load().collect()
    with pytest.raises(Exception, match="options 'topic' and 'topicPattern' are both set"):
        table.option("topicPattern", "a").option("topic", "b").load().collect()


def test_ranges_are_divided_into_at_least_some_partitions(spark: "SparkSession", broker: Broker, topic: str) -> None:
    create_topic(broker, topic, partitions=2)
    produce(broker, topic, numbered(range(100), partitions=2))
    assert tasks(read(spark, broker, topic)) == 2
    divided = read(spark, broker, topic, minPartitions=8)
    assert tasks(divided) == 8
    assert sorted(numbers_of(divided)) == list(range(100))


def test_aborted_and_open_transactions_are_read_only_on_request(
    spark: "SparkSession", broker: Broker, topic: str
) -> None:
    create_topic(broker, topic)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions()
    for number in range(6):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number)
        producer.flush()
        (producer.commit_transaction if number % 2 else producer.abort_transaction)()
    producer.begin_transaction()
    producer.produce(topic, b"6")
    producer.flush()
    assert numbers_of(read(spark, broker, topic)) == [1, 3, 5]
    assert numbers_of(read(spark, broker, topic, isolationLevel="read_uncommitted")) == list(range(7))
    producer.abort_transaction()


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        ("partition = 1 AND offset >= 45", [91, 93, 95, 97, 99]),
        (f"timestamp >= timestamp_millis({BASE_TIME_MS + 96_000})", [96, 97, 98, 99]),
        ("offset < 2 OR offset = 49", [0, 1, 2, 3, 98, 99]),
        ("offset > 1000", []),
        ("offset > 45 AND value = '95'", [95]),
    ],
)
def test_filters_narrow_what_is_fetched(
    spark: "SparkSession", broker: Broker, topic: str, condition: str, wanted: list[int]
) -> None:
    create_topic(broker, topic, partitions=2)
    produce(broker, topic, numbered(range(100), partitions=2))
    assert sorted(numbers_of(read(spark, broker, topic, filterPushdown="true").where(condition))) == wanted
    assert tasks(read(spark, broker, topic, filterPushdown="true").where("partition = 1")) == 1


def test_spark_still_applies_a_pushed_filter_to_other_uses_of_the_table(
    spark: "SparkSession", broker: Broker, topic: str
) -> None:
    """Why pushdown is off by default. If this fails, Spark has been mended, and it can be on."""
    create_topic(broker, topic)
    produce(broker, topic, numbered(range(100)))
    table = read(spark, broker, topic, filterPushdown="true")
    assert table.where("offset >= 90").count() == 10
    assert table.count() == 10
    safe = read(spark, broker, topic)
    assert (safe.where("offset >= 90").count(), safe.count()) == (10, 100)


def test_headers_can_be_a_map(spark: "SparkSession", broker: Broker, topic: str) -> None:
    create_topic(broker, topic)
    produce(broker, topic, [Sent(headers=(("a", b"1"), ("b", None), ("a", b"2"))), Sent()])
    rows = read(spark, broker, topic, headersAs="map").select("headers").collect()
    assert [row.headers for row in rows] == [{"a": b"2", "b": None}, None]


def test_what_compaction_has_left_is_read(spark: "SparkSession", broker: Broker, topic: str) -> None:
    create_topic(broker, topic, cleanup_policy="compact", segment_bytes="2000", min_cleanable_dirty_ratio="0.01")
    for first in range(0, 300, 100):
        produce(broker, topic, [Sent(value=b"%d" % (first + key), key=b"%d" % key) for key in range(100)])
    found = numbers_of(read(spark, broker, topic))
    assert found == sorted(found)
    assert set(range(200, 300)) <= set(found)
