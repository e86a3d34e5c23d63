"""The options of jobs that say what reads and writes topics and how, and the Spark session that it needs."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from conveyor.pipeline.spark.connectors import Connector

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ConnectorChoice = Annotated[
    Connector,
    typer.Option("--connector", help="What reads and writes topics: Conveyor's data source, or Spark's own for Kafka."),
]
ConnectorJars = Annotated[
    Path | None, typer.Option(help="Directory with the jars of --connector kafka; without it, Spark fetches them.")
]
AtLeastOnce = Annotated[
    bool, typer.Option("--at-least-once", help="Write without transactions: faster, but may repeat records.")
]


def job_session(app_name: str, master: str, connector: Connector, jars: Path | None) -> "Callable[[], SparkSession]":
    """Return what starts a job's session. Raises PipelineError if Spark, or a jar in the directory, is missing."""
    from conveyor.pipeline.spark.connectors import connector_settings
    from conveyor.pipeline.spark.session import require_spark, spark_session

    require_spark()
    settings = connector_settings(connector, jars)
    return lambda: spark_session(app_name, master, **settings)
