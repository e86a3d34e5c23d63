"""The archive job: copies topics into a lake up to their current end, exactly once, and resumes where the last run
ended.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_conveyor.brokers.brokers import Brokers
from pyspark_conveyor.lake.commit_log import CommitLog
from pyspark_conveyor.lake.delta_log import DeltaLog
from pyspark_conveyor.lake.lake import Lake, LakeFormat, open_lake, pin_schema
from pyspark_conveyor.lake.lake_compaction import Compacted, compact
from pyspark_conveyor.lake.lake_parts import publish_parts, remove_hidden, remove_leftovers, write_parts
from pyspark_conveyor.payloads.payload_columns import with_payload
from pyspark_conveyor.payloads.payload_schema import PayloadSchema
from pyspark_conveyor.payloads.schema_request import SchemaRequest, schema_to_pin
from pyspark_conveyor.pipeline_errors import PipelineError
from pyspark_conveyor.source.source_options import EARLIEST, LATEST, Bounds, whole_topics
from pyspark_conveyor.source.stream_offsets import StreamOffset, from_stored, has_topic_ids
from pyspark_conveyor.source.topic_bounds import cluster_id, find_topics, offsets_at, raw_client
from pyspark_conveyor.spark.connectors import Connector, read_topics, stream_topics
from pyspark_conveyor.spark.query_failure import failure_line
from pyspark_conveyor.spark.stream_runs import run_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SAMPLED = 10_000

Progress = Callable[[int, int], None]
"""Called with the number of archived records and the total."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveResult:
    """The result of a run.

    records: written, with bad_records, whose payloads do not match the schema. topics: of the lake.
    """

    records: int
    bad_records: int
    topics: tuple[str, ...]
    is_new: bool
    compacted: Compacted | None = None


def archive(
    session: Callable[[], "SparkSession"],
    brokers: Brokers,
    topics: Sequence[str],
    to: Path,
    batch_records: int,
    progress: Progress,
    *,
    schema: SchemaRequest | None = None,
    compacting: bool = False,
    connector: Connector = Connector.CONVEYOR,
    lake_format: LakeFormat | None = None,
) -> ArchiveResult:
    """Bring a lake up to date with its topics. Raises PipelineError.

    session: creates the Spark session; called after all other checks.
    batch_records: records of one micro-batch. An interrupted run repeats at most one micro-batch, which is still
    written once.
    schema: of the payloads, which then become typed columns; by default, the lake's schema, if it has one.
    compacting: whether to merge the small files of finished days, too.
    connector: what reads the topics; the session must have its settings.
    lake_format: None is that of the lake, for a new one Parquet.
    """
    options = whole_topics(brokers, topics)
    with raw_client(options) as client:
        find_topics(client, options)
        cluster = cluster_id(client)
    with open_lake(to, cluster, topics, lake_format) as lake:
        check_connector(lake, connector)
        total = _records_to_read(brokers, lake)
        spark = session()
        lake = _with_schema(spark, connector, brokers, lake, schema)
        stream = _stream(spark, connector, brokers, lake, batch_records)
        written, bad = _run(stream, lake, lambda done: progress(done, total))
        # Leftovers go first: readers that list directories should see no record of theirs.
        _remove_leftovers(lake)
        compacted = _compact(lake, datetime.now(UTC).date()) if compacting else None
        return ArchiveResult(
            records=written, bad_records=bad, topics=lake.topics, is_new=lake.is_new, compacted=compacted
        )


def _remove_leftovers(lake: Lake) -> None:
    """Remove files of killed runs. A Delta lake keeps published ones, because its earlier versions may have them."""
    if lake.format == "delta":
        remove_hidden(lake.path)
    else:
        remove_leftovers(lake.path, set(lake.log.paths()))
    remove_leftovers(lake.bad_records, set(CommitLog(lake.bad_records).paths()))


def _compact(lake: Lake, today: date) -> Compacted:
    log = lake.log
    return log.compact(today) if isinstance(log, DeltaLog) else compact(lake.path, today)


