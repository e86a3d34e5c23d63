"""`conveyor pipeline deadletters`: what failed, why and when; and deliver a selection again."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from conveyor.cli.pipeline.connector_options import ConnectorChoice, ConnectorJars
from conveyor.cli.pipeline.job_run import job_brokers, job_errors, job_session
from conveyor.cli.pipeline.replay_command import time_option
from conveyor.cli.pipeline.run_command import Master
from conveyor.cli.queues.dlq_redrive import MOST_AT_ONCE, redrive_portion
from conveyor.cli.queues.queue_text import one_line
from conveyor.cli.terminal.cluster_http import Http, http_client
from conveyor.cli.terminal.confirmation import Yes, confirm
from conveyor.cli.terminal.http_client import HttpClient
from conveyor.cli.terminal.kafka_client import DEFAULT_BOOTSTRAP, Bootstrap, counted
from conveyor.cli.terminal.table import print_table
from pyspark_conveyor.spark.connectors import Connector

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def deadletters(
    topic: Annotated[list[str], typer.Option("--topic", help="A dead-letter topic; can be repeated.")],
    reason: Annotated[list[str] | None, typer.Option(help="Only this reason; can be repeated.")] = None,
    since: Annotated[str, typer.Option(metavar="TIME", help="Only last failures from this time on.")] = "",
    until: Annotated[str, typer.Option(metavar="TIME", help="Only last failures before this time.")] = "",
    where: Annotated[str, typer.Option(metavar="SQL", help="Only dead letters that match this expression.")] = "",
    every: Annotated[str, typer.Option(metavar="DURATION", help="Length of the windows of time.")] = "1 hour",
    sample: Annotated[
        int, typer.Option(min=0, max=100_000, metavar="N", help="Show so many of the newest dead letters.")
    ] = 0,
    out: Annotated[Path | None, typer.Option(help="Write the groups to this directory: Parquet, or .csv.")] = None,
    redrive: Annotated[bool, typer.Option("--redrive", help="Deliver the selected dead letters again.")] = False,
    rate: Annotated[
        float | None, typer.Option(min=0.01, max=1_000_000, help="Largest number of messages per second.")
    ] = None,
    yes: Yes = False,
    master: Master = "local[*]",
    connector: ConnectorChoice = Connector.CONVEYOR,
    connector_jars: ConnectorJars = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    http: Http = None,
) -> None:
    """Group dead letters by reason and time, and deliver a selection again.

    \b
    Examples:
      conveyor pipeline deadletters --topic orders.dlq --every '10 minutes' --sample 5
      conveyor pipeline deadletters --topic orders.dlq --reason timeout --since -1d --redrive --rate 100
    """
    from pyspark_conveyor.jobs import dead_letter_report as job
    from pyspark_conveyor.spark.failed_jobs import spark_errors_in_one_line

    selection = job.DeadLetterSelection(
        reasons=tuple(reason or ()),
        since_ms=time_option("--since", since),
        until_ms=time_option("--until", until),
        where=where,
    )
    client = http_client(bootstrap, http) if redrive else None
    brokers = job_brokers(bootstrap)
    with job_errors():
        session = job_session("conveyor deadletters", master, connector, connector_jars)
        job.check_topics(brokers, tuple(topic))
        spark = session()
        with spark_errors_in_one_line():
            letters = job.read_dead_letters(spark, brokers, tuple(topic), selection, connector)
            with spark_errors_in_one_line(f"--every {every!r} cannot be used"):
                groups = job.grouped_letters(letters, every)
            _show(groups, letters, sample)
            if out is not None:
                job.write_groups(groups, out)
            places = [] if client is None else list(job.originals(letters))
    if client is not None:
        _redrive(client, places, rate, yes)


def _show(groups: "DataFrame", letters: "DataFrame", sample: int) -> None:
    rows = groups.selectExpr("CAST(since AS STRING)", "subscription", "reason", "letters").collect()
    if not rows:
        return typer.echo("no dead letters")
    print_table(
        ["since", "subscription", "reason", "dead letters"],
        [[row[0], row[1], one_line(row[2]), row[3]] for row in rows],
    )
    if sample:
        newest = letters.sort("last_failure", "partition", "offset", ascending=[False, True, False]).limit(sample)
        shown = newest.selectExpr(
            "concat(origin_partition, '-', origin_offset)", "subscription", "reason", "deliveries", "key_text",
            "value_text",
        )  # fmt: skip
        typer.echo()
        print_table(
            ["message", "subscription", "reason", "deliveries", "key", "payload"],
            [[*row[:2], one_line(row[2]), row[3], one_line(row[4] or "", 20), one_line(row[5] or "")]
             for row in shown.collect()],
        )  # fmt: skip
    return None


def _redrive(client: HttpClient, places: list[tuple[str, list[str]]], rate: float | None, yes: bool) -> None:
    """Deliver messages again to their subscriptions, in portions."""
    from conveyor.cli.terminal.progress import count_progress

    total = sum(len(ids) for _, ids in places)
    confirm(f"Redrive {counted(total, 'dead letter')} of {', '.join(name for name, _ in places) or 'nobody'}?", yes)
    size = MOST_AT_ONCE if rate is None else max(1, min(MOST_AT_ONCE, round(rate)))
    done = others = 0
    with count_progress("redriving") as show:
        for name, ids in places:
            for first in range(0, len(ids), size):
                portion = ids[first : first + size]
                answer = redrive_portion(client, name, {"message_ids": portion}, len(portion), rate)
                done, others = done + answer["redriven"], others + len(answer["unknown"])
                show.update(done + others, total)
    typer.echo(f"redrove {counted(done, 'dead letter')}" + (f"; {others:,} were none any more" if others else ""))
