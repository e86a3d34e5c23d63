"""The replay job: writes the records of a lake to a topic again, exactly once, in order within each source partition.

The records are written slice by slice. A slice is a range of offsets, the same in all partitions, and one batch of an
exactly-once write. With a job id, the offset of the group `conveyor.replay.<job id>` is the number of slices that are
written, and its metadata identifies the plan, so an interrupted job continues and never changes its plan.

At-least-once writes have the same slices, and no transactions: the slice in which a job was interrupted may be written
twice.
"""

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec

from pyspark_conveyor.brokers.brokers import Brokers
from pyspark_conveyor.jobs.replay_progress import ReplayProgress
from pyspark_conveyor.lake.lake import Manifest, read_manifest
from pyspark_conveyor.lake.lake_table import read_bad_records, read_lake
from pyspark_conveyor.pipeline_errors import PipelineError
from pyspark_conveyor.sink.sink_options import DeliveryGuarantee
from pyspark_conveyor.source.source_options import whole_topics
from pyspark_conveyor.source.topic_bounds import find_topics, raw_client
from pyspark_conveyor.spark.connectors import AT_LEAST_ONCE_ONLY, Connector, batch_writer
from pyspark_conveyor.spark.failed_jobs import spark_errors_in_one_line

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SLICE_RECORDS = 200_000
_MOST_TASKS = 16
_ONLY_FOR = "conveyor-only-for"
"""The header that names the only subscription to receive a message."""

Progress = Callable[[int, int], None]
"""Called with the number of replayed records and the total."""


