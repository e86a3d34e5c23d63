"""`conveyor pipeline replay`: a lake back into a topic."""

from pathlib import Path
from typing import Annotated

import typer

from conveyor.cli.pipeline.connector_options import AtLeastOnce, ConnectorChoice, ConnectorJars
from conveyor.cli.pipeline.job_run import job_brokers, job_errors, job_session
from conveyor.cli.pipeline.run_command import Master
from conveyor.cli.terminal.cluster_http import Http, http_client
from conveyor.cli.terminal.http_client import path_to
from conveyor.cli.terminal.kafka_client import DEFAULT_BOOTSTRAP, Bootstrap, ClientError
from conveyor.cli.terminal.position import PositionKind, parse_position
from pyspark_conveyor.spark.connectors import Connector

Where = Annotated[
    str,
    typer.Option(
        metavar="SQL",
        help="Only records that match this expression over the columns of the lake, value_text and key_text.",
    ),
]


def replay(
    lake: Annotated[Path, typer.Option("--from", help="Directory of the lake.")],
    to: Annotated[str, typer.Option("--to", metavar="TOPIC", help="The topic to write.")] = "",
    to_subscription: Annotated[
        str, typer.Option(metavar="NAME", help="Write to the topic of this subscription, which alone receives them.")
    ] = "",
    topic: Annotated[
        list[str] | None, typer.Option("--topic", help="Only this topic of the lake; can be repeated.")
    ] = None,
    since: Annotated[str, typer.Option(metavar="TIME", help="Only records from this time on.")] = "",
    until: Annotated[str, typer.Option(metavar="TIME", help="Only records before this time.")] = "",
    where: Where = "",
    same_partitions: Annotated[
        bool, typer.Option("--same-partitions", help="Keep the partition numbers, not those of the keys.")
    ] = False,
    rate: Annotated[
        float | None, typer.Option(min=0.01, max=1_000_000, help="Largest number of records per second.")
    ] = None,
    job_id: Annotated[
        str, typer.Option(metavar="NAME", help="Names this replay: a repetition writes only what is missing.")
    ] = "",
    at_least_once: AtLeastOnce = False,
    master: Master = "local[*]",
    connector: ConnectorChoice = Connector.CONVEYOR,
    connector_jars: ConnectorJars = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    http: Http = None,
) -> None:
    """Write the records of a lake to a topic again, in order within each partition, each exactly once.

    \b
    Examples:
      conveyor pipeline replay --from /data/lake --to-subscription billing --since -2h --rate 100
      conveyor pipeline replay --from /data/lake --to orders-again --where "value_text LIKE '%error%'"
    """
    from conveyor.cli.terminal.progress import count_progress
    from pyspark_conveyor.jobs.replay_job import ReplaySelection, ReplayTarget
    from pyspark_conveyor.jobs.replay_job import replay as run
    from pyspark_conveyor.sink.sink_options import DeliveryGuarantee

    if bool(to) == bool(to_subscription):
        raise ClientError("give either --to or --to-subscription")
    if not to:
        to = http_client(bootstrap, http).get(path_to("subscriptions", to_subscription))["topic"]
    selection = ReplaySelection(
        topics=tuple(topic or ()),
        since_ms=time_option("--since", since),
        until_ms=time_option("--until", until),
        where=where,
    )
    target = ReplayTarget(topic=to, only_for=to_subscription or None, same_partitions=same_partitions)
    with job_errors():
        session = job_session("conveyor replay", master, connector, connector_jars)
        with count_progress("replaying") as show:
            written = run(
                session,
                job_brokers(bootstrap),
                lake.resolve(),
                selection,
                target,
                show.update,
                rate=rate,
                job_id=job_id or None,
                delivery=DeliveryGuarantee.AT_LEAST_ONCE if at_least_once else DeliveryGuarantee.EXACTLY_ONCE,
                connector=connector,
            )
    typer.echo(f"replayed {written:,} records of {lake} to {to}")


def time_option(name: str, text: str) -> int | None:
    """Return a time in ms since 1970; None for an empty text. Raises ClientError."""
    if not text:
        return None
    position = parse_position(name, text)
    if position.kind is not PositionKind.TIME:
        raise ClientError(f"{name} {text}: expected a time such as 2026-11-21T08:00, or how long ago, such as -15m")
    return position.value
