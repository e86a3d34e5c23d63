"""`conveyor queue ack` and `nack`: acknowledge or return pulled messages."""

import json
from typing import Annotated, Any

import typer

from conveyor.cli.queues.queue_options import Name, duration_ms
from conveyor.cli.terminal.cluster_http import ClusterBootstrap, Http, http_client
from conveyor.cli.terminal.http_client import path_to
from conveyor.cli.terminal.kafka_client import ClientError, Json, counted

# The broker distinguishes the two kinds of ids.
_Ids = Annotated[list[str], typer.Argument(metavar="ID...", help="Ack ids, or message ids.")]


def ack(
    name: Name,
    ids: _Ids,
    as_json: Json = False,
    bootstrap: ClusterBootstrap = None,
    http: Http = None,
) -> None:
    """Acknowledge pulled messages.

    An acknowledged message is settled and never delivered again. An ack id refers to the lease with which it was
    printed, a message id to the message's current lease. A subscription with exactly-once delivery takes only ack ids.

    \b
    Examples:
      conveyor queue ack billing 0-17
      conveyor queue ack billing 0-17 0-18 2-4
    """
    answer = http_client(bootstrap, http).post(path_to("subscriptions", name, "ack"), {"ack_ids": ids})
    _report(answer, as_json, f"acknowledged {counted(len(ids), 'message')}")


def nack(
    name: Name,
    ids: _Ids,
    delay: Annotated[
        str | None,
        typer.Option(
            "--delay",
            metavar="DURATION",
            help="Time until the next delivery; by default, the subscription's retry policy.",
        ),
    ] = None,
    as_json: Json = False,
    bootstrap: ClusterBootstrap = None,
    http: Http = None,
) -> None:
    """Return pulled messages.

    They are delivered again after a delay. A message that has had its last delivery becomes a dead letter instead.

    \b
    Examples:
      conveyor queue nack billing 0-17
      conveyor queue nack billing 0-17 --delay 5m
    """
    more: dict[str, object] = {} if delay is None else {"delay": f"{duration_ms('--delay', delay)}ms"}
    answer = http_client(bootstrap, http).post(path_to("subscriptions", name, "nack"), {"ack_ids": ids} | more)
    _report(answer, as_json, f"returned {counted(len(ids), 'message')}")


def _report(answer: dict[str, Any], as_json: bool, done: str) -> None:
    """Print the result. Raises ClientError unless all messages are settled."""
    results = answer["results"]
    if as_json:
        typer.echo(json.dumps(answer))
    if not report_settled(results):
        failed = sum(result["status"] != "ok" for result in results)
        raise ClientError(f"{failed} of {counted(len(results), 'message')} not settled: see above")
    if not as_json:
        typer.echo(done)


def report_settled(results: list[dict[str, Any]]) -> bool:
    """Return whether all messages are settled. Prints a line on stderr for each that is not."""
    failed = [result for result in results if result["status"] != "ok"]
    for failure in failed:
        typer.echo(f"{failure.get('ack_id') or failure.get('message_id')}: {failure['error']['detail']}", err=True)
    return not failed
