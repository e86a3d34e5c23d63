"""`conveyor dlq redrive`: dead letters are delivered again, a portion at a time."""

import json
from collections.abc import Iterator
from typing import Annotated

import typer

from conveyor.cli.client import Json, counted
from conveyor.cli.http_client import DEFAULT_HTTP, TIMEOUT_S, Http, HttpClient, Token, path_to
from conveyor.cli.queue_options import Name

Filter = Annotated[
    str | None,
    typer.Option("--filter", metavar="EXPR", help="Only those for whose copies this CEL expression is true."),
]
MessageIds = Annotated[
    list[str] | None,
    typer.Option("--message-id", metavar="ID", help="Only this one; may be said several times."),
]

_MOST_AT_ONCE = 1000


def redrive(
    name: Name,
    filter_: Filter = None,
    message_id: MessageIds = None,
    rate: Annotated[
        float | None, typer.Option("--rate", min=0.01, metavar="X", help="At most so many a second.")
    ] = None,
    as_json: Json = False,
    http: Http = DEFAULT_HTTP,
    token: Token = None,
) -> None:
    """Deliver dead letters again, to their subscription alone; the oldest first.

    Ctrl-C ends it, once the broker is done with what it was asked for last: at most a second's worth at the rate, and a
    thousand. What is not redriven stays a dead letter.

    \b
    Examples:
      conveyor dlq redrive billing --rate 100
      conveyor dlq redrive billing --filter 'key == "customer-7"'
      conveyor dlq redrive billing --message-id 0-17
    """
    from conveyor.cli.progress import count_progress

    client, done = HttpClient(http, token), 0
    portion = _MOST_AT_ONCE if rate is None else max(1, min(_MOST_AT_ONCE, round(rate)))
    total = len(message_id) if message_id else client.get(path_to("subscriptions", name))["dead"]
    try:
        with count_progress("redriving") as show:
            show.update(0, total)
            for ids in [message_id] if message_id else _pages(client, name, filter_):
                for first in range(0, len(ids), portion):
                    done += _redrive(client, name, filter_, ids[first : first + portion], rate)
                    show.update(done, max(done, total))
    except KeyboardInterrupt:
        typer.echo(f"interrupted: redrove {counted(done, 'dead letter')} of {name}", err=True)
        raise
    typer.echo(json.dumps({"redriven": done}) if as_json else f"redrove {counted(done, 'dead letter')} of {name}")


def selection(filter_: str | None, message_ids: list[str] | None) -> dict[str, object]:
    """Which dead letters are meant, as the API takes it."""
    given = {"filter": filter_, "message_ids": message_ids or None}
    return {name: value for name, value in given.items() if value is not None}


def _pages(client: HttpClient, name: str, filter_: str | None) -> Iterator[list[str]]:
    """Message ids of the originals. Each comes once, though a consumer may send it back meanwhile."""
    seen: set[str] = set()
    after = None
    while True:
        query = {"limit": _MOST_AT_ONCE, "filter": filter_, "after": after}
        page = client.get(path_to("dlq", name), query)["messages"]
        if not page:
            return
        after = page[-1]["message_id"]
        fresh = [each["origin_message_id"] for each in page if each["origin_message_id"] not in seen]
        seen.update(fresh)
        yield fresh


def _redrive(client: HttpClient, name: str, filter_: str | None, ids: list[str], rate: float | None) -> int:
    """The broker keeps to the rate, and answers when all are on their way."""
    document = selection(filter_, ids) | ({} if rate is None else {"rate": rate})
    takes_s = 0 if rate is None else len(ids) / rate
    redriven: int = client.post(path_to("dlq", name, "redrive"), document, TIMEOUT_S + takes_s)["redriven"]
    return redriven
