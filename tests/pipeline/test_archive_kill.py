"""SIGKILL and Ctrl-C of an archive job in the middle: the next run leaves each record exactly once."""

import signal
from pathlib import Path
from typing import TYPE_CHECKING

from conveyor.testing import Broker
from pyspark_conveyor.lake.lake_table import read_lake
from tests.pipeline.lakes import BATCH, archive, expected, files, kill_archive, places
from tests.pipeline.topics import create_topic, numbered, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 20_000


def commits(lake: Path) -> int:
    return len(list(lake.glob("_conveyor/checkpoint/commits/[0-9]*")))


def test_a_kill_in_the_middle_leaves_each_record_once(
    spark: "SparkSession", broker: Broker, topic: str, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    create_topic(broker, topic, partitions=2)
    produce(broker, topic, numbered(range(COUNT), partitions=2))
    # Each batch writes one file, and commits later: with more files than commits it is in the middle of one.
    kill_archive(broker, lake, topic, lambda: 0 < commits(lake) < len(files(lake)))
    assert 0 < commits(lake) * BATCH < COUNT
    produce(broker, topic, numbered(range(100), partitions=2))
    archive(broker, lake, topic)
    half = COUNT // 2 + 50
    assert places(lake) == expected(topic, half, half)
    assert read_lake(spark, lake).select("partition", "offset").distinct().count() == 2 * half


def test_an_interrupt_in_the_middle_prints_nothing(broker: Broker, topic: str, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    create_topic(broker, topic, partitions=2)
    produce(broker, topic, numbered(range(COUNT), partitions=2))
    ended = kill_archive(broker, lake, topic, lambda: commits(lake) > 0, signal.SIGINT)
    assert ended == (130, "")
    assert commits(lake) * BATCH < COUNT
    archive(broker, lake, topic)
    assert places(lake) == expected(topic, COUNT // 2, COUNT // 2)
