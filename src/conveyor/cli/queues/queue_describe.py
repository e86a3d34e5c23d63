"""`conveyor queue describe`: the state of a subscription's messages, and its policy."""

import json
from typing import Any

import typer

from conveyor.cli.queues.queue_options import Name
from conveyor.cli.queues.queue_text import age
from conveyor.cli.terminal.cluster_http import ClusterBootstrap, Http, http_client
from conveyor.cli.terminal.http_client import path_to
from conveyor.cli.terminal.kafka_client import Json
from conveyor.cli.terminal.table import print_table
from conveyor.http_api.requests.durations import format_duration

_NUMBERS = {
    "depth": "can be pulled now",
    "in_flight": "leased",
    "pending": "acknowledged in transactions that are still open",
    "delayed": "not due yet",
    "unsettled": "not settled yet",
    "dead": "dead letters: 'conveyor dlq peek' shows them",
    "acked": "acknowledged",
    "retried": "delivered again",
    "filter_errors": "the filter failed on these",
}
_POLICY = (
    "filter",
    "on_filter_error",
    "delivery",
    "ordering",
    "fair_by",
    "visibility_timeout",
    "max_deliveries",
    "max_in_flight",
    "max_in_flight_per_key",
    "retry",
    "dead_letter_topic",
    "on_expiry",
    "priority_ageing",
)


def describe(name: Name, as_json: Json = False, bootstrap: ClusterBootstrap = None, http: Http = None) -> None:
    """Show the state of a subscription's messages, and its policy.

    \b
    Examples:
      conveyor queue describe billing
      conveyor queue describe billing --json
    """
    subscription = http_client(bootstrap, http).get(path_to("subscriptions", name))
    if as_json:
        return typer.echo(json.dumps(subscription))
    state = ", paused: 'conveyor queue resume' resumes it" if subscription["paused"] else ""
    typer.echo(f"subscription {name} on topic {subscription['topic']}, started at {subscription['start']}{state}")
    typer.echo()
    print_table(
        ["messages", "", "which"],
        [[name.replace("_", " "), subscription[name], what] for name, what in _NUMBERS.items()],
    )
    typer.echo()
    print_table(["lately", ""], _lately(subscription))
    typer.echo()
    print_table(["policy", ""], [[name.replace("_", " "), _policy(subscription)[name]] for name in _POLICY])
    if subscription["push"] is not None:
        typer.echo()
        _describe_push(subscription["push"], subscription["push_status"])


def _describe_push(push: dict[str, Any], statuses: list[dict[str, Any]]) -> None:
    hint = {"requested": ", paused", "gone": ", paused as the target is gone (410)"}.get(push["paused"], "")
    resume = ": 'conveyor queue push NAME --resume' resumes it" if hint else ""
    typer.echo(f"pushes to {push['url']} as {push['owner']}{hint}{resume}")
    typer.echo()
    settings = [
        ["mode", push["mode"]],
        ["max concurrency", str(push["max_concurrency"])],
        ["timeout", format_duration(push["timeout_ms"])],
        ["secrets", "2, while they rotate" if push["has_old_secret"] else "1"],
        ["private addresses", "allowed" if push["allow_private"] else "refused"],
    ]
    print_table(["push", ""], settings)
    typer.echo()
    columns = [
        "broker",
        "state",
        "breaker",
        "concurrency",
        "in flight",
        "delivered",
        "failed",
        "released",
        "last error",
    ]
    fields = [column.replace(" ", "_") for column in columns]
    print_table(columns, [[status[field] for field in fields] for status in statuses])


def _lately(subscription: dict[str, Any]) -> list[list[str | None]]:
    return [
        ["oldest unsettled", age(subscription["oldest_age_ms"])],
        ["acknowledged", f"{subscription['ack_rate']:.1f}/s"],
        ["delivered again", f"{subscription['retry_rate']:.1f}/s"],
    ]


def _policy(subscription: dict[str, Any]) -> dict[str, str | None]:
    """Return the fields of the policy as text. Fields without a special form are shown as the API returns them."""
    retry, ageing_ms = subscription["retry"], subscription["priority_ageing_ms"]
    base, cap = format_duration(retry["base_ms"]), format_duration(retry["cap_ms"])
    shown = {
        "visibility_timeout": format_duration(subscription["visibility_timeout_ms"]),
        "max_deliveries": str(subscription["max_deliveries"] or "no limit"),
        "retry": f"after {base}, then times {retry['factor']:g}, {cap} at most",
        "priority_ageing": format_duration(ageing_ms) if ageing_ms else None,
    }
    return {**{name: None if value is None else str(value) for name, value in subscription.items()}, **shown}
