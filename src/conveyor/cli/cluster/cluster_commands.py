"""The table of `conveyor cluster`."""

import typer

from conveyor.cli.cluster.cluster_elect import elect
from conveyor.cli.cluster.cluster_moves import drain, reassign, rebalance
from conveyor.cli.cluster.cluster_settings import settings
from conveyor.cli.cluster.cluster_status import brokers, status
from conveyor.cli.cluster.cluster_unregister import unregister

app = typer.Typer(
    help="Inspect the brokers of a cluster and their settings; move replicas and leaders between them.\n\n"
    "\b\nExamples:\n  conveyor cluster status\n  conveyor cluster drain 3",
    no_args_is_help=True,
    rich_markup_mode=None,
)

for command in (status, brokers, reassign, drain, rebalance, elect, settings, unregister):
    app.command()(command)
