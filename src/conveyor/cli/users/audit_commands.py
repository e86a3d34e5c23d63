"""`conveyor audit`: what clients were permitted and refused."""

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from conveyor.cli.queues.queue_text import one_line
from conveyor.cli.records.consume import end_offsets, print_from
from conveyor.cli.records.offsets import find_offsets, log_ranges
from conveyor.cli.records.record_format import WriteRecord
from conveyor.cli.terminal.kafka_client import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    ClientError,
    admin_client,
    cluster_metadata,
    errors_in_one_line,
)
from conveyor.cli.terminal.position import EARLIEST, LogPosition, PositionKind, parse_position
from conveyor.cluster.image import AUDIT_TOPIC

app = typer.Typer(
    help="Show what clients were permitted and refused.\n\n"
    "Brokers with `access.enabled` and `access.audit` write it to the topic `__audit`. You need the right to read that."
    " See docs/security.md.\n\n"
    "\b\nExamples:\n  conveyor audit tail\n  conveyor audit tail --denied --follow",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_COLUMNS: Mapping[str, tuple[int, Callable[[Mapping[str, Any]], str]]] = {
    "time": (24, lambda event: event["time"]),
    "decision": (8, lambda event: "allowed" if event["allowed"] else "denied"),
    "count": (5, lambda event: str(event["count"])),
    "principal": (20, lambda event: event["principal"]),
    "address": (15, lambda event: event["address"]),
    "right": (30, lambda event: f"{event['operation']} {event['resource_type']} {event['resource']}"),
    "request": (20, lambda event: event["request"]),
    "rule": (0, lambda event: event["rule"]),
}
"""The width of each column, and its value. Longer values are printed whole."""
_LONGEST = 300


@app.callback()
def _audit() -> None:
    """Keep `tail` a command of its own: Typer makes an only command the whole program."""


@app.command()
def tail(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new events. Stop with Ctrl-C.")] = False,
    from_: Annotated[
        str, typer.Option("--from", metavar="beginning|TIME", help="Where to start: a time, or how long ago.")
    ] = "-1h",
    denied: Annotated[bool, typer.Option("--denied", help="Only what was refused.")] = False,
    principal: Annotated[
        str | None, typer.Option(metavar="PRINCIPAL", help="Only requests of this one, such as `User:alice`.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the events as they are, one JSON object a line.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Print the events of the last hour, or from another time on.

    TIME is a date and time, in local time unless it names a zone (2026-11-21T08:00, 2026-11-21T08:00Z), or how long ago
    (-90s, -15m, -2h, -3d).

    \b
    Examples:
      conveyor audit tail --denied
      conveyor audit tail --from beginning --principal User:alice
      conveyor audit tail --from -1d --json | jq .request
      conveyor audit tail --follow
    """
    position = _position(from_)
    admin = admin_client(bootstrap)
    topic = cluster_metadata(admin, bootstrap).topics.get(AUDIT_TOPIC)
    if topic is None:
        raise ClientError(
            f"no topic {AUDIT_TOPIC}: it is created for the first event, by brokers with access.enabled, and shown to"
            " those who may describe it"
        )
    ranges = log_ranges(admin, [(AUDIT_TOPIC, number) for number in sorted(topic.partitions)])
    if not as_json:
        typer.echo(_line({name: name for name in _COLUMNS}))
    with errors_in_one_line():
        starts = find_offsets(admin, position, ranges)
        write = _writer(denied=denied, principal=principal, as_json=as_json)
        print_from(bootstrap, starts, write, None, None if follow else end_offsets(ranges))


def _position(text: str) -> LogPosition:
    position = EARLIEST if text == "beginning" else parse_position("--from", text)
    if position.kind is PositionKind.OFFSET:
        raise ClientError(f"--from {text}: expected beginning, a time, or how long ago")
    return position


def _writer(*, denied: bool, principal: str | None, as_json: bool) -> WriteRecord:
    def write(message: Any) -> bytes | None:
        event = _event(message.value())
        if event is None:
            return ascii(message.value())[:_LONGEST].encode()  # No broker has written it.
        if (denied and event["allowed"]) or principal not in (None, event["principal"]):
            return None
        if as_json:
            return json.dumps(event).encode()  # In ASCII: clients choose the names in it.
        return _line({name: value(event) for name, (_, value) in _COLUMNS.items()}).encode()

    return write


def _event(value: bytes | None) -> dict[str, Any] | None:
    """Return the event in a record; None if it has none."""
    try:
        event: dict[str, Any] = json.loads(value or b"")
        _line({name: show(event) for name, (_, show) in _COLUMNS.items()})
        return event
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _line(cells: Mapping[str, str]) -> str:
    """Return one line of the table. Clients choose the names in it, so control characters are escaped."""
    shown = ((one_line(text, _LONGEST) or "").ljust(_COLUMNS[name][0]) for name, text in cells.items())
    return "  ".join(shown).rstrip()
