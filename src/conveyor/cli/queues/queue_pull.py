"""`conveyor queue pull`: lease messages and print them."""

import sys
import time
from typing import Annotated, Any

import typer

from conveyor.cli.queues.queue_options import Name, duration_ms
from conveyor.cli.queues.queue_settle import report_settled
from conveyor.cli.queues.queue_text import WriteMessage, message_writer
from conveyor.cli.terminal.http_client import DEFAULT_HTTP, TIMEOUT_S, Http, HttpClient, Token, path_to
from conveyor.cli.terminal.kafka_client import ClientError, counted

_MOST_AT_ONCE = 100
_LONGEST_WAIT_MS = 20_000


def pull(
    name: Name,
    max_: Annotated[int, typer.Option("--max", "-n", min=1, metavar="N", help="At most so many messages.")] = 1,
    wait: Annotated[
        str, typer.Option("--wait", metavar="DURATION", help="How long to wait for messages, if there are too few.")
    ] = "0s",
    visibility: Annotated[
        str | None, typer.Option("--visibility", metavar="DURATION", help="How long the leases last.")
    ] = None,
    ack: Annotated[bool, typer.Option("--ack/--no-ack", help="Acknowledge what was printed.")] = False,
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            "-f",
            metavar="text|json|payload",
            help="text: to be read; a terminal gets control characters escaped, a pipe or a file the payload's own "
            "bytes. json: a line each. payload: that alone, its own bytes.",
        ),
    ] = "text",
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    http: Http = DEFAULT_HTTP,
    token: Token = None,
) -> None:
    """Pull messages: lease them, and print them.

    Acknowledge them by their ack_id or message id with 'conveyor queue ack', give them back with 'conveyor queue nack',
    or say --ack here. Without any of these they come again when the lease expires.

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
    client, pulled, until = HttpClient(http, token), 0, time.monotonic() + wait_ms / 1000
    while pulled < max_:
        left_ms = max(0, int((until - time.monotonic()) * 1000))
        messages = _lease(client, name, min(max_ - pulled, _MOST_AT_ONCE), left_ms, visibility_ms)
        if not messages and left_ms <= _LONGEST_WAIT_MS:
            break
        _print(messages, write)
        pulled += len(messages)
        if ack and messages:
            _ack(client, name, messages)
    if pulled == 0:
        return typer.echo(_why_none(client, name), err=True)
    then = ", and acknowledged that" if ack else f"; 'conveyor queue ack {name} ID' acknowledges"
    typer.echo(f"pulled {counted(pulled, 'message')}{then}", err=True)


def _lease(
    client: HttpClient, name: str, max_messages: int, left_ms: int, visibility_ms: int | None
) -> list[dict[str, Any]]:
    wait_ms = min(left_ms, _LONGEST_WAIT_MS)
    query = {
        "max_messages": max_messages,
        "wait": f"{wait_ms}ms",
        "visibility": None if visibility_ms is None else f"{visibility_ms}ms",
    }
    found = client.get(path_to("subscriptions", name, "messages"), query, TIMEOUT_S + wait_ms / 1000)
    messages: list[dict[str, Any]] = found["messages"]
    return messages


def _print(messages: list[dict[str, Any]], write: WriteMessage) -> None:
    sys.stdout.buffer.writelines(write(each) + b"\n" for each in messages)
    sys.stdout.buffer.flush()


def _why_none(client: HttpClient, name: str) -> str:
    found = client.get(path_to("subscriptions", name))
    if found["paused"]:
        return f"no messages: {name} is paused, 'conveyor queue resume {name}' lets it go on"
    return f"no messages: {found['in_flight']} in flight, {found['delayed']} delayed"


def _ack(client: HttpClient, name: str, messages: list[dict[str, Any]]) -> None:
    document = {"ack_ids": [each["ack_id"] for each in messages]}
    results = client.post(path_to("subscriptions", name, "ack"), document)["results"]
    if not report_settled(results):
        raise ClientError("not all of what was printed is acknowledged: see above")
