"""`conveyor pipeline metrics`: the traffic and the consumers of topics."""

from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from conveyor.cli.pipeline.connector_options import ConnectorChoice, ConnectorJars
from conveyor.cli.pipeline.job_run import job_brokers, job_errors, job_session
from conveyor.cli.pipeline.run_command import Master
from conveyor.cli.terminal.cluster_http import Http, http_client
from conveyor.cli.terminal.kafka_client import DEFAULT_BOOTSTRAP, Bootstrap, ClientError
from pyspark_conveyor.spark.connectors import Connector

if TYPE_CHECKING:
    from pyspark_conveyor.jobs.topic_metrics import ConsumerNumbers


def metrics(
    topic: Annotated[list[str], typer.Option("--topic", help="A topic; can be repeated.")],
    to: Annotated[Path, typer.Option("--to", help="Directory of the tables, as Parquet.")],
    window: Annotated[int, typer.Option(min=1, max=31_536_000, help="Length of a window in seconds.")] = 60,
    since: Annotated[datetime | None, typer.Option(help="Leave out older records (UTC); default all.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw a PNG, too (needs conveyor[demo]).")] = None,
    master: Master = "local[*]",
    connector: ConnectorChoice = Connector.CONVEYOR,
    connector_jars: ConnectorJars = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    http: Http = None,
) -> None:
    """Write the rate and size of topics by windows of time, and the lag, rates and delays of their consumers."""
    from pyspark_conveyor.jobs.consumers_history import delays_of, last_numbers
    from pyspark_conveyor.jobs.delay_windows import with_delays
    from pyspark_conveyor.jobs.metrics_consumers import group_numbers, subscription_numbers
    from pyspark_conveyor.jobs.metrics_picture import draw_metrics
    from pyspark_conveyor.jobs.topic_metrics import prepare_directory, traffic, write_tables
    from pyspark_conveyor.spark.connectors import read_topics

    if picture is not None and find_spec("matplotlib") is None:
        raise ClientError("matplotlib not installed: pip install 'conveyor[demo]', or leave out --picture")
    brokers = job_brokers(bootstrap)
    topics, now = list(dict.fromkeys(topic)), datetime.now(UTC)
    with job_errors():
        session = job_session("conveyor metrics", master, connector, connector_jars)
        consumers = [
            *group_numbers(brokers, topics, now),
            *subscription_numbers(http_client(bootstrap, http).get, topics, now),
        ]
        prepare_directory(to)
        subscriptions = [(numbers.topic, numbers.consumer) for numbers in consumers if numbers.ack_delays is not None]
        before = last_numbers(to, subscriptions)
        consumers = [with_delays(numbers, before.get((numbers.topic, numbers.consumer))) for numbers in consumers]
        options = brokers.options | {"topic": ",".join(topics), "includeHeaders": "false"}
        if since is not None:
            options["startingTimestamp"] = str(int(since.replace(tzinfo=UTC).timestamp() * 1000))
        spark = session()
        records = read_topics(spark, connector, options)
        windows = write_tables(spark, traffic(records, window), consumers, to.resolve())
        if picture is not None:
            draw_metrics(windows, consumers, delays_of(to, topics), window, picture)
    for name in topics:
        count = sum(row.records for row in windows if row.topic == name)
        peak = max((row.records_per_s for row in windows if row.topic == name), default=0.0)
        typer.echo(f"{name}: {count:,} records, at most {peak:,.1f}/s in a window of {window} s")
    for consumer in consumers:
        typer.echo(f"  {_consumer_line(consumer)}")


def _consumer_line(numbers: "ConsumerNumbers") -> str:
    start = f"{numbers.kind} {numbers.consumer} of {numbers.topic}: lag {numbers.lag:,}"
    if numbers.kind == "group":
        return start
    age = "" if numbers.oldest_age_ms is None else f", oldest {numbers.oldest_age_ms / 1000:,.0f} s"
    rates = f"{numbers.ack_rate:,.1f} acks/s, {numbers.retry_rate:,.1f} retries/s"
    return f"{start}{age}, {rates}{_delays(numbers)}"


def _delays(numbers: "ConsumerNumbers") -> str:
    if numbers.delay_mean_ms is None or numbers.delay_p50_ms is None or numbers.delay_p99_ms is None:
        return ""
    mean, median, late = map(_seconds, (numbers.delay_mean_ms, numbers.delay_p50_ms, numbers.delay_p99_ms))
    return f", publish to ack {mean} (p50 {median}, p99 {late})"


def _seconds(ms: float) -> str:
    return f"{ms / 1000:,.0f} s" if ms >= 100_000 else f"{ms / 1000:.3g} s"
