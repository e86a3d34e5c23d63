"""The declaration of a pipeline, and the checks that need neither a broker nor Spark. Pure."""

import re
from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from pyspark_conveyor.brokers.brokers import Brokers
from pyspark_conveyor.jobs.transform import ValueFormat
from pyspark_conveyor.pipeline_errors import PipelineError
from pyspark_conveyor.spark.connectors import AT_LEAST_ONCE_ONLY, Connector

Delivery = Literal["exactly-once", "at-least-once"]
AVAILABLE_NOW, CONTINUOUS = "available-now", "continuous"
DEAD_LETTERS = "dead_letters"
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_PIPELINE_NAME = re.compile(r"\w[\w .-]*")
_INTERVAL = re.compile(r"\d+ (milliseconds?|seconds?|minutes?|hours?)")


class SourceSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A topic, as a view. The view has the columns of the source, and `payload` if it has a schema.

    schema: of JSON values, as columns ("id long, name string"). event_time, deduplicate: SQL expressions. watermark: a
    delay. starting: where a run without a checkpoint begins. max_records: of a micro-batch.
    """

    topic: str
    format: ValueFormat | None = None
    schema: str = ""
    event_time: str = ""
    watermark: str = ""
    deduplicate: str = ""
    starting: Literal["earliest", "latest"] = "earliest"
    max_records: int = 100_000

    @property
    def value_format(self) -> ValueFormat:
        return self.format or ("json" if self.schema else "raw")


class TableSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table that does not change, as a view: Parquet, CSV with a header line, or a lake."""

    path: str
    format: Literal["parquet", "csv", "lake"] | None = None
    schema: str = ""


class StepSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A view of earlier views: by an SQL query, or by a Python function (`module:name`) of the inputs."""

    sql: str = ""
    function: str = ""
    inputs: tuple[str, ...] = ()


class SinkSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The destination of a view: a topic, or the directory of a table (Parquet) or of a lake.

    delivery, connector: None for those of the pipeline. stream_id: the option `streamId` of the sink.
    """

    step: str
    topic: str = ""
    table: str = ""
    lake: str = ""
    delivery: Delivery | None = None
    connector: Connector | None = None
    stream_id: str = ""


class PipelineSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pipeline. trigger: available-now, continuous, or an interval such as "10 seconds".

    client: what clients need to be let in, by librdkafka's names.
    connector: what reads the topics, and writes those of sinks that name no other.
    """

    name: str
    checkpoint: str
    bootstrap: str
    client: Mapping[str, str] = {}
    sources: Mapping[str, SourceSpec]
    sinks: Mapping[str, SinkSpec]
    tables: Mapping[str, TableSpec] = {}
    steps: Mapping[str, StepSpec] = {}
    dead_letters: str = ""
    delivery: Delivery = "exactly-once"
    trigger: str = AVAILABLE_NOW
    connector: Connector = Connector.CONVEYOR

    @property
    def brokers(self) -> Brokers:
        return Brokers(bootstrap_servers=self.bootstrap, client=self.client)

    def topics_written(self) -> list[str]:
        """Return the topics of the sinks, each once."""
        topics = [sink.topic for sink in self.sinks.values()] + [self.dead_letters]
        return list(dict.fromkeys(topic for topic in topics if topic))

    def connectors(self) -> set[Connector]:
        """Return what reads and writes the topics."""
        return {self.connector, *(sink.connector or self.connector for sink in self.sinks.values())}


def check_spec(spec: PipelineSpec) -> None:
    """Raise PipelineError for the first thing in a pipeline that cannot work."""
    for problem in _problems(spec):
        raise PipelineError(problem)


def _problems(spec: PipelineSpec) -> Iterator[str]:
    if not spec.sources or not spec.sinks:
        yield "a pipeline needs at least one source and one sink: add [sources.NAME] and [sinks.NAME]"
    if not spec.name or not spec.checkpoint:
        yield "name and checkpoint must not be empty: name the pipeline, and a directory of its own"
    elif not _PIPELINE_NAME.fullmatch(spec.name):
        yield f"name '{spec.name}': use letters, digits, spaces, '.', '_' and '-', and begin with a letter or digit"
    yield from _name_problems(spec)
    for name, source in spec.sources.items():
        yield from (f"sources.{name}: {problem}" for problem in _source_problems(source))
    yield from _step_problems(spec)
    for name, sink in spec.sinks.items():
        yield from (f"sinks.{name}: {problem}" for problem in _sink_problems(sink, spec))
    if spec.dead_letters and _is_undeliverable(spec.connector, spec.delivery):
        yield f"dead_letters: {AT_LEAST_ONCE_ONLY}"
    if spec.trigger not in (AVAILABLE_NOW, CONTINUOUS) and not _INTERVAL.fullmatch(spec.trigger):
        yield f"trigger {spec.trigger!r}: it is {AVAILABLE_NOW}, {CONTINUOUS}, or an interval such as '10 seconds'"
    read = {source.topic for source in spec.sources.values()}
    for topic in spec.topics_written():
        if topic in read:
            yield f"topic '{topic}' is read and written: its records would go round forever; write to another topic"


def _name_problems(spec: PipelineSpec) -> Iterator[str]:
    views = [*spec.sources, *spec.tables, *spec.steps]
    for name in [*views, *spec.sinks]:
        if not _NAME.fullmatch(name):
            yield f"name '{name}': use letters, digits and underscores, and no digit at the beginning"
    for name in views:
        if views.count(name) > 1:
            yield f"name '{name}' is used twice: give each source, table and step a name of its own"
    if DEAD_LETTERS in spec.sinks:
        yield f"sinks.{DEAD_LETTERS}: this name is that of the dead letters; choose another name"


def _source_problems(source: SourceSpec) -> Iterator[str]:
    if not source.topic:
        yield "topic must not be empty"
    if source.value_format == "json" and not source.schema:
        yield "format json needs a schema, such as schema = 'id long, name string'"
    if source.value_format != "json" and source.schema:
        yield f"a schema is for JSON values, and the format is {source.value_format}: remove one of them"
    if source.deduplicate and not source.watermark:
        yield "deduplicate needs a watermark, which says how far apart repeated records are"
    if source.max_records < 1:
        yield "max_records must be at least 1"


def _step_problems(spec: PipelineSpec) -> Iterator[str]:
    known = [*spec.sources, *spec.tables]
    for name, step in spec.steps.items():
        if bool(step.sql) == bool(step.function):
            yield f"steps.{name}: a step has either sql or function"
        if step.sql and step.inputs:
            yield f"steps.{name}: inputs belong to function; a query names its views itself"
        if step.function and not step.inputs:
            yield f"steps.{name}: inputs is missing: name the views that the function takes, in their order"
        if step.function and not re.fullmatch(r"[\w.]+:\w+", step.function):
            yield f"steps.{name}: function {step.function!r} is not of the form module:name"
        for view in step.inputs:
            if view not in known:
                yield f"steps.{name}: unknown input '{view}': before this step there are {', '.join(known)}"
        known.append(name)


def _sink_problems(sink: SinkSpec, spec: PipelineSpec) -> Iterator[str]:
    views = [*spec.steps, *spec.sources]
    if sink.step not in views:
        yield f"unknown step '{sink.step}': there are {', '.join(views)}"
    if sum(map(bool, (sink.topic, sink.table, sink.lake))) != 1:
        yield "a sink has exactly one of topic, table and lake"
    if sink.delivery is not None and not sink.topic:
        yield "delivery is for topics: tables and lakes have every record exactly once"
    if sink.stream_id and not (sink.topic and (sink.delivery or spec.delivery) == "exactly-once"):
        yield "stream_id is for topics with delivery exactly-once"
    if sink.connector is not None and not sink.topic:
        yield "connector is for topics: the connector that reads is a key of the pipeline"
    if sink.topic and _is_undeliverable(sink.connector or spec.connector, sink.delivery or spec.delivery):
        yield AT_LEAST_ONCE_ONLY


def _is_undeliverable(connector: Connector, delivery: Delivery) -> bool:
    return connector is Connector.KAFKA and delivery == "exactly-once"
