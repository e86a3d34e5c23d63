"""`conveyor queue pull`: lease messages and print them."""

import sys
import time
from typing import Annotated, Any

import typer

from conveyor.cli.queues.queue_options import Name, duration_ms
from conveyor.cli.queues.queue_settle import report_settled
from conveyor.cli.queues.queue_text import WriteMessage, message_writer
from conveyor.cli.terminal.cluster_http import ClusterBootstrap, Http, http_client
from conveyor.cli.terminal.http_client import TIMEOUT_S, HttpClient, path_to
from conveyor.cli.terminal.kafka_client import ClientError, counted

_MOST_AT_ONCE = 100
_LONGEST_WAIT_MS = 20_000


def pull(
    name: Name,
    max_: Annotated[int, typer.Option("--max", "-n", min=1, metavar="N", help="The largest number of messages.")] = 1,
    wait: Annotated[
        str, typer.Option("--wait", metavar="DURATION", help="How long to wait if there are fewer messages.")
    ] = "0s",
    visibility: Annotated[
        str | None, typer.Option("--visibility", metavar="DURATION", help="How long the leases last.")
    ] = None,
    client_id: Annotated[
        str | None,
        typer.Option("--client-id", metavar="ID", help="What 'conveyor queue peek' shows as the holder of the leases."),
    ] = None,
    ack: Annotated[bool, typer.Option("--ack/--no-ack", help="Acknowledge the printed messages.")] = False,
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            "-f",
            metavar="text|json|payload",
            help="text: for people; control characters are escaped on a terminal, and kept in a pipe or a file. "
            "json: one line per message. payload: the bytes of the payload alone.",
        ),
    ] = "text",
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    bootstrap: ClusterBootstrap = None,
    http: Http = None,
) -> None:
    """Lease messages and print them.

    Acknowledge them by ack id or message id with 'conveyor queue ack', return them with 'conveyor queue nack', or add
    --ack to acknowledge them at once. A message that is not acknowledged is delivered again when its lease expires.

    A DURATION is 1200ms, 5s, 10m or 2h.

    \b
    Examples:
      conveyor queue pull billing
      conveyor queue pull billing --max 100 --wait 5s --ack --format payload
      conveyor queue pull billing --visibility 10m --json
    """
    write = message_writer("json" if as_json else format_, for_terminal=sys.stdout.isatty())
    wait_ms = duration_ms("--wait", wait)
    visibility_ms = None if visibility is None else duration_ms("--visibility", visibility)
    client, pulled, until = http_client(bootstrap, http), 0, time.monotonic() + wait_ms / 1000
    while pulled < max_:
        left_ms = max(0, int((until - time.monotonic()) * 1000))
        messages = _lease(client, name, min(max_ - pulled, _MOST_AT_ONCE), left_ms, visibility_ms, client_id)
        if not messages and left_ms <= _LONGEST_WAIT_MS:
            break
        _print(messages, write)
        pulled += len(messages)
        if ack and messages:
            _ack(client, name, messages)
    if pulled == 0:
        return typer.echo(_no_messages_reason(client, name), err=True)
    done = "pulled and acknowledged" if ack else "pulled"
    hint = "" if ack else f"; acknowledge with 'conveyor queue ack {name} ID'"
    typer.echo(f"{done} {counted(pulled, 'message')}{hint}", err=True)


def _lease(
    client: HttpClient, name: str, max_messages: int, left_ms: int, visibility_ms: int | None, client_id: str | None
) -> list[dict[str, Any]]:
    wait_ms = min(left_ms, _LONGEST_WAIT_MS)
    query = {
        "max_messages": max_messages,
        "wait": f"{wait_ms}ms",
        "visibility": None if visibility_ms is None else f"{visibility_ms}ms",
        "client_id": client_id,
    }
    answer = client.get(path_to("subscriptions", name, "messages"), query, TIMEOUT_S + wait_ms / 1000)
    messages: list[dict[str, Any]] = answer["messages"]
    return messages


def _print(messages: list[dict[str, Any]], write: WriteMessage) -> None:
    sys.stdout.buffer.writelines(write(message) + b"\n" for message in messages)
    sys.stdout.buffer.flush()


def _no_messages_reason(client: HttpClient, name: str) -> str:
    subscription = client.get(path_to("subscriptions", name))
    if subscription["paused"]:
        return f"no messages: {name} is paused; 'conveyor queue resume {name}' resumes it"
    return f"no messages: {subscription['in_flight']} in flight, {subscription['delayed']} delayed"


def _ack(client: HttpClient, name: str, messages: list[dict[str, Any]]) -> None:
    document = {"ack_ids": [message["ack_id"] for message in messages]}
    results = client.post(path_to("subscriptions", name, "ack"), document)["results"]
    if not report_settled(results):
        raise ClientError("some of the printed messages are not acknowledged: see above")
