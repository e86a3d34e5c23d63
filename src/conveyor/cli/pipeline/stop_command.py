"""`conveyor pipeline stop`: ends a running pipeline."""

from typing import Annotated

import typer

from conveyor.cli.pipeline.job_run import job_errors
from conveyor.cli.pipeline.status_command import Pipeline, checkpoint_of


def stop(
    pipeline: Pipeline,
    timeout: Annotated[int, typer.Option(min=1, help="How many seconds to wait for the end.")] = 600,
) -> None:
    """Stop a running pipeline after its present micro-batch. The next run continues there."""
    from pyspark_conveyor.declared.run_directory import read_progress, request_stop

    with job_errors():
        checkpoint = checkpoint_of(pipeline)
        name = read_progress(checkpoint)[0].name
        has_stopped = request_stop(checkpoint, timeout)
    typer.echo(f"{name} stopped" if has_stopped else f"{name} is not running")
