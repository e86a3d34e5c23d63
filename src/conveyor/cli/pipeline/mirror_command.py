"""`conveyor pipeline mirror`: topics of one cluster to another."""

import time
from pathlib import Path
from typing import Annotated

import typer

from conveyor.cli.pipeline.connector_options import BatchRecords, ConnectorChoice, ConnectorJars
from conveyor.cli.pipeline.job_run import job_brokers, job_errors, job_session
from conveyor.cli.pipeline.run_command import Master
from pyspark_conveyor.spark.connectors import Connector

_TRANSLATE_S = 10


def mirror(
    source: Annotated[str, typer.Option("--from", metavar="HOST:PORT", help="The cluster to copy from.")],
    target: Annotated[str, typer.Option("--to", metavar="HOST:PORT", help="The cluster to copy to.")],
    topic: Annotated[list[str], typer.Option("--topic", help="A topic to copy; can be repeated.")],
    checkpoint: Annotated[Path, typer.Option(help="Directory for the progress of this mirror.")],
    group: Annotated[
        list[str] | None,
        typer.Option("--group", help="A consumer group whose positions to translate; can be repeated."),
    ] = None,
    prefix: Annotated[str, typer.Option(help="Begins the names of the copies, such as 'west.'.")] = "",
    source_config: Annotated[
        str,
        typer.Option(
            "--from-client-config",
            metavar="FILE",
            help="Settings of clients for the cluster of --from, if they differ from those of --client-config.",
        ),
    ] = "",
    until_end: Annotated[bool, typer.Option("--until-end", help="End at the present ends of the topics.")] = False,
    batch_records: BatchRecords = 100_000,
    master: Master = "local[*]",
    connector: ConnectorChoice = Connector.CONVEYOR,
    connector_jars: ConnectorJars = None,
) -> None:
    """Copy topics to another cluster, each record once, and translate the positions of consumer groups.

    \b
    Example:
      conveyor pipeline mirror --from east:9092 --to west:9092 --topic orders --group billing --checkpoint ./mirror
    """
    from conveyor.cli.terminal.progress import count_progress
    from pyspark_conveyor.jobs.mirror_job import MirrorRoute
    from pyspark_conveyor.jobs.mirror_job import mirror as run
    from pyspark_conveyor.jobs.mirrored_topics import translate_groups

    brokers = job_brokers(source, source_config), job_brokers(target)
    route = MirrorRoute(source=brokers[0], target=brokers[1], topics=tuple(dict.fromkeys(topic)), prefix=prefix)
    names = {name: route.target_topic(name) for name in route.topics}
    with job_errors():
        session = job_session("conveyor mirror", master, connector, connector_jars)
        with count_progress("mirroring") as show:
            translated_at = time.monotonic()

            def progress(done: int) -> None:
                nonlocal translated_at
                show.update(done, None)
                if group and not until_end and time.monotonic() > translated_at + _TRANSLATE_S:
                    translate_groups(*brokers, names, group)
                    translated_at = time.monotonic()

            copied = run(
                session,
                route,
                checkpoint.resolve(),
                progress,
                until_end=until_end,
                batch_records=batch_records,
                connector=connector,
            )
        typer.echo(f"mirrored {copied:,} records of {', '.join(route.topics)}")
        for name, bounds in translate_groups(*brokers, names, group or ()).items():
            typer.echo(f"translated {sum(map(len, bounds.values()))} positions of group {name}")
