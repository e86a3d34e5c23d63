"""Is it alive, is everything served, what has it counted."""

from typing import Literal

import msgspec
from msgspec import Struct

from conveyor.http_api.endpoint import Call, Endpoint, NoQuery, Raw
from conveyor.http_api.metrics import render_metrics

_encode = msgspec.json.Encoder().encode


class Health(Struct):
    """The process serves requests."""

    status: Literal["ok"] = "ok"


class Readiness(Struct):
    """offline_partitions: those that are not served, and why. A broker that is stopping takes no more requests."""

    status: Literal["ready", "degraded", "stopping"]
    offline_partitions: dict[str, str]


async def show_health(call: Call[NoQuery, None]) -> Health:
    """Say that the process serves requests."""
    return Health()


async def show_readiness(call: Call[NoQuery, None]) -> Readiness | Raw:
    """Say whether every partition is served: 503 if not, with those that are not, and why, or if the broker stops."""
    offline = call.broker.partitions.offline()
    if call.broker.is_stopping:
        return Raw(_encode(Readiness("stopping", offline)), "application/json", 503)
    if not offline:
        return Readiness("ready", {})
    return Raw(_encode(Readiness("degraded", offline)), "application/json", 503)


async def show_metrics(call: Call[NoQuery, None]) -> Raw:
    """Show the broker's counters, in Prometheus' text format."""
    return Raw(*render_metrics(call.broker, call.door.network_probe))


ENDPOINTS = (
    Endpoint(method="GET", path="/healthz", function=show_health, is_open=True),
    Endpoint(method="GET", path="/readyz", function=show_readiness, also=(503,), is_open=True),
    Endpoint(method="GET", path="/metrics", function=show_metrics, content_type="text/plain"),
)
