"""`conveyor queue peek`: show unsettled messages."""

import json
from typing import Annotated, Any

import typer

from conveyor.cli.queues.queue_options import Name
from conveyor.cli.queues.queue_text import as_text, consumer_text, one_line
from conveyor.cli.terminal.cluster_http import ClusterBootstrap, Http, http_client
from conveyor.cli.terminal.http_client import path_to
from conveyor.cli.terminal.kafka_client import Json
from conveyor.cli.terminal.position import iso_time
from conveyor.cli.terminal.table import print_table


def peek(
    name: Name,
    max_: Annotated[
        int, typer.Option("--max", "-n", min=1, max=1000, metavar="N", help="The largest number of messages.")
    ] = 10,
    as_json: Json = False,
    bootstrap: ClusterBootstrap = None,
    http: Http = None,
) -> None:
    """Show the unsettled messages without leasing them.

    Due is the time at which a state ends by itself: a lease expires, or a delay ends. Consumer is the client that holds
    the lease: its id if it has given one, its user, and its address. Bytes that are not text are shown in base64.

    \b
    Examples:
      conveyor queue peek billing
      conveyor queue peek billing --max 100 --json
    """
    messages = http_client(bootstrap, http).get(path_to("subscriptions", name, "peek"), {"max_messages": max_})[
        "messages"
    ]
    if as_json:
        return typer.echo(json.dumps(messages))
    if not messages:
        return typer.echo("no messages: all are settled")
    columns = ["message", "state", "deliveries", "due", "consumer", "key", "payload"]
    print_table(columns, [_row(message) for message in messages])


def _row(message: dict[str, Any]) -> list[Any]:
    due = None if message["due_ms"] is None else iso_time(message["due_ms"])
    texts = [one_line(as_text(message, "key"), 20), one_line(as_text(message, "payload"))]
    consumer = consumer_text(message.get("consumer"))
    return [message["message_id"], message["state"], message["delivery_count"], due, consumer, *texts]
