"""`python -m benchmarks.etl` with 20,000 records of the demonstration: a topic, its lake and the topic replayed from it
have one content.
"""

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.etl.content import Content, Record, content_of, content_of_table
from benchmarks.etl.copies import copies
from benchmarks.etl.demo_records import demo_records, keyed_demo_records
from conveyor.testing import Broker
from pyspark_conveyor.flights.flight_events import flights

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT, CHUNK = 20_000, 1_000


def test_source_lake_and_replayed_topic_have_the_same_content(spark: "SparkSession", tmp_path: Path) -> None:
    with Broker(settings={"broker.compaction_check_ms": 20}) as broker:
        found = list(copies(spark, broker.bootstrap_servers, tmp_path, COUNT, CHUNK))
    for topic in ("varied", "compacted"):
        contents = [each.content for each in found if each.topic == topic]
        assert len(contents) == 4
        assert len(set(contents)) == 1, found
        assert contents[0].records > 100
    assert found[0].content.records == COUNT


def test_each_part_of_a_record_counts(spark: "SparkSession") -> None:
    """Otherwise equal hashes would show nothing."""
    full = Record(partition=1, timestamp_ms=5, key=b"k", value=b"v", headers=(("a", b"1"), ("b", None)))
    others = [
        Record(partition=2, timestamp_ms=5, key=b"k", value=b"v", headers=full.headers),
        Record(partition=1, timestamp_ms=6, key=b"k", value=b"v", headers=full.headers),
        Record(partition=1, timestamp_ms=5, key=b"", value=b"v", headers=full.headers),
        Record(partition=1, timestamp_ms=5, key=None, value=b"v", headers=full.headers),
        Record(partition=1, timestamp_ms=5, key=b"kv", value=b"", headers=full.headers),
        Record(partition=1, timestamp_ms=5, key=b"k", value=None, headers=full.headers),
        Record(partition=1, timestamp_ms=5, key=b"k", value=b"v", headers=(("a", b"1"), ("b", b""))),
        Record(partition=1, timestamp_ms=5, key=b"k", value=b"v", headers=(("b", None), ("a", b"1"))),
        Record(partition=1, timestamp_ms=5, key=b"k", value=b"v", headers=(("a", b"1"),)),
        Record(partition=1, timestamp_ms=5, key=b"k", value=b"v"),
    ]
    hashes = {content_of([record]) for record in (full, *others)}
    assert len(hashes) == 1 + len(others)
    records = [full, *others]
    schema = "partition int, timestamp long, key binary, value binary, headers array<struct<key:string,value:binary>>"
    rows = [(each.partition, each.timestamp_ms, each.key, each.value, list(each.headers) or None) for each in records]
    table = spark.createDataFrame(rows, schema).selectExpr(
        "partition", "timestamp_millis(timestamp) AS timestamp", "key", "value", "headers"
    )
    assert content_of_table(table) == content_of(reversed(records))


def test_the_records_are_the_same_each_time_and_have_all_that_records_can_have() -> None:
    records = list(islice(demo_records(), 2_000))
    assert records == list(islice(demo_records(), 2_000))
    assert len({content_of([record]) for record in records}) == len(records)
    assert {None, b"", b"N14228"} < {record.key for record in records}
    assert {None, b""} < {record.value for record in records}
    assert len({event.value for event in islice(flights(), 1_800)} & {record.value for record in records}) > 1_500
    assert {None, b"", b"nycflights13"} < {value for record in records for _, value in record.headers}
    assert () in {record.headers for record in records}
    assert content_of([]) == Content()


def test_the_keys_of_a_compacted_topic_are_repeated_each_in_one_partition() -> None:
    records = list(islice(keyed_demo_records(500), 2_000))
    places = {(record.key, record.partition) for record in records}
    assert len(places) == len({record.key for record in records}) <= 500
    assert len({content_of([record]) for record in records}) == len(records)
