"""`conveyor demo`: runs a broker, a producer and a Spark job on this machine, and plots the result."""

import math
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conveyor.cli.demo_etl import run_etl
from conveyor.cli.pipeline.job_run import job_brokers
from conveyor.cli.terminal.kafka_client import ClientError

if TYPE_CHECKING:
    from pyspark_conveyor.brokers.brokers import Brokers
    from pyspark_conveyor.flights.flights_report import Delays

_BATCH_RECORDS = 500_000


def demo(
    to: Annotated[Path, typer.Option("--to", help="Directory for the broker's data, the lake and the picture.")] = Path(
        "./conveyor-demo"
    ),
    bootstrap: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT,...", help="Use this running broker or cluster instead of a broker of the demo's own."
        ),
    ] = "",
    replicas: Annotated[
        int, typer.Option(min=1, help="Replicas of each partition: 3 on a cluster lets one broker fail.")
    ] = 1,
    etl: Annotated[
        bool,
        typer.Option("--etl", help="Run the second demonstration: extract, transform, enrich and load over topics."),
    ] = False,
) -> None:
    """Stream a year of real flights through a broker into a data lake and plot their delays (needs conveyor[demo]).

    On a running cluster, with topics flights, weather and planes that must not exist yet:

        conveyor demo --bootstrap 127.0.0.1:9092,127.0.0.1:9093 --replicas 3
    """
    from pyspark_conveyor.brokers.brokers import Brokers
    from pyspark_conveyor.pipeline_errors import PipelineError
    from pyspark_conveyor.spark.session import require_spark

    if to.exists() and any(to.iterdir()):
        raise ClientError(f"{to} is not empty: remove it, or choose another directory with --to")
    try:
        require_spark()
        to.mkdir(parents=True, exist_ok=True)
        if bootstrap:
            _run(to, job_brokers(bootstrap), replicas, None, etl=etl)
        else:
            with _broker(to / "broker") as (own, http):
                typer.echo(f"broker ready: Kafka at {own}, HTTP at {http}")
                _run(to, Brokers(bootstrap_servers=own), replicas, to / "broker", etl=etl)
    except PipelineError as error:
        raise ClientError(str(error)) from error


def _run(to: Path, brokers: "Brokers", replicas: int, data_dir: Path | None, *, etl: bool) -> None:
    """Run a demonstration. data_dir: of the demo's own broker."""
    if etl:
        run_etl(to, brokers, replicas)
    else:
        _run_delays(to, brokers, replicas, data_dir)


def _run_delays(to: Path, brokers: "Brokers", replicas: int, data_dir: Path | None) -> None:
    from conveyor.cli.terminal.progress import count_progress
    from pyspark_conveyor.flights.flight_events import FLIGHTS, PLANES, WEATHER
    from pyspark_conveyor.flights.flights_checks import check_lake
    from pyspark_conveyor.flights.flights_producer import create_topics, produce_flights
    from pyspark_conveyor.flights.flights_report import delays, draw
    from pyspark_conveyor.jobs.archive import archive
    from pyspark_conveyor.lake.lake_table import read_lake
    from pyspark_conveyor.spark.session import spark_session

    started = time.monotonic()
    create_topics(brokers, replicas)
    with count_progress("producing") as show:
        acknowledged = produce_flights(brokers, show.update)
        typer.echo(f"produced {acknowledged.total:,} records with acks=all, {show.rate():,.0f} a second")
    lake = (to / "lake").resolve()
    spark: Any = None

    def session() -> Any:
        nonlocal spark
        spark = spark_session("conveyor demo")
        show.describe("archiving")
        return spark

    with count_progress("starting Spark") as show:
        result = archive(session, brokers, [FLIGHTS, WEATHER, PLANES], lake, _BATCH_RECORDS, show.update)
        typer.echo(f"archived {result.records:,} records as Parquet, by topic and day, {show.rate():,.0f} a second")
    table = delays(read_lake(spark, lake))
    _print_table(table)
    picture = to / "delays.png"
    draw(table, picture)
    passed = _report(check_lake(read_lake(spark, lake), acknowledged))
    spark.stop()
    _say_what_next(to, picture, data_dir, time.monotonic() - started)
    if not passed:
        raise ClientError("the demonstration failed: see the failed checks above")


@contextmanager
def _broker(data_dir: Path) -> Iterator[tuple[str, str]]:
    """Run a broker in a child process. Yields its Kafka address and its HTTP URL."""
    command = [sys.executable, "-m", "conveyor.cli.main", "serve", "--data-dir", str(data_dir)]
    command += ["--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0", "--log-level", "warning"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        ready = process.stdout.readline() if process.stdout else ""
        words = dict(word.partition("=")[::2] for word in ready.split()[1:])
        if "kafka" not in words:
            raise ClientError("the broker did not start: see the message above")
        yield words["kafka"], words["http"]
    finally:
        process.terminate()
        process.communicate()


def _print_table(table: "Delays") -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from pyspark_conveyor.flights.flights_report import CONDITIONS

    shown = Table(title="Mean departure delay in minutes", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    shown.add_column("carrier")
    hours = [6, 9, 12, 15, 18, 20]
    for name in [
        "flights",
        *(f"{hour}h" for hour in hours),
        *(condition.replace(" ", "\n") for condition in CONDITIONS),
    ]:
        shown.add_column(name, justify="right")
    for carrier in table.by_hour.index:
        by_hour = [_minutes(table.by_hour.loc[carrier, hour]) for hour in hours]
        by_weather = [_minutes(table.by_weather.loc[carrier, condition]) for condition in CONDITIONS]
        shown.add_row(carrier, f"{table.flights[carrier]:,}", *by_hour, *by_weather)
    Console(width=None if sys.stdout.isatty() else 110).print(shown)


def _minutes(delay: Any) -> str:
    return "·" if math.isnan(delay) else str(round(delay))


def _report(checks: list[Any]) -> bool:
    for check in checks:
        typer.echo(f"{'ok    ' if check.passed else 'FAILED'} {check.what}: {check.found}")
    return all(check.passed for check in checks)


def _say_what_next(to: Path, picture: Path, data_dir: Path | None, seconds: float) -> None:
    typer.echo(f"done in {seconds:.0f} s. The results:")
    typer.echo(f"  picture   {picture}")
    typer.echo(f"  lake      {to / 'lake'}")
    if data_dir is not None:
        typer.echo(f"  broker    {data_dir}")
    typer.echo("Next steps:")
    if data_dir is not None:
        typer.echo(f"  conveyor serve --data-dir {data_dir}")
    typer.echo("  conveyor topic describe flights")
    typer.echo("  conveyor consume flights --from earliest --max 3 --format json")
