"""`conveyor schedule`: publish a message whenever a cron expression matches."""

import json
from base64 import b64encode
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from conveyor.cli.queues.queue_text import as_text, one_line
from conveyor.cli.terminal.cluster_http import ClusterBootstrap, Http, http_client
from conveyor.cli.terminal.http_client import path_to
from conveyor.cli.terminal.kafka_client import Json, named_value
from conveyor.cli.terminal.table import print_table

app = typer.Typer(
    help="Publish messages on a schedule.\n\n"
    "\b\nExamples:\n  conveyor schedule add nightly --topic reports --cron '0 3 * * *'\n  conveyor schedule list",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name: letters, digits, '.', '_' and '-'.")],
    topic: Annotated[str, typer.Option("--topic", metavar="TOPIC", help="Topic to publish to.")],
    cron: Annotated[
        str, typer.Option("--cron", metavar="EXPR", help="Minute, hour, day of month, month, day of week.")
    ],
    time_zone: Annotated[
        str, typer.Option(metavar="ZONE", help="Time zone of the cron expression, such as Europe/Berlin.")
    ] = "UTC",
    payload: Annotated[
        str, typer.Option("--payload", metavar="TEXT|@FILE", help="The payload, or a file that holds it.")
    ] = "",
    key: Annotated[str | None, typer.Option("--key", "-k", help="The message's key.")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header; can be repeated."),
    ] = None,
    as_json: Json = False,
    bootstrap: ClusterBootstrap = None,
    http: Http = None,
) -> None:
    """Publish a message whenever a cron expression matches.

    If several times pass while no broker runs, the message is published once when a broker runs again.

    \b
    Examples:
      conveyor schedule add nightly --topic reports --cron '0 3 * * *' --time-zone Europe/Berlin
      conveyor schedule add pulse --topic checks --cron '*/5 * * * *' --payload @check.json --key web
    """
    document = {
        "name": name,
        "topic": topic,
        "cron": cron,
        "time_zone": time_zone,
        "key": key,
        "headers": _headers(header or []),
        **_payload(payload),
    }
    made = http_client(bootstrap, http).post("/schedules", document)
    if as_json:
        return typer.echo(json.dumps(made))
    typer.echo(f"added schedule {name}: next at {_next(made) or 'no time at all'}")


def list_(as_json: Json = False, bootstrap: ClusterBootstrap = None, http: Http = None) -> None:
    """List the schedules.

    \b
    Example:
      conveyor schedule list
    """
    schedules = http_client(bootstrap, http).get("/schedules")["schedules"]
    if as_json:
        return typer.echo(json.dumps(schedules))
    if not schedules:
        return typer.echo("no schedules yet: create one with 'conveyor schedule add'")
    columns = ["schedule", "topic", "cron", "time zone", "next", "key", "payload"]
    print_table(columns, [_row(schedule) for schedule in schedules])


def remove(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.")],
    as_json: Json = False,
    bootstrap: ClusterBootstrap = None,
    http: Http = None,
) -> None:
    """Remove a schedule. The messages that it published stay. With --json, prints null.

    \b
    Example:
      conveyor schedule remove nightly
    """
    removed = http_client(bootstrap, http).delete(path_to("schedules", name))
    typer.echo(json.dumps(removed) if as_json else f"removed schedule {name}")


def _headers(given: list[str]) -> dict[str, list[str]]:
    headers: dict[str, list[str]] = {}
    for header in given:
        name, value = named_value("--header", header, "source=cron")
        headers.setdefault(name, []).append(value)
    return headers


def _payload(text: str) -> dict[str, str]:
    """Return the fields of a payload: UTF-8 as a string, other bytes in base64."""
    if not text.startswith("@"):
        return {"payload": text}
    content = Path(text[1:]).read_bytes()
    try:
        return {"payload": content.decode()}
    except UnicodeDecodeError:
        return {"payload": b64encode(content).decode(), "payload_encoding": "base64"}


def _next(schedule: dict[str, Any]) -> str | None:
    """Return the next time in the schedule's time zone."""
    from zoneinfo import ZoneInfo

    if schedule["next_ms"] is None:
        return None
    moment = datetime.fromtimestamp(schedule["next_ms"] / 1000, ZoneInfo(schedule["time_zone"]))
    return moment.isoformat(timespec="minutes")


def _row(schedule: dict[str, Any]) -> list[Any]:
    texts = [one_line(as_text(schedule, "key"), 20), one_line(as_text(schedule, "payload"))]
    return [schedule["name"], schedule["topic"], schedule["cron"], schedule["time_zone"], _next(schedule), *texts]


app.command()(add)
app.command("list")(list_)
app.command()(remove)
