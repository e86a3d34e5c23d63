"""Options of the queue commands: durations, choices."""

from typing import Annotated

import typer

from conveyor.cli.terminal.kafka_client import ClientError
from conveyor.http_api.requests.durations import Duration

Name = Annotated[str, typer.Argument(metavar="NAME", help="The subscription's name.")]


def duration_ms(option: str, text: str) -> int:
    """Parse `1200ms`, `5s`, `10m` or `2h`. Raises ClientError, which names the option."""
    try:
        return int(Duration.parse(text))
    except ValueError as error:
        raise ClientError(f"{option}: {error}") from error


def one_of(option: str, text: str, choices: tuple[str, ...]) -> str:
    """Return a choice in the API's spelling, with underscores for dashes. Raises ClientError with the option's name."""
    chosen = text.replace("-", "_")
    if chosen not in choices:
        spelled = [choice.replace("_", "-") for choice in choices]
        raise ClientError(f"{option} {text}: expected {', '.join(spelled[:-1])} or {spelled[-1]}")
    return chosen
