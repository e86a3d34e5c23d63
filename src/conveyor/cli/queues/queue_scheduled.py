"""`conveyor queue scheduled`: list the messages that a subscription withholds until they are due."""

import json
from typing import Annotated, Any

import typer

from conveyor.cli.queues.queue_options import Name
from conveyor.cli.terminal.cluster_http import ClusterBootstrap, Http, http_client
from conveyor.cli.terminal.http_client import HttpClient, path_to
from conveyor.cli.terminal.kafka_client import Json
from conveyor.cli.terminal.position import iso_time
from conveyor.cli.terminal.table import print_table

_PAGE = 1000


def scheduled(
    name: Name,
    max_: Annotated[
        int, typer.Option("--max", "-n", min=1, max=100_000, metavar="N", help="The largest number of messages.")
    ] = 100,
    as_json: Json = False,
    bootstrap: ClusterBootstrap = None,
    http: Http = None,
) -> None:
    """List the messages that are not due, the next one first.

    Why is delay if the publisher has delayed the message, and backoff if it waits for its next delivery after a failed
    one. Deliveries is the number of failed deliveries.

    \b
    Examples:
      conveyor queue scheduled billing
      conveyor queue scheduled billing --max 5000 --json
    """
    messages, is_complete = _messages(http_client(bootstrap, http), name, max_)
    if not is_complete:
        typer.echo("the broker still reads messages: some may be missing", err=True)
    if as_json:
        return typer.echo(json.dumps(messages))
    if not messages:
        return typer.echo("no messages wait for their time")
    print_table(["message", "due", "why", "deliveries"], [_row(message) for message in messages])


def _messages(client: HttpClient, name: str, count: int) -> tuple[list[dict[str, Any]], bool]:
    """Return the first messages, and whether none may be missing."""
    messages: list[dict[str, Any]] = []
    is_complete, query = True, {"limit": min(count, _PAGE)}
    while True:
        page = client.get(path_to("subscriptions", name, "scheduled"), query)
        messages += page["messages"]
        is_complete = is_complete and page["complete"]
        if page["next"] is None or len(messages) >= count:
            return messages[:count], is_complete
        query["after"] = page["next"]


def _row(message: dict[str, Any]) -> list[Any]:
    return [message["message_id"], iso_time(message["due_ms"]), message["reason"], message["delivery_count"]]
