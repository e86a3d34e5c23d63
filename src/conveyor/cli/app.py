"""The table of commands for Typer. A command imports its client libraries when it runs, so that `--help` is quick."""

import os
from typing import Annotated

import typer

from conveyor import __version__
from conveyor.cli import certificates, demo, pipeline, settings, zookeeper
from conveyor.cli.cluster import cluster_commands
from conveyor.cli.groups import group
from conveyor.cli.queues import dlq, queue, schedule
from conveyor.cli.records import consume, produce
from conveyor.cli.terminal.client_security import FILE_VARIABLE
from conveyor.cli.topics import topic
from conveyor.cli.transactions import txn
from conveyor.cli.users import acl_commands, audit_commands, user

app = typer.Typer(
    help="Conveyor: one durable, partitioned log, read as a stream and as a queue.\n\n"
    "Start a broker with `conveyor serve`, then, in another terminal:\n\n"
    "  echo hello | conveyor produce greetings\n\n  conveyor consume greetings --from earliest --max 1",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"conveyor {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
    client_config: Annotated[
        str | None,
        typer.Option(
            "--client-config",
            envvar=FILE_VARIABLE,
            metavar="PATH",
            help="File of name=value that tells how to connect, for brokers with TLS or users (docs/security.md).",
        ),
    ] = None,
) -> None:
    """Handle the options of every command."""
    if client_config is not None:
        os.environ[FILE_VARIABLE] = client_config


@app.command()
def serve() -> None:
    """Run a broker."""
    raise AssertionError("`conveyor.cli.main` runs `serve` without Typer; this entry only lists it in the help")


for command in (
    produce.produce, consume.consume, settings.settings, demo.demo, certificates.certificates, zookeeper.zookeeper,
):  # fmt: skip
    app.command()(command)
app.add_typer(topic.app, name="topic")
app.add_typer(group.app, name="group")
app.add_typer(txn.app, name="txn")
app.add_typer(cluster_commands.app, name="cluster")
app.add_typer(user.app, name="user")
app.add_typer(acl_commands.app, name="acl")
app.add_typer(audit_commands.app, name="audit")
app.add_typer(queue.app, name="queue")
app.add_typer(dlq.app, name="dlq")
app.add_typer(schedule.app, name="schedule")
app.add_typer(pipeline.app, name="pipeline")
