"""`conveyor queue ack` and `nack`: messages that were pulled are done with, or come again."""

import json
from typing import Annotated, Any

import typer

from conveyor.cli.queues.queue_options import Name, duration_ms
from conveyor.cli.terminal.http_client import DEFAULT_HTTP, Http, HttpClient, Token, path_to
from conveyor.cli.terminal.kafka_client import ClientError, Json, counted

# The broker tells the two kinds of ids apart itself.
_Ids = Annotated[list[str], typer.Argument(metavar="ID...", help="Ack ids, or message ids.")]


def ack(name: Name, ids: _Ids, as_json: Json = False, http: Http = DEFAULT_HTTP, token: Token = None) -> None:
    """Acknowledge messages that were pulled.

    They are settled, and do not come again.
    An ack id names the lease that it came with; a message id the message's present lease. A subscription that delivers
    exactly once takes ack ids only.

    \b
    Examples:
      conveyor queue ack billing 0-17
      conveyor queue ack billing 0-17 0-18 2-4
    """
    answer = HttpClient(http, token).post(path_to("subscriptions", name, "ack"), {"ack_ids": ids})
    _report(answer, as_json, f"acknowledged {counted(len(ids), 'message')}")


def nack(
    name: Name,
    ids: _Ids,
    delay: Annotated[
        str | None,
        typer.Option("--delay", metavar="DURATION", help="When; if not said, as the subscription's retry says."),
    ] = None,
    as_json: Json = False,
    http: Http = DEFAULT_HTTP,
    token: Token = None,
) -> None:
    """Give messages back that were pulled.

    They come again, after a while. After its last delivery a message goes to the dead letters instead.

    \b
    Examples:
      conveyor queue nack billing 0-17
      conveyor queue nack billing 0-17 --delay 5m
    """
    more: dict[str, object] = {} if delay is None else {"delay": f"{duration_ms('--delay', delay)}ms"}
    answer = HttpClient(http, token).post(path_to("subscriptions", name, "nack"), {"ack_ids": ids} | more)
    _report(answer, as_json, f"gave {counted(len(ids), 'message')} back")


def _report(answer: dict[str, Any], as_json: bool, done: str) -> None:
    """Raises ClientError unless all is done."""
    results = answer["results"]
    if as_json:
        typer.echo(json.dumps(answer))
    if not report_settled(results):
        failed = sum(each["status"] != "ok" for each in results)
        raise ClientError(f"{failed} of {counted(len(results), 'message')} not settled: see above")
    if not as_json:
        typer.echo(done)


def report_settled(results: list[dict[str, Any]]) -> bool:
    """Whether all are settled; each that is not has a line on stderr."""
    failed = [each for each in results if each["status"] != "ok"]
    for each in failed:
        typer.echo(f"{each.get('ack_id') or each.get('message_id')}: {each['error']['detail']}", err=True)
    return not failed
