"""The sources, tables and steps of a pipeline as Spark views."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from pyspark_conveyor.declared.pipeline_spec import PipelineSpec, SourceSpec, StepSpec, TableSpec
from pyspark_conveyor.jobs.transform import good_records, with_decoded_value, with_event_time
from pyspark_conveyor.lake.lake import read_manifest
from pyspark_conveyor.lake.lake_table import read_lake
from pyspark_conveyor.payloads.payload_schema import PayloadSchema
from pyspark_conveyor.payloads.schema_request import SchemaRequest, schema_to_pin
from pyspark_conveyor.pipeline_errors import PipelineError
from pyspark_conveyor.spark.connectors import stream_topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineViews:
    """views: of sources, tables and steps, by name. decoded: the sources whose values may be bad, with `reason`."""

    views: dict[str, "DataFrame"]
    decoded: list["DataFrame"]


def pipeline_views(spark: "SparkSession", spec: PipelineSpec, modules: Path) -> PipelineViews:
    """Create the views in a session. modules: where the modules of functions are looked for, besides Python's path.

    Raises PipelineError for a schema, a table, a query or a function that cannot work.
    """
    views: dict[str, DataFrame] = {}
    decoded = []
    for name, source in spec.sources.items():
        with named_errors(f"sources.{name}"):
            records = with_decoded_value(_read(spark, spec, source), source.value_format, _payload_schema(source))
            if source.value_format != "raw":
                decoded.append(records)
            good = good_records(records, source.value_format, fails=not spec.dead_letters)
            _add(views, name, with_event_time(good, source.event_time, source.watermark, source.deduplicate))
    for name, table in spec.tables.items():
        with named_errors(f"tables.{name}"):
            _add(views, name, _static_table(spark, table))
    for name, step in spec.steps.items():
        with named_errors(f"steps.{name}"):
            _add(views, name, spark.sql(step.sql) if step.sql else _by_function(step, views, modules))
    return PipelineViews(views=views, decoded=decoded)


def _add(views: dict[str, "DataFrame"], name: str, view: "DataFrame") -> None:
    view.createOrReplaceTempView(name)
    views[name] = view


@contextmanager
def named_errors(place: str) -> Iterator[None]:
    """Say to which part of a pipeline an error belongs."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        raise PipelineError(f"{place}: {str(error).strip().partition(chr(10))[0]}") from error
    except PipelineError as error:
        raise PipelineError(f"{place}: {error}") from error


def _payload_schema(source: SourceSpec) -> PayloadSchema | None:
    if source.value_format != "json":
        return None
    return schema_to_pin(SchemaRequest(text=source.schema), None, True, lambda: ())


def _read(spark: "SparkSession", spec: PipelineSpec, source: SourceSpec) -> "DataFrame":
    options = spec.brokers.options | {
        "topic": source.topic,
        "startingOffsets": source.starting,
        "maxOffsetsPerTrigger": str(source.max_records),
    }
    return stream_topics(spark, spec.connector, options)


def _static_table(spark: "SparkSession", table: TableSpec) -> "DataFrame":
    path = Path(table.path)
    is_local = "://" not in table.path
    if is_local and not path.exists():
        raise PipelineError(f"{path} does not exist")
    kind = table.format
    if kind is None:
        is_lake = is_local and path.is_dir() and read_manifest(path) is not None
        kind = "lake" if is_lake else "csv" if path.suffix == ".csv" else "parquet"
    if kind == "lake":
        return read_lake(spark, path)
    reader = spark.read.schema(table.schema) if table.schema else spark.read
    if kind == "parquet":
        return reader.parquet(table.path)
    return reader.csv(table.path, header=True, inferSchema=not table.schema)


def _by_function(step: StepSpec, views: dict[str, "DataFrame"], modules: Path) -> "DataFrame":
    from pyspark.cloudpickle import register_pickle_by_value
    from pyspark.sql import DataFrame

    if str(modules) not in sys.path:
        sys.path.insert(0, str(modules))
    try:
        function = resolve_name(step.function)
    except (ImportError, AttributeError) as error:
        raise PipelineError(f"function {step.function} is not found: {error}") from error
    # Executors do not have the module: what runs there is sent with the query.
    register_pickle_by_value(sys.modules[step.function.partition(":")[0]])  # type: ignore[no-untyped-call]
    result = function(*(views[name] for name in step.inputs))
    if not isinstance(result, DataFrame):
        raise PipelineError(f"function {step.function} returned {type(result).__name__}, not a DataFrame")
    return result
