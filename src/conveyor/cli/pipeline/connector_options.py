"""The options of jobs that say what reads and writes topics, and how."""

from pathlib import Path
from typing import Annotated

import typer

from pyspark_conveyor.spark.connectors import Connector

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
BatchRecords = Annotated[
    int, typer.Option(min=1, max=1_000_000_000, help="Largest number of records in a micro-batch.")
]
