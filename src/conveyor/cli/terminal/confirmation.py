"""Confirmation of changes that cannot be undone."""

import sys
from typing import Annotated

import typer

from conveyor.cli.terminal.kafka_client import ClientError

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def confirm(question: str, yes: bool) -> None:
    """Ask for confirmation, unless `yes`. Raises ClientError if the answer is no or cannot be read."""
    if yes:
        return
    typer.echo(f"{question} [y/N]: ", nl=False, err=True)
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        typer.echo(err=True)
    if answer.strip().lower() not in ("y", "yes"):
        raise ClientError("nothing has been changed: answer yes, or add --yes")
