"""The archive job: copies topics into a lake up to their current end, exactly once, and resumes where the last run
ended.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from conveyor.pipeline.lake.commit_log import CommitLog
from conveyor.pipeline.lake.lake import Lake, open_lake
from conveyor.pipeline.lake.lake_compaction import Compacted, compact
from conveyor.pipeline.lake.lake_parts import publish_parts, remove_leftovers, write_parts
from conveyor.pipeline.pipeline_errors import PipelineError
from conveyor.pipeline.source.source_options import EARLIEST, LATEST, Bounds, SourceOptions
from conveyor.pipeline.source.stream_offsets import from_stored
from conveyor.pipeline.source.topic_bounds import cluster_id, find_topics, offsets_at, raw_client

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Progress = Callable[[int, int], None]
"""Called with the number of archived records and the total."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveResult:
    """The result of a run: the number of records written, the lake's topics, whether the lake is new, and what a
    compaction did.
    """

    records: int
    topics: tuple[str, ...]
    is_new: bool
    compacted: Compacted | None = None


def archive(
    session: Callable[[], "SparkSession"],
    bootstrap: str,
    topics: Sequence[str],
    to: Path,
    batch_records: int,
    progress: Progress,
    *,
    compacting: bool = False,
) -> ArchiveResult:
    """Bring a lake up to date with its topics. Raises PipelineError.

    session: creates the Spark session; called after all other checks.
    batch_records: records of one micro-batch. An interrupted run repeats at most one micro-batch, which is still
    written once.
    compacting: whether to merge the small files of finished days, too.
    """
    options = SourceOptions(bootstrap_servers=bootstrap, topics=tuple(topics))
    with raw_client(options) as client:
        find_topics(client, options)
        cluster = cluster_id(client)
    with open_lake(to, cluster, topics) as lake:
        total = _records_to_read(bootstrap, lake)
        spark = session()
        written = _run(spark, bootstrap, lake, batch_records, lambda done: progress(done, total))
        # Leftovers go first: readers that list directories should see no record of theirs.
        remove_leftovers(lake.path, set(CommitLog(lake.path).paths()))
        compacted = compact(lake.path, datetime.now(UTC).date()) if compacting else None
        return ArchiveResult(records=written, topics=lake.topics, is_new=lake.is_new, compacted=compacted)


def with_day(records: "DataFrame") -> "DataFrame":
    """Return the source's records with the column `day` (date): the day of the timestamp, in UTC."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

    return records.withColumn("day", F.to_date("timestamp"))


def _records_to_read(bootstrap: str, lake: Lake) -> int:
    options = SourceOptions(bootstrap_servers=bootstrap, topics=lake.topics)
    with raw_client(options) as client:
        found = find_topics(client, options)
        ends = offsets_at(client, options, found, LATEST)
        starts = offsets_at(client, options, found, EARLIEST)
    for topic, numbers in _checkpointed(lake.checkpoint).items():
        starts.setdefault(topic, {}).update(numbers)
    return sum(
        max(0, end - starts[topic][number]) for topic, numbers in ends.items() for number, end in numbers.items()
    )


def _checkpointed(checkpoint: Path) -> Bounds:
    """Return the offsets up to which the last committed batch has read."""
    committed = [int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")]
    if not committed:
        return {}
    lines = (checkpoint / "offsets" / str(max(committed))).read_text().splitlines()
    return from_stored(json.loads(lines[-1]))[0]


def _run(spark: "SparkSession", bootstrap: str, lake: Lake, batch_records: int, progress: Callable[[int], None]) -> int:
    from pyspark.errors import StreamingQueryException

    stream = (
        spark.readStream.format("conveyor")
        .option("bootstrap.servers", bootstrap)
        .option("topic", ",".join(lake.topics))
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(batch_records))
        .load()
    )
    written = 0

    def archive_batch(records: "DataFrame", batch: int) -> None:
        nonlocal written
        written += write_batch(with_day(records), lake, batch)
        progress(written)

    try:
        query = (
            stream.writeStream.foreachBatch(archive_batch)
            .option("checkpointLocation", str(lake.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    except StreamingQueryException as error:
        raise PipelineError(_cause(error)) from error
    return written


def write_batch(records: "DataFrame", lake: Lake, batch: int) -> int:
    """Add a micro-batch to a lake, once. Returns the number of records that were added.

    Spark repeats a batch if a run ended before its checkpoint had the batch's commit: the lake's log then has it.
    """
    log = CommitLog(lake.path)
    last = log.last_batch()
    if last is not None and batch <= last:
        return 0
    parts = write_parts(records, lake.path)
    publish_parts(lake.path, parts)
    log.commit(batch, parts)
    return sum(part.records for part in parts)


def _cause(error: Exception) -> str:
    """Return the relevant line of Spark's long report: the Python exception, if there is one."""
    raised = re.findall(r"^([\w.]+(?:Error|Exception)): (.+)$", str(error), re.MULTILINE)
    own = [message for name, message in raised if name.startswith("conveyor.pipeline.")]
    if own:
        return str(own[-1])
    return ": ".join(raised[-1]) if raised else str(error).partition("\n")[0]
