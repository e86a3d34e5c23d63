"""`conveyor queue create`: create a subscription on a topic."""

import json
from typing import Annotated, Any

import typer

from conveyor.cli.queues.push_options import (
    PushAllowPrivate,
    PushMode,
    PushSecretFile,
    push_document,
    show_made_secret,
)
from conveyor.cli.queues.queue_options import duration_ms, one_of
from conveyor.cli.terminal.cluster_http import ClusterBootstrap, Http, http_client
from conveyor.cli.terminal.http_client import path_to
from conveyor.cli.terminal.kafka_client import ClientError, Json
from conveyor.cli.terminal.position import LogPosition, PositionKind, parse_position

_DELIVERY = ("at_least_once", "at_most_once", "exactly_once")
_ORDERING = ("none", "key")
_FILTER_ERROR = ("deliver", "skip", "dead_letter")
_EXPIRY = ("drop", "dead_letter")


_Start = Annotated[str, typer.Option("--start", metavar="earliest|latest|TIME", help="The first message to deliver.")]
_Filter = Annotated[
    str | None, typer.Option("--filter", metavar="EXPR", help="Deliver only messages that match this CEL expression.")
]
_FilterError = Annotated[
    str | None,
    typer.Option(
        metavar="deliver|skip|dead-letter",
        help="What to do with a message on which the filter fails.",
        show_default="deliver",
    ),
]
_Delivery = Annotated[
    str | None,
    typer.Option(
        metavar="at-least-once|at-most-once|exactly-once", help="The delivery guarantee.", show_default="at-least-once"
    ),
]
_Ordering = Annotated[
    str | None,
    typer.Option(
        metavar="none|key",
        help="key: deliver a message only when the previous one with the same key is settled.",
        show_default="none",
    ),
]
_Visibility = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION", help="How long a lease lasts, unless a pull sets another time.", show_default="30s"
    ),
]
_MaxDeliveries = Annotated[
    int | None,
    typer.Option(metavar="N", help="Deliveries before a message becomes a dead letter; 0: no limit.", show_default="5"),
]
_RetryBase = Annotated[
    str | None, typer.Option(metavar="DURATION", help="Longest wait before the second delivery.", show_default="1s")
]
_RetryFactor = Annotated[
    float | None,
    typer.Option(
        min=1, max=100, metavar="X", help="Factor by which the wait grows with each further delivery.", show_default="2"
    ),
]
_RetryCap = Annotated[
    str | None, typer.Option(metavar="DURATION", help="Longest wait before any delivery.", show_default="1m")
]
_DeadLetterTopic = Annotated[
    str | None, typer.Option(metavar="TOPIC", help="Topic for dead letters.", show_default="TOPIC.dlq")
]
_OnExpiry = Annotated[
    str | None,
    typer.Option(
        metavar="drop|dead-letter", help="What to do with a message whose TTL has passed.", show_default="drop"
    ),
]
_PriorityAgeing = Annotated[
    str | None, typer.Option(metavar="DURATION", help="Time after which a waiting message rises by one priority.")
]
_FairBy = Annotated[
    str | None, typer.Option(metavar="HEADER", help="Deliver messages with different values of this header in turn.")
]
_MaxInFlight = Annotated[
    int | None,
    typer.Option(metavar="N", help="Largest number of leases at a time in each partition.", show_default="100000"),
]
_MaxInFlightPerKey = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="With --ordering key: largest number of messages of a key in one lease.", show_default="1"
    ),
]
_Paused = Annotated[bool, typer.Option("--paused", help="Create the subscription paused.")]
_PushUrl = Annotated[
    str | None,
    typer.Option("--push-url", metavar="URL", help="Post the messages to this URL, as 'conveyor queue push' does."),
]


