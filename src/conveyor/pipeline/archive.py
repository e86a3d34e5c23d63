"""The archive job: topics into a lake, as far as they reach now, exactly once, going on where it stopped."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlparse

from conveyor.pipeline.lake import Lake, open_lake, remove_leftovers
from conveyor.pipeline.offset_client import consumer, latest_bounds, resolve
from conveyor.pipeline.options import EARLIEST, Bounds, SourceOptions
from conveyor.pipeline.pipeline_errors import PipelineError
from conveyor.pipeline.rows import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_STEP_S = 1

Progress = Callable[[int, int], None]
"""Told how many records are archived, of how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveResult:
    """What a run has done: records written now, and the topics of the lake."""

    records: int
    topics: tuple[str, ...]
    is_new: bool


def archive(
    session: Callable[[], "SparkSession"],
    bootstrap: str,
    topics: Sequence[str],
    to: Path,
    batch_records: int,
    progress: Progress,
) -> ArchiveResult:
    """Bring a lake up to date with its topics. Raises PipelineError.

    session: asked for Spark once everything else is known to be in order.
    batch_records: records of one micro-batch; a run that is cut off repeats at most one, and writes it once.
    """
    options = SourceOptions(bootstrap_servers=bootstrap, topics=tuple(topics))
    with consumer(options) as client:
        latest_bounds(client, options)
        cluster_id = client.list_topics(timeout=30).cluster_id or ""
    with open_lake(to, cluster_id, topics) as lake:
        total = _records_to_read(bootstrap, lake)
        spark = session()
        written = _run(spark, bootstrap, lake, batch_records, lambda done: progress(done, total))
        remove_leftovers(lake.path, _counted_files(spark, lake.path))
        return ArchiveResult(records=written, topics=lake.topics, is_new=lake.is_new)


def read_lake(spark: "SparkSession", path: Path) -> "DataFrame":
    """The lake as a DataFrame: the source's columns, and `day` (date, UTC, of the record's timestamp)."""
    from pyspark.sql import types as T  # noqa: N812 - Spark's own habit

    # Left to itself, Spark takes a topic called 2024 for a number, and finds no columns in a lake without records.
    schema = spark_schema().add("day", T.DateType())
    return spark.read.schema(schema).parquet(str(path)).select(schema.names)


def _counted_files(spark: "SparkSession", path: Path) -> set[str]:
    """The names of the files that batches have committed."""
    return {unquote(urlparse(uri).path).rpartition("/")[2] for uri in read_lake(spark, path).inputFiles()}


def _records_to_read(bootstrap: str, lake: Lake) -> int:
    options = SourceOptions(bootstrap_servers=bootstrap, topics=lake.topics)
    with consumer(options) as client:
        ends = latest_bounds(client, options)
        starts = resolve(client, options, EARLIEST, None)
    for topic, numbers in _checkpointed(lake.checkpoint).items():
        starts.setdefault(topic, {}).update(numbers)
    return sum(max(0, end - starts[topic][number]) for topic, each in ends.items() for number, end in each.items())


def _checkpointed(checkpoint: Path) -> Bounds:
    """How far the last committed batch has read."""
    committed = [int(each.name) for each in (checkpoint / "commits").glob("[0-9]*")]
    if not committed:
        return {}
    lines = (checkpoint / "offsets" / str(max(committed))).read_text().splitlines()
    return {topic: {int(key): end for key, end in each.items()} for topic, each in json.loads(lines[-1]).items()}


def _run(spark: "SparkSession", bootstrap: str, lake: Lake, batch_records: int, progress: Callable[[int], None]) -> int:
    from pyspark.errors import StreamingQueryException
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

    stream = (
        spark.readStream.format("conveyor")
        .option("bootstrap.servers", bootstrap)
        .option("topic", ",".join(lake.topics))
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(batch_records))
        .load()
    )
    # Each day is written by one task: with a file per task and day, opening files would take most of the time.
    query = (
        stream.withColumn("day", F.to_date("timestamp"))
        .repartition("topic", "day")
        .writeStream.format("parquet")
        .partitionBy("topic", "day")
        .option("path", str(lake.path))
        .option("checkpointLocation", str(lake.checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    done: dict[int, int] = {}
    try:
        finished = False
        while not finished:
            finished = bool(query.awaitTermination(_STEP_S))
            done |= {each["batchId"]: each["numInputRows"] for each in query.recentProgress}
            progress(sum(done.values()))
    except StreamingQueryException as error:
        raise PipelineError(_cause(error)) from error
    return sum(done.values())


def _cause(error: Exception) -> str:
    """The line of Spark's long report that says what was wrong: the Python exception, if one is in it."""
    raised = re.findall(r"^([\w.]+(?:Error|Exception)): (.+)$", str(error), re.MULTILINE)
    own = [message for name, message in raised if name.startswith("conveyor.pipeline.")]
    if own:
        return str(own[-1])
    return ": ".join(raised[-1]) if raised else str(error).partition("\n")[0]
