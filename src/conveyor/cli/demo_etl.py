"""`conveyor demo --etl`: extract, transform, enrich and load over topics, with a dead-letter branch."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from conveyor.cli.terminal.kafka_client import ClientError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_conveyor.brokers.brokers import Brokers
    from pyspark_conveyor.flights.etl_run import EtlCounts


def run_etl(to: Path, brokers: "Brokers", replicas: int, *, flights: int | None = None) -> None:
    """Run the demonstration. flights: their number, None for all. Raises PipelineError, ClientError."""
    from conveyor.cli.terminal.progress import count_progress
    from pyspark_conveyor.flights.etl_run import extract
    from pyspark_conveyor.spark.session import spark_session

    started = time.monotonic()
    with count_progress("extract") as show:
        extracted = extract(brokers, replicas, flights, show.update)
    typer.echo(f"extract    {extracted:,} raw flights into flights-raw, and planes and weather")
    with count_progress("starting Spark"):
        spark = spark_session("conveyor demo etl")
    counts = _run_jobs(spark, to, brokers, extracted)
    typer.echo(f"done in {time.monotonic() - started:.0f} s. The results:")
    typer.echo(f"  picture   {to / 'etl.png'}")
    typer.echo(f"  lake      {to / 'lake'}")
    if not counts.balances:
        raise ClientError("the demonstration failed: the counts do not balance")


def _run_jobs(spark: "SparkSession", to: Path, brokers: "Brokers", extracted: int) -> "EtlCounts":
    from conveyor.cli.terminal.progress import count_progress
    from pyspark_conveyor.flights.etl_report import draw_etl
    from pyspark_conveyor.flights.etl_run import count, enrich, load, transform
    from pyspark_conveyor.lake.lake_table import read_lake

    lake = (to / "lake").resolve()
    with count_progress("transform"):
        transform(spark, brokers, to / "checkpoints" / "transform")
    with count_progress("enrich"):
        enrich(spark, brokers, to / "checkpoints" / "enrich")
    with count_progress("load") as show:
        load(spark, brokers, lake, show.update)
    counts = count(spark, brokers, lake, extracted)
    typer.echo(f"transform  {counts.clean:,} clean, {sum(counts.rejected.values()):,} in flights-rejected:")
    for reason, number in counts.rejected.items():
        typer.echo(f"           {number:>9,} {reason}")
    typer.echo(
        f"enrich     {counts.enriched:,}: {counts.with_plane:,} with plane, {counts.with_weather:,} with weather"
    )
    typer.echo(f"load       {counts.loaded:,} in the lake, {counts.distinct:,} of them different")
    draw_etl(counts, read_lake(spark, lake), to / "etl.png")
    verdict = "ok     " if counts.balances else "FAILED "
    typer.echo(f"{verdict}    {counts.extracted:,} extracted = {counts.loaded:,} loaded + {counts.broken:,} broken")
    return counts
