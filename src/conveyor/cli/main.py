"""The entry point. What a command needs is imported when it runs, so that `serve` is ready in a blink.

Exit codes: 0 done, 1 it could not be done (one line on stderr says why), 2 the command line is wrong.
"""

import sys
from typing import Annotated

import typer

from conveyor import __version__

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
) -> None:
    """Options of every command."""


def main() -> None:
    """Run the command of the process's arguments. Expected failures print one line and exit with 1."""
    from conveyor.kernel.errors import ConveyorError

    _add_commands(sys.argv[1:2])
    try:
        app(prog_name="conveyor")
    except ConveyorError as error:
        typer.echo(f"conveyor: {error}", err=True)
        sys.exit(1)
    except OSError as error:
        typer.echo(f"conveyor: {error.filename or 'output'}: {error.strerror or error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def _add_commands(first_argument: list[str]) -> None:
    """Add the command that is asked for; all of them for help, or for one that is not there."""
    if first_argument == ["serve"]:
        from conveyor.cli import serve

        app.command()(serve.serve)
        return
    from conveyor.cli import consume, demo, group, pipeline, produce, serve, settings, topic

    for command in (serve.serve, produce.produce, consume.consume, settings.settings, demo.demo):
        app.command()(command)
    app.add_typer(topic.app, name="topic")
    app.add_typer(group.app, name="group")
    app.add_typer(pipeline.app, name="pipeline")


if __name__ == "__main__":
    main()
