"""`conveyor queue`: the commands list, pause, resume and delete. The `queue_...` modules have the others."""

import json
from typing import Annotated, Any

import typer

from conveyor.cli.queues.queue_create import create
from conveyor.cli.queues.queue_describe import describe
from conveyor.cli.queues.queue_options import Name
from conveyor.cli.queues.queue_peek import peek
from conveyor.cli.queues.queue_pull import pull
from conveyor.cli.queues.queue_push import push
from conveyor.cli.queues.queue_scheduled import scheduled
from conveyor.cli.queues.queue_seek import purge, seek
from conveyor.cli.queues.queue_settle import ack, nack
from conveyor.cli.queues.queue_state import state
from conveyor.cli.queues.queue_text import age
from conveyor.cli.terminal.cluster_http import ClusterBootstrap, Http, http_client
from conveyor.cli.terminal.http_client import HttpClient, RefusedError, path_to
from conveyor.cli.terminal.kafka_client import Json
from conveyor.cli.terminal.table import print_table

app = typer.Typer(
    help="Read a topic as a queue.\n\n"
    "A subscription delivers the messages of a topic one by one. A client that pulls a message gets a lease on it,\n"
    "and then acknowledges the message (ack) or returns it (nack). A message that is not acknowledged in time is\n"
    "delivered again; one that fails too often becomes a dead letter ('conveyor dlq').\n\n"
    "\b\nExamples:\n"
    "  conveyor queue create orders billing --start earliest\n"
    "  conveyor queue pull billing --max 10 --ack",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def list_(
    topic: Annotated[
        str | None, typer.Option("--topic", metavar="TOPIC", help="Only subscriptions of this topic.")
    ] = None,
    as_json: Json = False,
    bootstrap: ClusterBootstrap = None,
    http: Http = None,
) -> None:
    """List the subscriptions.

    Depth is the number of messages that can be pulled now, in flight the number of leased messages, dead the number of
    dead letters, and oldest the age of the oldest unsettled message.

    \b
    Examples:
      conveyor queue list
      conveyor queue list --topic orders --json
    """
    client = http_client(bootstrap, http)
    path = "/subscriptions" if topic is None else path_to("topics", topic, "subscriptions")
    names = [subscription["name"] for subscription in client.get(path)["subscriptions"]]
    subscriptions = [subscription for name in names if (subscription := _find(client, name)) is not None]
    if as_json:
        return typer.echo(json.dumps(subscriptions))
    if not subscriptions:
        return typer.echo("no subscriptions yet: create one with 'conveyor queue create TOPIC NAME'")
    columns = ["name", "topic", "state", "depth", "in flight", "delayed", "dead", "oldest"]
    print_table(columns, [_row(subscription) for subscription in subscriptions])


def _find(client: HttpClient, name: str) -> Any:
    """Return the subscription; None if it was deleted meanwhile."""
    try:
        return client.get(path_to("subscriptions", name))
    except RefusedError as refused:
        if refused.kind == "unknown_subscription":
            return None
        raise


def _row(subscription: dict[str, Any]) -> list[Any]:
    activity = "paused" if subscription["paused"] else "active"
    numbers = [subscription["depth"], subscription["in_flight"], subscription["delayed"], subscription["dead"]]
    return [subscription["name"], subscription["topic"], activity, *numbers, age(subscription["oldest_age_ms"])]


def pause(name: Name, as_json: Json = False, bootstrap: ClusterBootstrap = None, http: Http = None) -> None:
    """Pause a subscription: it delivers nothing until it is resumed.

    Leased messages stay leased and can be acknowledged.

    \b
    Example:
      conveyor queue pause billing
    """
    paused = http_client(bootstrap, http).post(path_to("subscriptions", name, "pause"))
    typer.echo(json.dumps(paused) if as_json else f"paused {name}")


def resume(name: Name, as_json: Json = False, bootstrap: ClusterBootstrap = None, http: Http = None) -> None:
    """Resume a paused subscription.

    \b
    Example:
      conveyor queue resume billing
    """
    resumed = http_client(bootstrap, http).post(path_to("subscriptions", name, "resume"))
    typer.echo(json.dumps(resumed) if as_json else f"resumed {name}")


def delete(name: Name, as_json: Json = False, bootstrap: ClusterBootstrap = None, http: Http = None) -> None:
    """Delete a subscription.

    The state of its messages is deleted too; the topic keeps the messages. With --json, prints null.

    \b
    Example:
      conveyor queue delete billing
    """
    deleted = http_client(bootstrap, http).delete(path_to("subscriptions", name))
    typer.echo(json.dumps(deleted) if as_json else f"deleted subscription {name}")


app.command()(create)
app.command("list")(list_)
app.command()(describe)
app.command()(pull)
for command in (push, ack, nack, peek, scheduled, state, purge, seek, pause, resume, delete):
    app.command()(command)