def create(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name: letters, digits, '.', '_' and '-'.")],
    start: _Start = "latest",
    filter_: _Filter = None,
    on_filter_error: _FilterError = None,
    delivery: _Delivery = None,
    ordering: _Ordering = None,
    visibility: _Visibility = None,
    max_deliveries: _MaxDeliveries = None,
    retry_base: _RetryBase = None,
    retry_factor: _RetryFactor = None,
    retry_cap: _RetryCap = None,
    dead_letter_topic: _DeadLetterTopic = None,
    on_expiry: _OnExpiry = None,
    priority_ageing: _PriorityAgeing = None,
    fair_by: _FairBy = None,
    max_in_flight: _MaxInFlight = None,
    max_in_flight_per_key: _MaxInFlightPerKey = None,
    paused: _Paused = False,
    push_url: _PushUrl = None,
    push_mode: PushMode = None,
    push_secret_file: PushSecretFile = None,
    push_allow_private: PushAllowPrivate = False,
    as_json: Json = False,
    bootstrap: ClusterBootstrap = None,
    http: Http = None,
) -> None:
    """Create a subscription: a queue of a topic's messages.

    The subscription starts with messages that are published from now on; with --start earliest, with the oldest message
    of the topic. Every subscription of a topic receives every message. Subscription names are unique across the
    cluster.

    The filter is a CEL expression over key, headers, tag, size, timestamp and payload. A DURATION is 1200ms, 5s, 10m or
    2h. TIME is a date and time, in local time unless it names a zone (2026-11-21T08:00, 2026-11-21T08:00Z), or how long
    ago (-90s, -15m, -2h, -3d).

    \b
    Examples:
      conveyor queue create orders billing --start earliest
      conveyor queue create orders large --filter 'payload.total > 1000' --ordering key
      conveyor queue create orders mail --visibility 2m --max-deliveries 3 --retry-base 5s --retry-cap 10m
      conveyor queue create orders shop --push-url https://shop.example/hook
    """
    base_ms, cap_ms = _ms("--retry-base", retry_base), _ms("--retry-cap", retry_cap)
    policy = {
        "filter": filter_,
        "on_filter_error": _choice("--on-filter-error", on_filter_error, _FILTER_ERROR),
        "delivery": _choice("--delivery", delivery, _DELIVERY),
        "ordering": _choice("--ordering", ordering, _ORDERING),
        "visibility_timeout_ms": _ms("--visibility", visibility),
        "max_deliveries": max_deliveries,
        "retry": _given({"base_ms": base_ms, "factor": retry_factor, "cap_ms": cap_ms}) or None,
        "dead_letter_topic": dead_letter_topic,
        "on_expiry": _choice("--on-expiry", on_expiry, _EXPIRY),
        "priority_ageing_ms": _ms("--priority-ageing", priority_ageing),
        "fair_by": fair_by,
        "max_in_flight": max_in_flight,
        "max_in_flight_per_key": max_in_flight_per_key,
        "paused": paused or None,
    }
    push = push_document(push_url, push_mode, push_secret_file, allow_private=push_allow_private)
    document = {"name": name, "start": start_document("--start", start), **_given(policy | {"push": push or None})}
    made = http_client(bootstrap, http).post(path_to("topics", topic, "subscriptions"), document)
    if as_json:
        return typer.echo(json.dumps(made))
    begins = _start_text(parse_position("--start", start))
    typer.echo(f"created subscription {name} on topic {topic}: it starts {begins}")
    show_made_secret(made["push"] or {})


def start_document(option: str, text: str, or_: str = "") -> str | int:
    """Return a start position for the API: earliest, latest, or milliseconds since 1970. Raises ClientError.

    or_: a further form that the option takes, for the error message.
    """
    position = parse_position(option, text)
    if position.kind is PositionKind.OFFSET:
        names = ", ".join(["earliest", "latest", *filter(None, [or_])])
        raise ClientError(
            f"{option} {text}: expected {names}, a time such as 2026-11-21T08:00, or how long ago, such as -15m"
        )
    return position.value if position.kind is PositionKind.TIME else text


def _start_text(position: LogPosition) -> str:
    if position.kind is PositionKind.LATEST:
        return "with messages published from now on"
    return "with the oldest message" if position.kind is PositionKind.EARLIEST else "at that time"


def _ms(option: str, text: str | None) -> int | None:
    return None if text is None else duration_ms(option, text)


def _choice(option: str, text: str | None, choices: tuple[str, ...]) -> str | None:
    return None if text is None else one_of(option, text, choices)


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
