"""`conveyor dlq`: the commands list, peek and drop for dead letters. `dlq_redrive` has redrive."""

import json
from typing import Annotated, Any

import typer

from conveyor.cli.queues.dlq_redrive import Filter, MessageIds, redrive, refuse_unknown, selection
from conveyor.cli.queues.queue_options import Name
from conveyor.cli.queues.queue_text import as_text, one_line
from conveyor.cli.terminal.cluster_http import ClusterBootstrap, Http, http_client
from conveyor.cli.terminal.confirmation import Yes, confirm
from conveyor.cli.terminal.http_client import path_to
from conveyor.cli.terminal.kafka_client import Json, counted
from conveyor.cli.terminal.position import iso_time
from conveyor.cli.terminal.table import print_table

app = typer.Typer(
    help="Inspect dead letters, deliver them again, drop them.\n\n"
    "A message becomes a dead letter when a subscription has delivered it too often, or when it was rejected. A copy\n"
    "in the subscription's dead-letter topic gives the reason.\n\n"
    "\b\nExamples:\n  conveyor dlq list\n  conveyor dlq peek billing\n  conveyor dlq redrive billing --rate 100",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def list_(as_json: Json = False, bootstrap: ClusterBootstrap = None, http: Http = None) -> None:
    """List the dead-letter topics and the subscriptions that use each.

    \b
    Example:
      conveyor dlq list
    """
    topics = http_client(bootstrap, http).get("/dlq")["topics"]
    if as_json:
        return typer.echo(json.dumps(topics))
    if not topics:
        return typer.echo("no subscriptions yet, so no dead letters: see 'conveyor queue create'")
    columns = ["dead-letter topic", "dead letters", "subscriptions"]
    print_table(columns, [[topic["topic"], topic["depth"], ",".join(topic["subscriptions"])] for topic in topics])


def peek(
    name: Name,
    max_: Annotated[
        int, typer.Option("--max", "-n", min=1, max=1000, metavar="N", help="The largest number of dead letters.")
    ] = 10,
    filter_: Filter = None,
    as_json: Json = False,
    bootstrap: ClusterBootstrap = None,
    http: Http = None,
) -> None:
    """Show the oldest dead letters of a subscription and their reasons.

    The first column is the id of the original message, which redrive and drop take. The other columns show its copy in
    the dead-letter topic; the last one is the id of the copy. Bytes that are not text are shown in base64.

    \b
    Examples:
      conveyor dlq peek billing
      conveyor dlq peek billing --filter 'key == "customer-7"' --json
    """
    query = {"limit": max_, "filter": filter_}
    answer = http_client(bootstrap, http).get(path_to("dlq", name), query)
    letters, without_copy = answer["messages"], answer["without_copy"] or 0
    if as_json:
        typer.echo(json.dumps(letters))
    elif letters:
        columns = ["message", "reason", "deliveries", "last failure", "key", "payload", "dead letter"]
        print_table(columns, [_row(message) for message in letters])
    elif filter_ or not without_copy:
        typer.echo(f"no dead letters of {name}" + (" that match the filter" if filter_ else ""))
    if without_copy:
        typer.echo(
            f"{counted(without_copy, 'dead letter')} of {name} without a copy in the dead-letter topic to show: "
            f"'conveyor dlq redrive {name}' still delivers the originals",
            err=True,
        )


def _row(message: dict[str, Any]) -> list[Any]:
    facts = [one_line(message["reason"]), message["deliveries"], iso_time(message["last_failure_ms"])]
    texts = [one_line(as_text(message, "key"), 20), one_line(as_text(message, "payload"))]
    return [message["message_id"], *facts, *texts, message["dead_letter_id"]]


def drop(
    name: Name,
    filter_: Filter = None,
    message_id: MessageIds = None,
    yes: Yes = False,
    as_json: Json = False,
    bootstrap: ClusterBootstrap = None,
    http: Http = None,
) -> None:
    """Drop dead letters: they no longer count and cannot be redriven.

    Their copies stay in the dead-letter topic until its retention deletes them.

    \b
    Examples:
      conveyor dlq drop billing
      conveyor dlq drop billing --filter 'key == "customer-7"' --yes
      conveyor dlq drop billing --message-id 0-17 --message-id 2-4
    """
    client = http_client(bootstrap, http)
    dead = client.get(path_to("subscriptions", name))["dead"]
    which = "the selected ones of " if filter_ or message_id else ""
    confirm(f"Drop {which}{counted(dead, 'dead letter')} of {name}?", yes)
    answer = client.post(path_to("dlq", name, "drop"), selection(filter_, message_id))
    dropped = f"dropped {counted(answer['dropped'], 'dead letter')} of {name}"
    typer.echo(json.dumps(answer) if as_json else dropped)
    refuse_unknown(name, answer["unknown"])


app.command("list")(list_)
for command in (peek, redrive, drop):
    app.command()(command)