def _with_schema(
    spark: "SparkSession", connector: Connector, brokers: Brokers, lake: Lake, request: SchemaRequest | None
) -> Lake:
    """Pin the schema of a lake, before any record is written with it."""

    def sample() -> list[bytes]:
        records = read_topics(spark, connector, brokers.options | {"topic": ",".join(lake.topics)})
        values = records.select("value").where("value IS NOT NULL")
        return [row.value for row in values.limit(_SAMPLED).collect()]

    schema = schema_to_pin(request, lake.schema, lake.log.last_batch() is None, sample)
    if schema is None or schema == lake.schema:
        return lake
    if lake.format == "delta" and lake.log.last_batch() is not None:
        raise PipelineError("the schema of a Delta lake does not evolve: archive into an empty directory instead")
    return pin_schema(lake, schema)


def archived(records: "DataFrame", schema: PayloadSchema | None) -> "DataFrame":
    """Return the source's records as a lake has them.

    Adds `day` (date: the day of the timestamp, in UTC) and, with a schema, `payload` (struct) and `reason` (string: why
    the payload does not match the schema, otherwise null).
    """
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

    placed = records.withColumn("day", F.to_date("timestamp"))
    return placed if schema is None else with_payload(placed, schema)


def _records_to_read(brokers: Brokers, lake: Lake) -> int:
    options = whole_topics(brokers, lake.topics)
    with raw_client(options) as client:
        found = find_topics(client, options)
        ends = offsets_at(client, options, found, LATEST)
        starts = offsets_at(client, options, found, EARLIEST)
    for topic, numbers in _checkpointed(lake.checkpoint).items():
        starts.setdefault(topic, {}).update(numbers)
    return sum(
        max(0, end - starts[topic][number]) for topic, numbers in ends.items() for number, end in numbers.items()
    )


def check_connector(lake: Lake, connector: Connector) -> None:
    """Raise PipelineError for a checkpoint that Spark's connector cannot read. The data source reads those of both."""
    planned = [int(path.name) for path in (lake.checkpoint / "offsets").glob("[0-9]*")]
    if connector is Connector.KAFKA and planned and has_topic_ids(_stored_offsets(lake.checkpoint, max(planned))):
        raise PipelineError(
            f"{lake.path} was archived with connector conveyor: continue with it, or use another directory"
        )


def _checkpointed(checkpoint: Path) -> Bounds:
    """Return the offsets up to which the last committed batch has read."""
    committed = [int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")]
    if not committed:
        return {}
    return from_stored(_stored_offsets(checkpoint, max(committed)))[0]


def _stored_offsets(checkpoint: Path, batch: int) -> StreamOffset:
    lines = (checkpoint / "offsets" / str(batch)).read_text().splitlines()
    stored: StreamOffset = json.loads(lines[-1])
    return stored


def _stream(
    spark: "SparkSession", connector: Connector, brokers: Brokers, lake: Lake, batch_records: int
) -> "DataFrame":
    options = brokers.options | {"topic": ",".join(lake.topics), "startingOffsets": "earliest"}
    return stream_topics(spark, connector, options | {"maxOffsetsPerTrigger": str(batch_records)})


def _run(stream: "DataFrame", lake: Lake, progress: Callable[[int], None]) -> tuple[int, int]:
    """Run all micro-batches. Returns the number of records written, and how many of them are bad."""
    from pyspark.errors import StreamingQueryException

    written = bad = 0

    def archive_batch(records: "DataFrame", batch: int) -> None:
        nonlocal written, bad
        good_records, bad_records = write_batch(archived(records, lake.schema), lake, batch)
        written, bad = written + good_records + bad_records, bad + bad_records
        progress(written)

    try:
        run_stream(
            stream.writeStream.foreachBatch(archive_batch)
            .option("checkpointLocation", str(lake.checkpoint))
            .trigger(availableNow=True)
        )
    except StreamingQueryException as error:
        raise PipelineError(failure_line(error)) from error
    return written, bad


def write_batch(records: "DataFrame", lake: Lake, batch: int) -> tuple[int, int]:
    """Add a micro-batch to a lake, once. Returns the numbers of good and of bad records that were added.

    Spark repeats a batch if a run ended before its checkpoint had the batch's commit: the lake's log then has it. The
    commit to the lake's log decides; a repeated batch replaces what its former run committed to the bad records.
    """
    log = lake.log
    last = log.last_batch()
    if last is not None and batch <= last:
        return 0, 0
    good, bad = write_parts(records, lake.path, lake.bad_records)
    if lake.schema is not None:
        publish_parts(lake.bad_records, bad)
        CommitLog(lake.bad_records).commit(batch, bad)
    publish_parts(lake.path, good)
    log.commit(batch, good)
    return sum(part.records for part in good), sum(part.records for part in bad)
