"""`conveyor queue state`: show the state of a message in each subscription of its topic."""

import json
from typing import Annotated, Any

import typer

from conveyor.cli.queues.queue_text import consumer_text
from conveyor.cli.terminal.cluster_http import ClusterBootstrap, Http, http_client
from conveyor.cli.terminal.http_client import path_to
from conveyor.cli.terminal.kafka_client import Json
from conveyor.cli.terminal.position import iso_time
from conveyor.cli.terminal.table import print_table


def state(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.", show_default=False)],
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="The message's id.", show_default=False)],
    as_json: Json = False,
    bootstrap: ClusterBootstrap = None,
    http: Http = None,
) -> None:
    """Show the state of a message in each subscription of its topic.

    Due is the time at which a state ends by itself, settled the time at which the message was settled. The time and the
    deliveries of a settled message are known only if its settlement is among the last ones.

    \b
    Examples:
      conveyor queue state orders 0-17
      conveyor queue state orders 0-17 --json
    """
    states = http_client(bootstrap, http).get(path_to("topics", topic, "messages", message, "ack"))
    if as_json:
        return typer.echo(json.dumps(states))
    if not states["subscriptions"]:
        return typer.echo(f"topic '{topic}' has no subscriptions")
    columns = ["subscription", "state", "deliveries", "due", "settled", "consumer"]
    print_table(columns, [_row(name, shown) for name, shown in sorted(states["subscriptions"].items())])


def _row(name: str, shown: dict[str, Any]) -> list[Any]:
    times = [None if shown[field] is None else iso_time(shown[field]) for field in ("due_ms", "settled_ms")]
    return [name, shown["state"], shown["delivery_count"], *times, consumer_text(shown["consumer"])]
