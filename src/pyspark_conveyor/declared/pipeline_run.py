"""Runs a declared pipeline: one streaming query for each sink, and one for the dead letters."""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark_conveyor.declared.pipeline_spec import (
    AVAILABLE_NOW,
    CONTINUOUS,
    DEAD_LETTERS,
    PipelineSpec,
    SinkSpec,
    check_spec,
)
from pyspark_conveyor.declared.pipeline_views import PipelineViews, named_errors, pipeline_views
from pyspark_conveyor.declared.run_directory import (
    QueryProgress,
    RunDirectory,
    RunProgress,
    check_checkpoint,
    open_run,
)
from pyspark_conveyor.jobs.archive import archived, check_connector, write_batch
from pyspark_conveyor.jobs.transform import dead_letters, outgoing_records
from pyspark_conveyor.lake.lake import Lake, open_lake
from pyspark_conveyor.pipeline_errors import PipelineError
from pyspark_conveyor.source.rows import spark_schema
from pyspark_conveyor.source.source_options import whole_topics
from pyspark_conveyor.source.topic_bounds import cluster_id, find_topics, raw_client
from pyspark_conveyor.spark.connectors import stream_writer
from pyspark_conveyor.spark.query_failure import failure_line
from pyspark_conveyor.spark.stream_runs import MOST_STARTS, is_late_start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_POLL_S = 0.2

Observer = Callable[[RunProgress], None]
"""Called about five times a second while a pipeline runs, and once at its end."""


def run_pipeline(
    spec: PipelineSpec, session: Callable[[], "SparkSession"], modules: Path, observer: Observer
) -> RunProgress:
    """Run a pipeline until its end, or until it is asked to stop. Returns what it has done. Raises PipelineError.

    session: creates the Spark session; called after all checks that need none. modules: the directory of the modules
    of functions.
    """
    check_spec(spec)
    with open_run(spec, _check_topics(spec)) as directory, ExitStack() as lakes:
        for name, sink in spec.sinks.items():
            if sink.table:
                directory.bind_table(name, Path(sink.table))
        spark = session().newSession()
        run = _Run(spec, directory, observer)
        with run.reporting():
            views = pipeline_views(spark, spec, modules)
            writers = dict(_writers(spec, views, directory, lakes))
            directory.begin()
            with _stopping_all(run.queries):
                run.start(writers)
                run.wait()
        return run.progress("stopped" if run.is_stopping else "finished")


def check_pipeline(spec: PipelineSpec, session: Callable[[], "SparkSession"], modules: Path) -> None:
    """Check a pipeline as far as it goes without starting a query and without writing. See `run_pipeline`.

    Raises PipelineError for a topic that does not exist, a checkpoint that belongs to another pipeline, a schema, a
    query or a function that cannot work, and columns that a sink does not take.
    """
    check_spec(spec)
    check_checkpoint(spec, _check_topics(spec))
    views = pipeline_views(session().newSession(), spec, modules)
    for _ in _results(spec, views):
        pass