class ReplaySelection(msgspec.Struct, frozen=True, kw_only=True):
    """The records to replay.

    topics: of the lake; none for all. since_ms, until_ms: of the records' timestamps, in ms since 1970; the second is
    exclusive. where: an SQL expression over the lake's columns, value_text and key_text; empty for all.
    """

    topics: tuple[str, ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    where: str = ""


class ReplayTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The destination of the records.

    only_for: the only subscription that receives them. same_partitions: whether they keep their partition numbers.
    """

    topic: str
    only_for: str | None = None
    same_partitions: bool = False


class ReplayPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The records that a replay writes.

    width: offsets of a slice. slices: (offset // width, record count), in order.
    """

    lake_id: str
    selection: ReplaySelection
    target: ReplayTarget
    partitions: int
    width: int
    tasks: int
    slices: tuple[tuple[int, int], ...]
    delivery: DeliveryGuarantee = DeliveryGuarantee.EXACTLY_ONCE
    connector: Connector = Connector.CONVEYOR

    @property
    def total(self) -> int:
        return sum(count for _, count in self.slices)

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()


def replay(
    session: Callable[[], "SparkSession"],
    brokers: Brokers,
    lake: Path,
    selection: ReplaySelection,
    target: ReplayTarget,
    progress: Progress,
    *,
    rate: float | None = None,
    job_id: str | None = None,
    slice_records: int = SLICE_RECORDS,
    delivery: DeliveryGuarantee = DeliveryGuarantee.EXACTLY_ONCE,
    connector: Connector = Connector.CONVEYOR,
) -> int:
    """Write the selected records of a lake to a topic. Returns the number that this run wrote. Raises PipelineError.

    session: creates the Spark session; called after all checks that need none. rate: most records per second.
    job_id: names the replay, so that a repetition writes only what is missing; without it, every run writes all.
    slice_records: about the number of records of one transaction, at most a second's worth of the rate.
    connector: what writes; Spark's own writes at least once only, and gives the records the present time.
    """
    if connector is Connector.KAFKA and delivery is DeliveryGuarantee.EXACTLY_ONCE:
        raise PipelineError(AT_LEAST_ONCE_ONLY)
    manifest = _manifest(lake, selection.topics)
    options = whole_topics(brokers, [target.topic])
    with raw_client(options) as client:
        partitions = len(find_topics(client, options)[target.topic].partitions)
    with spark_errors_in_one_line():
        records = _lake_records(session(), lake, manifest)
        with spark_errors_in_one_line("--where cannot be used"):
            chosen = selected(records, selection)
        wanted = slice_records if rate is None else max(1, min(slice_records, int(rate)))
        plan = _plan(chosen, manifest.lake_id, selection, target, partitions, wanted)
        plan = msgspec.structs.replace(plan, delivery=delivery, connector=connector)
        return _write_slices(chosen, plan, brokers, job_id, rate, progress)


def selected(records: "DataFrame", selection: ReplaySelection) -> "DataFrame":
    """Return the selected records of a lake (the source's columns, `day`, and perhaps `payload`), unchanged."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

    columns = records.columns
    chosen = records.where(F.col("topic").isin(*selection.topics)) if selection.topics else records
    if selection.since_ms is not None:
        since = F.expr(f"timestamp_millis({selection.since_ms})")
        chosen = chosen.where((F.col("day") >= F.to_date(since)) & (F.col("timestamp") >= since))
    if selection.until_ms is not None:
        until = F.expr(f"timestamp_millis({selection.until_ms})")
        chosen = chosen.where((F.col("day") <= F.to_date(until)) & (F.col("timestamp") < until))
    if not selection.where:
        return chosen
    texts = chosen.withColumn("value_text", F.col("value").cast("string"))
    return texts.withColumn("key_text", F.col("key").cast("string")).where(selection.where).select(columns)


def outgoing_records(records: "DataFrame", target: ReplayTarget, partitions: int, tasks: int) -> "DataFrame":
    """Return a lake's records as the sink takes them (key, value, headers, timestamp, partition), each source
    partition in one Spark partition and in the order of its offsets.

    The partition is the record's own one; or null for records with a key, which the sink then places by the key.
    partitions: of the target. tasks: the number of Spark partitions.
    """
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

    ordered = records.repartition(tasks, "topic", "partition").sortWithinPartitions("topic", "partition", "offset")
    number = F.col("partition")
    if not target.same_partitions:
        number = F.when(F.col("key").isNull(), F.pmod(number, F.lit(partitions)))
    headers = F.col("headers")
    if target.only_for is not None:
        kept = F.filter(F.coalesce(headers, F.array().cast("array<struct<key:string,value:binary>>")), _is_not_only_for)
        addressee = F.struct(
            F.lit(_ONLY_FOR).alias("key"), F.lit(target.only_for).cast("string").cast("binary").alias("value")
        )
        headers = F.concat(kept, F.array(addressee))
    return ordered.select("key", "value", headers.alias("headers"), "timestamp", number.cast("int").alias("partition"))


def _is_not_only_for(header: "Column") -> "Column":
    return header["key"] != _ONLY_FOR


def _manifest(lake: Path, topics: tuple[str, ...]) -> Manifest:
    manifest = read_manifest(lake)
    if manifest is None:
        raise PipelineError(f"{lake} is not a lake: name a directory that 'conveyor pipeline archive' has written")
    if manifest.path != str(lake):
        raise PipelineError(f"{lake} was made as {manifest.path}, a path that its log contains: move it back")
    unknown = [topic for topic in topics if topic not in manifest.topics]
    if unknown:
        raise PipelineError(f"topic '{unknown[0]}' is not in {lake}, which has {', '.join(manifest.topics)}")
    return manifest


def _lake_records(spark: "SparkSession", lake: Path, manifest: Manifest) -> "DataFrame":
    """Return all records of a lake, also those whose payloads do not match its schema."""
    records = read_lake(spark, lake)
    if manifest.schema is None:
        return records
    return records.unionByName(read_bad_records(spark, lake).drop("reason"), allowMissingColumns=True)


def _plan(
    chosen: "DataFrame",
    lake_id: str,
    selection: ReplaySelection,
    target: ReplayTarget,
    partitions: int,
    slice_records: int,
) -> ReplayPlan:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

    sources = chosen.select("topic", "partition").distinct().collect()
    highest = max((row.partition for row in sources), default=0)
    if target.same_partitions and highest >= partitions:
        raise PipelineError(
            f"topic '{target.topic}' has {partitions} partitions, and the lake has records of partition {highest}:"
            " add partitions with 'conveyor topic alter', or leave out --same-partitions"
        )
    width = max(1, slice_records // max(1, len(sources)))
    number = F.floor(F.col("offset") / width).alias("number")
    counts = chosen.groupBy(number).count().orderBy("number").collect()
    return ReplayPlan(
        lake_id=lake_id,
        selection=selection,
        target=target,
        partitions=partitions,
        width=width,
        tasks=max(1, min(_MOST_TASKS, len(sources))),
        slices=tuple((row["number"], row["count"]) for row in counts),
    )


def _write_slices(
    chosen: "DataFrame", plan: ReplayPlan, brokers: Brokers, job_id: str | None, rate: float | None, progress: Progress
) -> int:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

    kept = None if job_id is None else ReplayProgress(brokers, job_id, plan.target.topic, plan.fingerprint)
    first = 0 if kept is None else kept.slices_written()
    done = skipped = sum(count for _, count in plan.slices[:first])
    writer_id = f"replay.{job_id or uuid4()}"
    started = time.monotonic()
    for number in range(first, len(plan.slices)):
        place, count = plan.slices[number]
        if rate is not None:
            time.sleep(max(0.0, started + (done - skipped) / rate - time.monotonic()))
        offset = F.col("offset")
        rows = chosen.where((offset >= place * plan.width) & (offset < (place + 1) * plan.width))
        _write_slice(outgoing_records(rows, plan.target, plan.partitions, plan.tasks), plan, brokers, writer_id, number)
        if kept is not None:
            kept.note(number + 1)
        done += count
        progress(done, plan.total)
    return done - skipped


def _write_slice(rows: "DataFrame", plan: ReplayPlan, brokers: Brokers, writer_id: str, number: int) -> None:
    options = brokers.options | {"topic": plan.target.topic, "delivery": plan.delivery.value}
    if plan.delivery is DeliveryGuarantee.EXACTLY_ONCE:
        options |= {"jobId": writer_id, "batchNumber": str(number)}
    if plan.connector is Connector.KAFKA:
        rows = rows.drop("timestamp")
    batch_writer(rows, plan.connector, options).save()
