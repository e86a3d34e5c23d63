"""`conveyor pipeline`: jobs on Spark. One file for each command."""

import typer

from conveyor.cli.pipeline.archive_command import archive

app = typer.Typer(help="Run jobs on Spark (needs conveyor[spark]).", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _jobs() -> None:
    """Run jobs on Spark (needs conveyor[spark])."""


app.command()(archive)
