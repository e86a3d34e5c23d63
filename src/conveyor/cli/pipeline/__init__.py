"""`conveyor pipeline`: jobs on Spark. One file for each command."""

import typer

from conveyor.cli.pipeline.archive_command import archive
from conveyor.cli.pipeline.deadletters_command import deadletters
from conveyor.cli.pipeline.metrics_command import metrics
from conveyor.cli.pipeline.mirror_command import mirror
from conveyor.cli.pipeline.replay_command import replay
from conveyor.cli.pipeline.run_command import run
from conveyor.cli.pipeline.status_command import status
from conveyor.cli.pipeline.stop_command import stop
from conveyor.cli.pipeline.transform_command import transform

app = typer.Typer(help="Run jobs on Spark (needs conveyor[spark]).", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _jobs() -> None:
    """Run jobs on Spark (needs conveyor[spark])."""


app.command()(archive)
app.command()(transform)
app.command()(metrics)
app.command()(run)
app.command()(status)
app.command()(stop)
app.command()(replay)
app.command()(mirror)
app.command()(deadletters)
