"""Endpoints for operators: health, readiness, metrics."""

from typing import Literal

import msgspec
from msgspec import Struct

from conveyor.http_api.engine.endpoint import Endpoint, HttpCall, NoQuery, Raw
from conveyor.http_api.ops.metrics import render_metrics

_encode = msgspec.json.Encoder().encode


class Health(Struct):
    """The process serves requests."""

    status: Literal["ok"] = "ok"


class Readiness(Struct, omit_defaults=True):
    """The parts that are not served, with reasons. A broker that is stopping takes no more requests.

    low_disk: producers are refused, as the disk has too little room. unloaded_queues: topics whose subscriptions wait
    for the state of their queues; retention deletes nothing there. unserved_subscriptions: they are given no messages.
    """

    status: Literal["ready", "degraded", "stopping"]
    offline_partitions: dict[str, str]
    low_disk: str | None = None
    unloaded_queues: dict[str, str] = {}
    unserved_subscriptions: dict[str, str] = {}


async def show_health(call: HttpCall[NoQuery, None]) -> Health:
    """Tell whether the process serves requests."""
    return Health()


async def show_readiness(call: HttpCall[NoQuery, None]) -> Readiness | Raw:
    """Tell whether everything is served: 503 with the reasons if not, and while the broker stops."""
    broker = call.broker
    found = Readiness(
        "ready",
        broker.partitions.offline(),
        low_disk=broker.room.explanation if broker.room.is_low else None,
        unloaded_queues=broker.queue_partitions.unloaded(),
        unserved_subscriptions=broker.subscribed_partitions.faults(),
    )
    if found == Readiness("ready", {}) and not broker.is_stopping:
        return found
    found.status = "stopping" if broker.is_stopping else "degraded"
    return Raw(_encode(found), "application/json", 503)


async def show_metrics(call: HttpCall[NoQuery, None]) -> Raw:
    """Show the broker's counters, in Prometheus' text format."""
    return Raw(*render_metrics(call.broker, call.door.network_probe))


ENDPOINTS = (
    Endpoint(method="GET", path="/healthz", function=show_health, is_open=True),
    Endpoint(method="GET", path="/readyz", function=show_readiness, also=(503,), is_open=True),
    Endpoint(method="GET", path="/metrics", function=show_metrics, content_type="text/plain"),
)
