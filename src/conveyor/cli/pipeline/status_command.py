"""`conveyor pipeline status`: how far a pipeline is."""

import time
from pathlib import Path
from typing import Annotated

import typer

from conveyor.cli.pipeline.job_run import job_errors
from conveyor.cli.terminal.kafka_client import Json

Pipeline = Annotated[Path, typer.Argument(help="The file of the pipeline, or its checkpoint directory.")]


def status(pipeline: Pipeline, json: Json = False) -> None:
    """Show whether a pipeline runs, and the rates of its last micro-batches."""
    import msgspec

    from pyspark_conveyor.declared.run_directory import read_progress

    with job_errors():
        progress, is_running = read_progress(checkpoint_of(pipeline))
    state: str = progress.state
    if state in ("running", "stopping") and not is_running:
        state = "killed"
    if json:
        typer.echo(msgspec.json.encode(msgspec.structs.asdict(progress) | {"state": state}).decode())
        return
    age = max(0.0, time.time() - progress.updated_s)
    process = f" (process {progress.pid})" if is_running else ""
    typer.echo(
        f"{progress.name} {state}{process}, {age:,.0f} s ago" + (f": {progress.error}" if progress.error else "")
    )
    for name, query in progress.queries.items():
        typer.echo(
            f"  {name}: batch {query.batch}, {query.records:,} records in this run,"
            f" {query.input_rate:,.0f}/s arriving, {query.processing_rate:,.0f}/s processed"
        )


def checkpoint_of(pipeline: Path) -> Path:
    """Return the checkpoint directory of a pipeline. Raises PipelineError."""
    from pyspark_conveyor.declared.pipeline_file import read_pipeline

    return pipeline if pipeline.is_dir() else Path(read_pipeline(pipeline).checkpoint)