class _Run:
    """A pipeline that runs."""

    def __init__(self, spec: PipelineSpec, directory: RunDirectory, observer: Observer) -> None:
        self.queries: dict[str, StreamingQuery] = {}
        self.is_stopping = False
        self._writers: Mapping[str, DataStreamWriter] = {}
        self._starts: Counter[str] = Counter()
        self._batches_at_request: dict[str, int] = {}
        self._spec, self._directory, self._observer = spec, directory, observer
        self._started_s = time.time()
        self._seen: dict[str, QueryProgress] = {}

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Write down how the block ends."""
        self._report("running")
        try:
            yield
        except KeyboardInterrupt:
            self._report("stopped")
            raise
        except BaseException as error:
            self._report("failed", failure_line(error) or type(error).__name__)
            raise
        self._report("stopped" if self.is_stopping else "finished")

    def start(self, writers: Mapping[str, "DataStreamWriter"]) -> None:
        """Start the queries, by the names of their sinks. Raises PipelineError."""
        self._writers = writers
        for name in writers:
            self._start(name)

    def wait(self) -> None:
        """Return once all queries have ended. Raises PipelineError if one fails."""
        while True:
            active = {name: query for name, query in self.queries.items() if query.isActive}
            has_started_again = self._check()
            if not active and not has_started_again:
                return
            if not self.is_stopping and self._directory.is_stop_requested():
                self.is_stopping = True
                self._batches_at_request = {name: self._batch(name) for name in active}
            for name, query in active.items():
                if self.is_stopping and self._has_ended_batch(name):
                    query.stop()
            time.sleep(_POLL_S)
            self._report("stopping" if self.is_stopping else "running")

    def progress(self, state: Any, error: str = "") -> RunProgress:
        for name in self.queries:
            self._update(name)
        return RunProgress(
            name=self._spec.name,
            pid=os.getpid(),
            state=state,
            started_s=self._started_s,
            updated_s=time.time(),
            queries=dict(self._seen),
            error=error,
        )

    def _check(self) -> bool:
        """Return whether a query was started again. Raises PipelineError if one has failed."""
        has_started_again = False
        for name, query in list(self.queries.items()):
            error = query.exception()
            if error is not None and is_late_start(error) and self._starts[name] < MOST_STARTS:
                self._start(name)
                has_started_again = True
            elif error is not None:
                raise PipelineError(f"sinks.{name}: {failure_line(error)}")
        return has_started_again

    def _start(self, name: str) -> None:
        self._starts[name] += 1
        self.queries[name] = _start(name, self._writers[name], self._spec.trigger)

    def _report(self, state: Any, error: str = "") -> None:
        progress = self.progress(state, error)
        self._directory.write_progress(progress)
        self._observer(progress)

    def _has_ended_batch(self, name: str) -> bool:
        """Return whether a query has ended the micro-batch that it was in when the stop was requested."""
        return self._batch(name) > self._batches_at_request.get(name, -1) or not _is_working(self.queries[name])

    def _batch(self, name: str) -> int:
        last = self.queries[name].lastProgress
        return -1 if last is None else int(last["batchId"])

    def _update(self, name: str) -> None:
        """Add the micro-batches that a query has ended since it was last looked at."""
        seen = self._seen.get(name, QueryProgress())
        for batch in self.queries[name].recentProgress:
            if batch["batchId"] > seen.batch:
                seen = QueryProgress(
                    batch=int(batch["batchId"]),
                    records=seen.records + int(batch["numInputRows"]),
                    input_rate=float(batch.get("inputRowsPerSecond") or 0.0),
                    processing_rate=float(batch.get("processedRowsPerSecond") or 0.0),
                )
        self._seen[name] = seen


def _is_working(query: "StreamingQuery") -> bool:
    status = query.status
    return bool(status["isTriggerActive"] and status["isDataAvailable"])


def _check_topics(spec: PipelineSpec) -> str:
    """Return the id of the cluster. Raises PipelineError if a topic of the pipeline does not exist."""
    topics = [source.topic for source in spec.sources.values()] + spec.topics_written()
    options = whole_topics(spec.brokers, topics)
    with raw_client(options) as client:
        find_topics(client, options)
        return cluster_id(client)


def _writers(
    spec: PipelineSpec, views: PipelineViews, directory: RunDirectory, lakes: ExitStack
) -> Iterator[tuple[str, "DataStreamWriter"]]:
    """Yield the queries to start, by the names of their sinks."""
    for name, result in _results(spec, views):
        sink, checkpoint = spec.sinks[name], directory.query_checkpoint(name)
        with named_errors(f"sinks.{name}"):
            if sink.topic:
                writer = _topic_writer(spec, result, sink.topic, sink)
            elif sink.table:
                writer = result.writeStream.format("parquet").option("path", sink.table)
            else:
                lake = lakes.enter_context(_lake_of(spec, sink))
                check_connector(lake, spec.connector)
                checkpoint, writer = lake.checkpoint, _lake_writer(result, lake)
        yield name, writer.option("checkpointLocation", str(checkpoint))
    if spec.dead_letters and views.decoded:
        bad = dead_letters(views.decoded[0])
        for decoded in views.decoded[1:]:
            bad = bad.unionByName(dead_letters(decoded))
        writer = _topic_writer(spec, bad, spec.dead_letters, None)
        yield DEAD_LETTERS, writer.option("checkpointLocation", str(directory.query_checkpoint(DEAD_LETTERS)))


def _results(spec: PipelineSpec, views: PipelineViews) -> Iterator[tuple[str, "DataFrame"]]:
    """Yield what each sink gets, by the names of the sinks. Raises PipelineError for what a sink cannot take."""
    for name, sink in spec.sinks.items():
        view = views.views[sink.step]
        with named_errors(f"sinks.{name}"):
            if not view.isStreaming:
                raise PipelineError(f"'{sink.step}' reads no topic: name a step that does")
            if sink.lake:
                _check_lake_columns(view)
            result = outgoing_records(view, sink.topic, spec.dead_letters) if sink.topic else view
        yield name, result


def _topic_writer(spec: PipelineSpec, records: "DataFrame", topic: str, sink: SinkSpec | None) -> "DataStreamWriter":
    """Return the writer of a topic. sink: None for the dead letters."""
    delivery = (sink and sink.delivery) or spec.delivery
    options = spec.brokers.options | {"delivery": delivery}
    if sink and sink.stream_id:
        options["streamId"] = sink.stream_id
    if "topic" not in records.columns:
        options["topic"] = topic
    elif delivery == "exactly-once":
        options["markerTopic"] = topic
    return stream_writer(records, (sink and sink.connector) or spec.connector, options)


def _check_lake_columns(view: "DataFrame") -> None:
    wanted = spark_schema().names
    if [name for name in wanted if name not in view.columns] or "day" in view.columns:
        raise PipelineError(f"a lake has the columns of records ({', '.join(wanted)}): use table for other results")


def _lake_of(spec: PipelineSpec, sink: SinkSpec) -> Any:
    topics = [source.topic for source in spec.sources.values()]
    with raw_client(whole_topics(spec.brokers, ())) as client:
        return open_lake(Path(sink.lake), cluster_id(client), topics)


def _lake_writer(view: "DataFrame", lake: Lake) -> "DataStreamWriter":
    def archive_batch(records: "DataFrame", batch: int) -> None:
        write_batch(archived(records.select(*spark_schema().names), lake.schema), lake, batch)

    return view.writeStream.foreachBatch(archive_batch)


def _start(name: str, writer: "DataStreamWriter", trigger: str) -> "StreamingQuery":
    from pyspark.errors import PySparkException

    try:
        if trigger == AVAILABLE_NOW:
            return writer.trigger(availableNow=True).start()
        return (writer if trigger == CONTINUOUS else writer.trigger(processingTime=trigger)).start()
    except PySparkException as error:
        raise PipelineError(f"sinks.{name}: {failure_line(error)}") from error


@contextmanager
def _stopping_all(queries: dict[str, "StreamingQuery"]) -> Iterator[None]:
    """Stop what still runs at the end of the block, also of an interrupted one."""
    try:
        yield
    finally:
        for query in queries.values():
            query.stop()
