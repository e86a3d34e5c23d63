"""The mirror job: topics of one cluster to another, each record once, with its partition, order and times.

Each record gets the header `conveyor-mirrored-from`: `<cluster id>/<topic>/<partition>/<offset>`. So the target itself
says how far it is, where a lost checkpoint goes on, and which offset of it belongs to one of the source; and records
that came from the target are not sent back to it.
"""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pyspark_conveyor.brokers.brokers import Brokers
from pyspark_conveyor.brokers.raw_client import RawClient
from pyspark_conveyor.jobs.mirrored_offsets import MIRRORED_FROM, MirroredPlace, last_mirrored
from pyspark_conveyor.jobs.mirrored_topics import create_missing_topics
from pyspark_conveyor.pipeline_errors import PipelineError
from pyspark_conveyor.source.source_options import EARLIEST, Bounds, SourceOptions, whole_topics
from pyspark_conveyor.source.topic_bounds import TopicFound, cluster_id, find_topics, offsets_at, raw_client
from pyspark_conveyor.spark.connectors import Connector, stream_topics
from pyspark_conveyor.spark.query_failure import failure_line
from pyspark_conveyor.spark.stream_runs import run_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_ALL_IN_ONE_TASK = 1 << 31
_HEADERS = "array<struct<key:string,value:binary>>"
_STEP_S = 1
_MANIFEST, _QUERY = "mirror.json", "query"


class MirrorRoute(msgspec.Struct, frozen=True, kw_only=True):
    """From where to where. prefix: of the target's topics."""

    source: Brokers
    target: Brokers
    topics: tuple[str, ...]
    prefix: str = ""

    def target_topic(self, topic: str) -> str:
        return f"{self.prefix}{topic}"


class MirrorIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Identifies the mirror of a checkpoint. connector: reads the source, and stores offsets in a form of its own."""

    source_cluster: str
    target_cluster: str
    topics: tuple[str, ...]
    prefix: str
    connector: Connector = Connector.CONVEYOR


def mirror(
    session: Callable[[], "SparkSession"],
    route: MirrorRoute,
    checkpoint: Path,
    progress: Callable[[int], None],
    *,
    until_end: bool,
    batch_records: int = 100_000,
    connector: Connector = Connector.CONVEYOR,
) -> int:
    """Copy what the target does not have. Returns the number of records. Raises PipelineError.

    session: creates the Spark session; called after all other checks. progress: called with the number of records about
    every second. until_end: end at the present ends of the topics. connector: what reads the source; Conveyor's data
    source writes the target, exactly once and with timestamps, which Spark's own cannot.
    """
    source_options = whole_topics(route.source, route.topics)
    with (
        raw_client(source_options) as source,
        closing(RawClient(route.target.bootstrap_servers, route.target.client)) as target,
    ):
        topics = find_topics(source, source_options)
        identity = MirrorIdentity(
            source_cluster=cluster_id(source),
            target_cluster=cluster_id(target),
            topics=tuple(sorted(topics)),
            prefix=route.prefix,
            connector=connector,
        )
        if identity.source_cluster == identity.target_cluster and not route.prefix:
            raise PipelineError("source and target are the same cluster: give a --prefix for the copies")
        _bind(checkpoint, identity)
        names = {topic: route.target_topic(topic) for topic in topics}
        has_begun = any((checkpoint / _QUERY / "offsets").glob("[0-9]*"))
        create_missing_topics(route.source, route.target, names, may_create=not has_begun)
        start = _start(source, target, source_options, topics, route, identity)
    options = route.source.options | {
        "topic": ",".join(topics),
        "startingOffsets": msgspec.json.encode(start).decode(),
        "maxOffsetsPerTrigger": str(batch_records),
        # One task for each partition keeps the order of its records.
        "maxRecordsPerPartition": str(_ALL_IN_ONE_TASK),
    }
    stream = stream_topics(session(), connector, options)
    writer = (
        mirrored_records(stream, identity, route.prefix)
        .writeStream.format("conveyor")
        .options(**route.target.options)
        .option("delivery", "exactly-once")
        .option("markerTopic", route.target_topic(min(topics)))
        .option("checkpointLocation", str(checkpoint / _QUERY))
    )
    return _run(writer.trigger(availableNow=True) if until_end else writer, progress)


def mirrored_records(records: "DataFrame", identity: MirrorIdentity, prefix: str) -> "DataFrame":
    """Return the source's records as the target gets them: with their place as a header, and without those that came
    from the target.
    """
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

    place = F.concat_ws("/", F.lit(identity.source_cluster), "topic", "partition", "offset")
    mark = F.struct(F.lit(MIRRORED_FROM).alias("key"), place.cast("binary").alias("value"))
    headers = F.coalesce("headers", F.array().cast(_HEADERS))
    came_back = F.exists(
        headers,
        lambda header: (
            (header["key"] == MIRRORED_FROM) & header["value"].cast("string").startswith(f"{identity.target_cluster}/")
        ),
    )
    own = records if identity.source_cluster == identity.target_cluster else records.where(~came_back)
    return own.select(
        F.concat(F.lit(prefix), "topic").alias("topic"),
        "partition",
        "key",
        "value",
        F.concat(headers, F.array(mark)).alias("headers"),
        "timestamp",
    )


def _start(
    source: RawClient,
    target: RawClient,
    options: SourceOptions,
    topics: dict[str, TopicFound],
    route: MirrorRoute,
    identity: MirrorIdentity,
) -> Bounds:
    """Return where a query without a checkpoint begins: after the last record that the target has."""
    start = offsets_at(source, options, topics, EARLIEST)
    for topic, found in topics.items():
        for number in found.partitions:
            place = MirroredPlace(identity.source_cluster, topic, number)
            last = last_mirrored(target, route.target_topic(topic), place)
            start[topic][number] = max(start[topic][number], last + 1)
    return start


def _bind(checkpoint: Path, identity: MirrorIdentity) -> None:
    """Let a checkpoint belong to this mirror. Raises PipelineError if it belongs to another one."""
    manifest = checkpoint / _MANIFEST
    try:
        if manifest.exists():
            _check_identity(checkpoint, msgspec.json.decode(manifest.read_bytes(), type=MirrorIdentity), identity)
            return
        if checkpoint.exists() and any(checkpoint.iterdir()):
            raise PipelineError(f"{checkpoint} holds other files: choose an empty directory for the checkpoint")
        checkpoint.mkdir(parents=True, exist_ok=True)
        replacement = checkpoint / f"{_MANIFEST}.new"
        replacement.write_bytes(msgspec.json.encode(identity))
        replacement.replace(manifest)
    except (OSError, msgspec.DecodeError) as error:
        raise PipelineError(
            f"{checkpoint} cannot be used as a checkpoint ({error}): choose another directory"
        ) from error


def _check_identity(checkpoint: Path, found: MirrorIdentity, wanted: MirrorIdentity) -> None:
    if msgspec.structs.replace(found, connector=wanted.connector) != wanted:
        raise PipelineError(f"{checkpoint} is the checkpoint of another mirror: choose an empty directory")
    if found.connector is not wanted.connector:
        raise PipelineError(
            f"{checkpoint} was written with connector {found.connector.value}: continue with it, or choose an empty"
            " directory, with which the mirror continues after the last record of the target"
        )


def _run(writer: "DataStreamWriter", progress: Callable[[int], None]) -> int:
    from pyspark.errors import StreamingQueryException

    done: dict[int, int] = {}

    def follow(query: "StreamingQuery") -> None:
        finished = False
        while not finished:
            finished = bool(query.awaitTermination(_STEP_S))
            done.update({batch["batchId"]: batch["numInputRows"] for batch in query.recentProgress})
            progress(sum(done.values()))

    try:
        run_stream(writer, follow)
    except StreamingQueryException as error:
        raise PipelineError(failure_line(error)) from error
    return sum(done.values())
