"""`conveyor dlq redrive`: deliver dead letters again, in portions."""

import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from conveyor.cli.queues.queue_options import Name
from conveyor.cli.terminal.cluster_http import ClusterBootstrap, Http, http_client
from conveyor.cli.terminal.http_client import TIMEOUT_S, HttpClient, path_to
from conveyor.cli.terminal.kafka_client import ClientError, Json, counted

Filter = Annotated[
    str | None,
    typer.Option("--filter", metavar="EXPR", help="Only dead letters whose copies match this CEL expression."),
]
MessageIds = Annotated[
    list[str] | None,
    typer.Option("--message-id", metavar="ID", help="Only this message, by its id in 'dlq peek'; can be repeated."),
]

MOST_AT_ONCE = 1000


def redrive(
    name: Name,
    filter_: Filter = None,
    message_id: MessageIds = None,
    rate: Annotated[
        float | None,
        typer.Option("--rate", min=0.01, max=1_000_000, metavar="X", help="Largest number of messages per second."),
    ] = None,
    as_json: Json = False,
    bootstrap: ClusterBootstrap = None,
    http: Http = None,
) -> None:
    """Deliver dead letters again to their own subscription, the oldest first.

    Ctrl-C stops after the portion that the broker is working on: at most one second's worth at the rate, and at most
    1,000 messages. The others stay dead letters.

    \b
    Examples:
      conveyor dlq redrive billing --rate 100
      conveyor dlq redrive billing --filter 'key == "customer-7"'
      conveyor dlq redrive billing --message-id 0-17
    """
    from conveyor.cli.terminal.progress import count_progress

    client, done = http_client(bootstrap, http), 0
    unknown: list[str] = []
    message_ids = list(dict.fromkeys(message_id or []))
    portion = MOST_AT_ONCE if rate is None else max(1, min(MOST_AT_ONCE, round(rate)))
    total = len(message_ids) or client.get(path_to("subscriptions", name))["dead"]
    try:
        with count_progress("redriving") as show:
            show.update(0, total)
            for document, count in _portions(client, name, filter_, message_ids, portion):
                answer = redrive_portion(client, name, document, count, rate)
                done += answer["redriven"]
                unknown += (
                    answer["unknown"] if message_ids else []
                )  # Without ids: another client has redriven them meanwhile.
                show.update(done, max(done, total))
    except KeyboardInterrupt:
        typer.echo(f"interrupted: redrove {counted(done, 'dead letter')} of {name}", err=True)
        raise
    redrove = f"redrove {counted(done, 'dead letter')} of {name}"
    typer.echo(json.dumps({"redriven": done, "unknown": unknown}) if as_json else redrove)
    refuse_unknown(name, unknown)


def selection(filter_: str | None, message_ids: list[str] | None) -> dict[str, object]:
    """Return the fields of a request that select dead letters."""
    given = {"filter": filter_, "message_ids": message_ids or None}
    return {name: value for name, value in given.items() if value is not None}


def refuse_unknown(name: str, unknown: list[str]) -> None:
    """Raise ClientError if any id is unknown."""
    if unknown:
        raise ClientError(f"no dead letter of '{name}': {', '.join(unknown)}; see 'conveyor dlq peek {name}'")


def _portions(
    client: HttpClient, name: str, filter_: str | None, message_ids: list[str], size: int
) -> Iterator[tuple[dict[str, object], int]]:
    """Yield selections of at most `size` dead letters, with their counts. Dead letters without a copy come last, in one
    selection, because no endpoint lists them."""
    for ids in [message_ids] if message_ids else _pages(client, name, filter_):
        for first in range(0, len(ids), size):
            portion = ids[first : first + size]
            yield selection(filter_, portion), len(portion)
    if not message_ids and not filter_ and (left := _without_copy(client, name)):
        yield {}, left


def _pages(client: HttpClient, name: str, filter_: str | None) -> Iterator[list[str]]:
    """Yield pages of message ids of originals, without repetition even if a message becomes a dead letter again."""
    seen: set[str] = set()
    after = None
    while True:
        query = {"limit": MOST_AT_ONCE, "filter": filter_, "after": after}
        page = client.get(path_to("dlq", name), query)["messages"]
        if not page:
            return
        after = page[-1]["dead_letter_id"]
        fresh = [letter["message_id"] for letter in page if letter["message_id"] not in seen]
        seen.update(fresh)
        yield fresh


def _without_copy(client: HttpClient, name: str) -> int:
    if client.get(path_to("subscriptions", name))["dead"] == 0:
        return 0
    return client.get(path_to("dlq", name), {"limit": MOST_AT_ONCE})["without_copy"] or 0


def redrive_portion(client: HttpClient, name: str, document: dict[str, object], count: int, rate: float | None) -> Any:
    """Redrive one selection. The broker limits the rate, and responds when the whole selection is redriven."""
    limit: dict[str, object] = {} if rate is None else {"rate": rate}
    takes_s = 0 if rate is None else count / rate
    return client.post(path_to("dlq", name, "redrive"), document | limit, TIMEOUT_S + takes_s)
