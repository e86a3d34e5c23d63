"""`conveyor pipeline archive`: every record once, by topic and day, however often it is run."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from conveyor.cli.terminal.kafka_client import ClientError
from conveyor.testing import Broker
from pyspark_conveyor.lake.lake_table import read_lake
from tests.pipeline.lakes import archive, expected, places
from tests.pipeline.topics import BASE_TIME_MS, Sent, create_topic, numbered, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("spark")
DAY_MS = 86_400_000
MIDNIGHT_MS = 19_675 * DAY_MS  # 2023-11-14


def test_archiving_twice_writes_each_record_once(broker: Broker, topic: str, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    create_topic(broker, topic, partitions=2)
    produce(broker, topic, numbered(range(1_000), partitions=2))
    assert archive(broker, lake, topic) == f"archived 1,000 records of {topic} to {lake}\n"
    assert archive(broker, lake, topic) == f"archived 0 records of {topic} to {lake}\n"
    produce(broker, topic, numbered(range(1_000, 1_500), partitions=2))
    assert archive(broker, lake, topic) == f"archived 500 records of {topic} to {lake}\n"
    assert places(lake) == expected(topic, 750, 750)


def test_the_lake_is_laid_out_by_topic_and_day(broker: Broker, topic: str, tmp_path: Path) -> None:
    stamps = [MIDNIGHT_MS, MIDNIGHT_MS + DAY_MS - 1, MIDNIGHT_MS + DAY_MS, MIDNIGHT_MS - 1]
    create_topic(broker, topic)
    produce(broker, topic, [Sent(timestamp_ms=stamp) for stamp in stamps])
    archive(broker, tmp_path, topic)
    days = sorted(each.parent.relative_to(tmp_path) for each in tmp_path.glob("**/*.parquet"))
    assert days == [Path(f"topic={topic}/day=2023-11-{day}") for day in (13, 14, 15)]


def test_the_lake_keeps_every_part_of_a_record(
    spark: "SparkSession", broker: Broker, topic: str, tmp_path: Path
) -> None:
    headers: tuple[tuple[str, bytes | None], ...] = (("a", b"1"), ("a", None))
    create_topic(broker, topic)
    produce(broker, topic, [Sent(key=b"k", value=b"\x00", headers=headers, timestamp_ms=BASE_TIME_MS + 7), Sent()])
    archive(broker, tmp_path, topic)
    table = read_lake(spark, tmp_path).selectExpr("*", "unix_millis(timestamp) AS ms").orderBy("offset")
    first, second = table.collect()
    assert (first.topic, first.key, first.value, first.ms) == (topic, b"k", b"\x00", BASE_TIME_MS + 7)
    assert [tuple(each) for each in first.headers] == list(headers)
    assert (second.key, second.headers, str(second.day)) == (None, None, "2023-11-14")


def test_a_topic_whose_name_is_a_number_keeps_it(
    spark: "SparkSession", broker: Broker, topic: str, tmp_path: Path
) -> None:
    name = f"0{int(topic[-8:], 16)}"
    create_topic(broker, name)
    produce(broker, name, [Sent()])
    archive(broker, tmp_path, name)
    assert [row.topic for row in read_lake(spark, tmp_path).collect()] == [name]


def test_a_lake_without_records_is_an_empty_table(
    spark: "SparkSession", broker: Broker, topic: str, tmp_path: Path
) -> None:
    create_topic(broker, topic)
    assert archive(broker, tmp_path, topic) == f"archived 0 records of {topic} to {tmp_path}\n"
    assert read_lake(spark, tmp_path).count() == 0


def test_a_topic_can_be_added_later(broker: Broker, topic: str, tmp_path: Path) -> None:
    second = f"{topic}-second"
    for name in (topic, second):
        create_topic(broker, name)
        produce(broker, name, numbered(range(10)))
    archive(broker, tmp_path, topic)
    produce(broker, topic, numbered(range(5)))
    assert f"archived 15 records of {topic}, {second} to" in archive(broker, tmp_path, second)
    assert places(tmp_path) == [*expected(topic, 15), *expected(second, 10)]


def test_a_batch_that_only_the_lake_has_committed_is_not_added_again(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    create_topic(broker, topic)
    produce(broker, topic, numbered(range(10)))
    archive(broker, tmp_path, topic)
    for name in ("0", ".0.crc"):
        (tmp_path / "_conveyor" / "checkpoint" / "commits" / name).unlink()
    produce(broker, topic, numbered(range(5)))
    archive(broker, tmp_path, topic)
    assert places(tmp_path) == expected(topic, 15)


def test_a_batch_that_was_published_but_not_committed_is_written_again(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    create_topic(broker, topic)
    produce(broker, topic, numbered(range(10)))
    archive(broker, tmp_path, topic)
    for name in ("_spark_metadata/0.compact", "_conveyor/checkpoint/commits/0", "_conveyor/checkpoint/commits/.0.crc"):
        (tmp_path / name).unlink()
    archive(broker, tmp_path, topic)
    assert places(tmp_path) == expected(topic, 10)


@pytest.mark.parametrize("bad", ["topic", "bootstrap"])
def test_what_cannot_be_archived_is_said_in_one_line(
    broker: Broker, topic: str, tmp_path: Path, bad: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_conveyor.brokers.raw_client._CONNECT_MS", 500)
    with Broker(memory=True) as other:
        stopped = other
    expected_message = "unknown topic" if bad == "topic" else "no broker answers at"
    with pytest.raises(ClientError, match=expected_message) as raised:
        archive(broker if bad == "topic" else stopped, tmp_path / "lake", topic)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "lake").exists()
