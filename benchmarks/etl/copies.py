"""Source, table, lake and replayed topic, and whether all four have the same content."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.etl.content import Content, content_of, content_of_table
from benchmarks.etl.demo_records import demo_records
from benchmarks.etl.records import Filler, consumed, create, fill_compacted
from pyspark_conveyor.brokers.brokers import Brokers
from pyspark_conveyor.jobs.archive import archive
from pyspark_conveyor.jobs.replay_job import ReplaySelection, ReplayTarget, replay
from pyspark_conveyor.lake.lake_table import read_lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TOPICS = ("varied", "compacted")
_BATCH_RECORDS = 500_000
_COMPACTED_SHARE = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The content of a copy. seconds: how long it took to make and to read it."""

    topic: str
    copy: str
    content: Content
    seconds: float


def copies(spark: "SparkSession", servers: str, directory: Path, count: int, chunk: int) -> Iterator[Found]:
    """Make the copies of a topic with so many records and of a compacted one with a tenth of them, and hash each.

    The first copy of a topic is `sent`: what has been written to it, or what a consumer reads of the compacted one.
    """
    lake = directory / "lake"
    yield _timed("varied", "sent", partial(_fill_varied, servers, count, chunk))
    fewer = partial(fill_compacted, servers, "compacted", count // _COMPACTED_SHARE, max(100, chunk // 10))
    yield _timed("compacted", "sent", fewer)
    for topic in _TOPICS:
        yield _timed(topic, "topic, by Spark", partial(_hash_topic, spark, servers, topic))
    yield _timed("varied", "lake", partial(_archive, spark, servers, lake))
    yield _timed("compacted", "lake", partial(_hash_lake, spark, lake, "compacted"))
    for topic in _TOPICS:
        yield _timed(topic, "replayed topic", partial(_replay, spark, servers, lake, topic))


def _timed(topic: str, copy: str, work: Callable[[], Content]) -> Found:
    started = time.perf_counter()
    content = work()
    return Found(topic=topic, copy=copy, content=content, seconds=time.perf_counter() - started)


def _fill_varied(servers: str, count: int, chunk: int) -> Content:
    create(servers, "varied")
    return Filler(servers, "varied").fill(demo_records(), count, chunk)


def _hash_topic(spark: "SparkSession", servers: str, topic: str) -> Content:
    return content_of_table(
        spark.read.format("conveyor").options(**{"bootstrap.servers": servers, "topic": topic}).load()
    )


def _archive(spark: "SparkSession", servers: str, lake: Path) -> Content:
    """Archive both topics, merge the files, and hash the first one."""
    archive(lambda: spark, Brokers(bootstrap_servers=servers), _TOPICS, lake, _BATCH_RECORDS, _ignore, compacting=True)
    return _hash_lake(spark, lake, "varied")


def _ignore(done: int, total: int) -> None:
    """Nobody looks at the progress."""


def _hash_lake(spark: "SparkSession", lake: Path, topic: str) -> Content:
    return content_of_table(read_lake(spark, lake).where(f"topic = '{topic}'"))


def _replay(spark: "SparkSession", servers: str, lake: Path, topic: str) -> Content:
    """Replay a topic's part of the lake to a new topic, and hash what a consumer reads there."""
    target = ReplayTarget(topic=f"{topic}-replayed", same_partitions=True)
    create(servers, target.topic)
    selection = ReplaySelection(topics=(topic,))
    brokers = Brokers(bootstrap_servers=servers)
    replay(lambda: spark, brokers, lake.resolve(), selection, target, _ignore, slice_records=_BATCH_RECORDS)
    return content_of(consumed(servers, target.topic))
