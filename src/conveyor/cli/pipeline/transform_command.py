"""`conveyor pipeline transform`: topics to a topic, by SQL or by a Python function."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from conveyor.cli.pipeline.connector_options import AtLeastOnce, BatchRecords, ConnectorChoice, ConnectorJars
from conveyor.cli.pipeline.job_run import job_errors
from conveyor.cli.pipeline.run_command import Master, run_on_terminal, summary
from conveyor.cli.terminal.client_security import client_security
from conveyor.cli.terminal.kafka_client import DEFAULT_BOOTSTRAP, Bootstrap, ClientError
from pyspark_conveyor.spark.connectors import Connector

if TYPE_CHECKING:
    from pyspark_conveyor.declared.pipeline_spec import SourceSpec, TableSpec

_PER_SOURCE = "can be repeated as VIEW=..., for one source"

StaticTables = Annotated[
    list[str] | None, typer.Option(metavar="VIEW=PATH", help="A table that does not change: Parquet, CSV, or a lake.")
]
Deduplicate = Annotated[
    list[str] | None, typer.Option(help=f"SQL expression with the same value in repeated records; {_PER_SOURCE}.")
]
DeadLetters = Annotated[
    str, typer.Option(metavar="TOPIC", help="Topic for records that cannot be decoded or transformed.")
]


def transform(
    source: Annotated[
        list[str], typer.Option("--source", metavar="[VIEW=]TOPIC", help="A topic to read; can be repeated.")
    ],
    to: Annotated[str, typer.Option("--to", metavar="TOPIC", help="The topic to write.")],
    checkpoint: Annotated[Path, typer.Option(help="Directory of the checkpoint, one for each transformation.")],
    sql: Annotated[str, typer.Option(help="A query; every source is a view.")] = "",
    function: Annotated[
        str, typer.Option(metavar="MODULE:NAME", help="A function of the sources' and tables' DataFrames, in order.")
    ] = "",
    table: StaticTables = None,
    schema: Annotated[
        list[str] | None, typer.Option(help=f"Columns of JSON values, 'name type, ...'; {_PER_SOURCE}.")
    ] = None,
    format: Annotated[list[str] | None, typer.Option(help=f"raw, text or json; {_PER_SOURCE}.")] = None,
    event_time: Annotated[
        list[str] | None, typer.Option(help=f"SQL expression of the column event_time; {_PER_SOURCE}.")
    ] = None,
    watermark: Annotated[
        list[str] | None, typer.Option(help=f"How late records may be, such as '10 minutes'; {_PER_SOURCE}.")
    ] = None,
    deduplicate: Deduplicate = None,
    dead_letters: DeadLetters = "",
    until_end: Annotated[
        bool, typer.Option("--until-end", help="End at the present ends of the topics, instead of never.")
    ] = False,
    starting: Annotated[str, typer.Option(help="Where the first run begins: earliest or latest.")] = "earliest",
    at_least_once: AtLeastOnce = False,
    batch_records: BatchRecords = 100_000,
    master: Master = "local[*]",
    connector: ConnectorChoice = Connector.CONVEYOR,
    connector_jars: ConnectorJars = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Transform topics into another topic, continuously, each record exactly once."""
    from pyspark_conveyor.declared.pipeline_spec import PipelineSpec, SinkSpec, StepSpec

    texts = {
        "schema": schema,
        "format": format,
        "event_time": event_time,
        "watermark": watermark,
        "deduplicate": deduplicate,
    }
    with job_errors():
        sources = _sources(source, texts, {"starting": starting, "max_records": batch_records})
        tables = _tables(table or [])
        step = StepSpec(sql=sql, function=function, inputs=(*sources, *tables) if function else ())
        spec = PipelineSpec(
            name=f"transform to {to}",
            checkpoint=str(checkpoint.resolve()),
            bootstrap=bootstrap,
            client=client_security().settings,
            sources=sources,
            tables=tables,
            steps={"result": step},
            sinks={"output": SinkSpec(step="result", topic=to)},
            dead_letters=dead_letters,
            delivery="at-least-once" if at_least_once else "exactly-once",
            trigger="available-now" if until_end else "continuous",
            connector=connector,
        )
        result = run_on_terminal(spec, master, Path.cwd(), connector_jars)
    for line in summary(result):
        typer.echo(line)


def _sources(
    given: Sequence[str], texts: dict[str, list[str] | None], fixed: dict[str, str | int]
) -> dict[str, "SourceSpec"]:
    import msgspec

    from pyspark_conveyor.declared.pipeline_spec import SourceSpec

    fields: dict[str, dict[str, str | int]] = {}
    for text in given:
        view, _, topic = text.rpartition("=")
        name = view or re.sub(r"\W", "_", topic)
        if not view and name[:1].isdigit():
            raise ClientError(f"--source {topic}: no view's name begins with a digit: give --source VIEW={topic}")
        if name in fields:
            raise ClientError(f"two sources are called {name}: give --source VIEW={topic}")
        fields[name] = {"topic": topic, **fixed}
    for option, values in texts.items():
        for chosen, value in _by_view(values or [], fields):
            for name in fields if chosen is None else [chosen]:
                fields[name][option] = value
    try:
        return {name: msgspec.convert(values, SourceSpec) for name, values in fields.items()}
    except msgspec.ValidationError as error:
        raise ClientError(str(error)) from error


def _by_view(values: Sequence[str], views: dict[str, dict[str, str | int]]) -> list[tuple[str | None, str]]:
    """Return each value with its view, None for all views; values for one view come last."""
    pairs: list[tuple[str | None, str]] = []
    for value in values:
        view, equals, rest = value.partition("=")
        pairs.append((view, rest) if equals and view in views else (None, value))
    return sorted(pairs, key=lambda pair: pair[0] is not None)


def _tables(given: Sequence[str]) -> dict[str, "TableSpec"]:
    from pyspark_conveyor.declared.pipeline_spec import TableSpec

    tables = {}
    for text in given:
        view, equals, path = text.partition("=")
        if not equals:
            raise ClientError(f"--table {text} does not name its view: write --table VIEW={text}")
        tables[view] = TableSpec(path=path if "://" in path else str(Path(path).resolve()))
    return tables
