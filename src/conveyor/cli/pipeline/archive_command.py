"""`conveyor pipeline archive`: topics into a lake."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from conveyor.cli.pipeline.connector_options import BatchRecords, ConnectorChoice, ConnectorJars
from conveyor.cli.pipeline.job_run import job_brokers, job_errors, job_session
from conveyor.cli.pipeline.run_command import Master
from conveyor.cli.terminal.kafka_client import DEFAULT_BOOTSTRAP, Bootstrap, ClientError
from pyspark_conveyor.spark.connectors import Connector


class LakeChoice(StrEnum):
    """The values of `--format`."""

    PARQUET = "parquet"
    DELTA = "delta"


def archive(
    topic: Annotated[list[str], typer.Option("--topic", help="A topic to archive; can be repeated.")],
    to: Annotated[Path, typer.Option("--to", help="Directory of the lake; on a cluster, one that all nodes share.")],
    master: Master = "local[*]",
    batch_records: BatchRecords = 500_000,
    schema: Annotated[
        str,
        typer.Option(
            metavar="COLUMNS|FILE|infer",
            help="Schema of the payloads, which become typed columns: 'name type, ...' or infer for JSON, a file"
            " .avsc for Avro, or a descriptor set (.desc, .binpb, .pb) for Protobuf. The lake keeps it.",
        ),
    ] = "",
    message: Annotated[str, typer.Option(help="Full name of the Protobuf message.")] = "",
    evolve: Annotated[bool, typer.Option("--evolve", help="Let --schema add fields to those of the lake.")] = False,
    format: Annotated[
        LakeChoice | None, typer.Option(help="Format of a new lake; delta needs conveyor[delta].")
    ] = None,
    compact: Annotated[
        bool, typer.Option("--compact", help="Merge the small files of finished days (UTC) afterwards.")
    ] = False,
    connector: ConnectorChoice = Connector.CONVEYOR,
    connector_jars: ConnectorJars = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Write topics to Parquet files, partitioned by topic and day, up to their present ends.

    Run it again to continue where the last run stopped. Every record is written exactly once, even if runs are
    interrupted.
    """
    from conveyor.cli.terminal.progress import count_progress
    from pyspark_conveyor.jobs.archive import archive as run
    from pyspark_conveyor.payloads.schema_request import SchemaRequest

    if not schema and (message or evolve):
        raise ClientError("--message and --evolve belong to --schema: give it, too")
    with job_errors():
        session = job_session("conveyor archive", master, connector, connector_jars)
        with count_progress("archiving") as show:
            result = run(
                session,
                job_brokers(bootstrap),
                topic,
                to.resolve(),
                batch_records,
                show.update,
                schema=SchemaRequest(text=schema, message=message, may_evolve=evolve) if schema else None,
                compacting=compact,
                connector=connector,
                lake_format=None if format is None else format.value,
            )
    typer.echo(f"archived {result.records:,} records of {', '.join(result.topics)} to {to}")
    if result.bad_records:
        typer.echo(f"{result.bad_records:,} of them do not match the schema and are in {to / '_bad'}")
    if result.compacted is not None:
        small, merged = result.compacted.small_files, result.compacted.merged_files
        typer.echo(f"merged {small:,} small files into {merged:,}")
