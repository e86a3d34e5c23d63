"""`conveyor pipeline run`: a pipeline that a file declares."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from conveyor.cli.pipeline.connector_options import ConnectorJars
from conveyor.cli.pipeline.job_run import job_errors, job_session
from conveyor.cli.terminal.client_security import client_security
from pyspark_conveyor.spark.connectors import Connector

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from pyspark_conveyor.declared.pipeline_spec import PipelineSpec
    from pyspark_conveyor.declared.run_directory import RunProgress

Master = Annotated[str, typer.Option(help="The Spark master, such as spark://host:7077.")]
OwnBootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        envvar="CONVEYOR_BOOTSTRAP",
        metavar="HOST:PORT",
        help="Kafka address of a broker; takes the place of the file's.",
    ),
]

OwnConnector = Annotated[
    Connector | None,
    typer.Option("--connector", help="What reads and writes topics; takes the place of the file's."),
]


def run(
    file: Annotated[Path, typer.Argument(help="The pipeline, as a TOML file.")],
    master: Master = "local[*]",
    check: Annotated[
        bool, typer.Option("--check", help="Check the file, its topics and queries; run nothing.")
    ] = False,
    connector: OwnConnector = None,
    connector_jars: ConnectorJars = None,
    bootstrap: OwnBootstrap = None,
) -> None:
    """Run the pipeline of a file, from its checkpoint if it has run before.

    Ctrl-C or 'conveyor pipeline stop' ends it; the next run continues there.
    """
    from pyspark_conveyor.declared.pipeline_file import read_pipeline
    from pyspark_conveyor.declared.pipeline_run import check_pipeline

    with job_errors():
        spec = read_pipeline(file, bootstrap, connector, client_security().settings)
        if check:
            check_pipeline(spec, _session(spec, master, connector_jars), file.resolve().parent)
            typer.echo(f"{file} declares pipeline {spec.name}: {', '.join(spec.sources)} to {', '.join(spec.sinks)}")
            return
        result = run_on_terminal(spec, master, file.resolve().parent, connector_jars)
    for line in summary(result):
        typer.echo(line)


def run_on_terminal(spec: "PipelineSpec", master: str, modules: Path, jars: Path | None) -> "RunProgress":
    """Run a pipeline, and show its live rate on a terminal. jars: of Spark's own connector. Raises PipelineError."""
    from conveyor.cli.terminal.progress import count_progress
    from pyspark_conveyor.declared.pipeline_run import run_pipeline

    with count_progress(spec.name) as show:
        return run_pipeline(
            spec,
            _session(spec, master, jars),
            modules,
            lambda progress: show.update(sum(query.records for query in progress.queries.values()), None),
        )


def _session(spec: "PipelineSpec", master: str, jars: Path | None) -> "Callable[[], SparkSession]":
    connector = Connector.KAFKA if Connector.KAFKA in spec.connectors() else Connector.CONVEYOR
    return job_session(f"conveyor {spec.name}", master, connector, jars)


def summary(result: "RunProgress") -> list[str]:
    """Return the lines about a run that has ended."""
    return [
        f"{result.name} {result.state}: {query.records:,} records read for {name}"
        for name, query in result.queries.items()
    ]
