"""`conveyor queue seek` and `purge`: move a subscription, or settle all its messages without delivery."""

import json
import re
from typing import Annotated

import typer

from conveyor.cli.queues.queue_create import start_document
from conveyor.cli.queues.queue_options import Name
from conveyor.cli.terminal.cluster_http import ClusterBootstrap, Http, http_client
from conveyor.cli.terminal.confirmation import Yes, confirm
from conveyor.cli.terminal.http_client import path_to
from conveyor.cli.terminal.kafka_client import ClientError, Json, counted

_OFFSET = re.compile(r"([0-9]{1,6})=([0-9]{1,19})")


def seek(
    name: Name,
    to: Annotated[
        list[str],
        typer.Option(
            "--to",
            metavar="earliest|latest|TIME|PARTITION=OFFSET",
            help="The next message to deliver; PARTITION=OFFSET can be repeated.",
        ),
    ],
    as_json: Json = False,
    bootstrap: ClusterBootstrap = None,
    http: Http = None,
) -> None:
    """Move a subscription forward or back.

    Messages from the new position on are delivered, even if they were settled before; earlier ones are not. With
    PARTITION=OFFSET, the other partitions stay where they are.

    TIME is a date and time, in local time unless it names a zone (2026-11-21T08:00, 2026-11-21T08:00Z), or how long ago
    (-90s, -15m, -2h, -3d).

    \b
    Examples:
      conveyor queue seek billing --to earliest
      conveyor queue seek billing --to -2h
      conveyor queue seek billing --to 0=17 --to 3=250
    """
    moved = http_client(bootstrap, http).post(path_to("subscriptions", name, "seek"), _place(to))
    typer.echo(json.dumps(moved) if as_json else f"moved {name} to {', '.join(to)}")


def _place(to: list[str]) -> dict[str, object]:
    """Return the body of the request. Raises ClientError."""
    matches = [_OFFSET.fullmatch(position) for position in to]
    offsets = {match[1]: int(match[2]) for match in matches if match is not None}
    if len(offsets) == len(to):
        return {"offsets": offsets}
    if len(to) > 1:
        raise ClientError("--to: give one position for all partitions, or PARTITION=OFFSET for each partition to move")
    return {"start": start_document("--to", to[0], "PARTITION=OFFSET")}


def purge(
    name: Name,
    yes: Yes = False,
    as_json: Json = False,
    bootstrap: ClusterBootstrap = None,
    http: Http = None,
) -> None:
    """Settle all messages of a subscription without delivering them.

    The topic keeps the messages.

    \b
    Examples:
      conveyor queue purge billing
      conveyor queue purge billing --yes
    """
    client, path = http_client(bootstrap, http), path_to("subscriptions", name)
    waiting = counted(client.get(path)["unsettled"], "message")
    confirm(f"Settle {waiting} of {name} unread?", yes)
    purged = client.post(f"{path}/purge")["purged"]
    typer.echo(json.dumps({"purged": purged}) if as_json else f"purged {counted(purged, 'message')} of {name}")
