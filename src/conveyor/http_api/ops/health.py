"""Endpoints for operators: health, readiness, metrics."""

from typing import Literal

import msgspec
from msgspec import Struct

from conveyor.http.endpoints.endpoint import Endpoint, NoQuery, Raw
from conveyor.http_api.http_call import HttpCall
from conveyor.http_api.ops.metrics import render_metrics
from conveyor.kernel.access.acl import CLUSTER_NAME, ResourceType
from conveyor.kernel.access.declared_access import DESCRIBE, NO_ACCESS, cluster

_STALLED_DISK = "the disk does not finish a flush: other brokers lead the partitions that they can lead"

_encode = msgspec.json.Encoder().encode


class Health(Struct):
    """The process serves requests. cluster_id: of the cluster that the broker belongs to, as in Kafka's Metadata."""

    cluster_id: str
    status: Literal["ok"] = "ok"


class Readiness(Struct, omit_defaults=True):
    """The parts of the broker that are unavailable, with reasons. A stopping broker accepts no more requests.

    cut_off: this broker is not among the live brokers of its cluster, and sends clients away.
    low_disk: producers are refused, because the disk has too little space. stalled_disk: see `disk.stall_timeout_ms`.
    unloaded_queues: topics whose queue state is not loaded yet; retention deletes nothing there.
    unserved_subscriptions: subscriptions that deliver no messages.
    Names of partitions, topics and subscriptions are left out unless everybody may describe the cluster: this needs no
    login.
    """

    status: Literal["ready", "degraded", "stopping"]
    offline_partitions: dict[str, str]
    cut_off: str | None = None
    low_disk: str | None = None
    stalled_disk: str | None = None
    unloaded_queues: dict[str, str] = {}
    unserved_subscriptions: dict[str, str] = {}


async def show_health(call: HttpCall[NoQuery, None]) -> Health:
    """Show that the process serves requests."""
    return Health(call.broker.metadata.image.cluster_id)


async def show_readiness(call: HttpCall[NoQuery, None]) -> Readiness | Raw:
    """Show whether all parts of the broker are available. Responds with 503 and the reasons if not."""
    broker = call.broker
    readiness = Readiness(
        "ready",
        broker.partitions.table.offline(),
        cut_off=broker.liveness.isolation.reason,
        low_disk=broker.partitions.disk_room.explanation if broker.partitions.disk_room.is_low else None,
        stalled_disk=_STALLED_DISK if broker.replicas.is_disk_stalled else None,
        unloaded_queues=broker.coordinators.queues.unloaded(),
        unserved_subscriptions=broker.queues.subscribed_partitions.faults(),
    )
    if readiness == Readiness("ready", {}) and not broker.liveness.is_stopping:
        return readiness
    readiness.status = "stopping" if broker.liveness.is_stopping else "degraded"
    if not call.may(DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        readiness.offline_partitions, readiness.unloaded_queues, readiness.unserved_subscriptions = {}, {}, {}
    return Raw(_encode(readiness), "application/json", 503)


async def show_metrics(call: HttpCall[NoQuery, None]) -> Raw:
    """Show the broker's counters in Prometheus' text format."""
    return Raw(*await render_metrics(call.broker, call.door.network_probe))


ENDPOINTS = (
    Endpoint(method="GET", path="/healthz", needs=NO_ACCESS, function=show_health, is_public=True, is_limited=False),
    Endpoint(
        method="GET",
        path="/readyz",
        needs=NO_ACCESS,
        function=show_readiness,
        other_statuses=(503,),
        is_public=True,
        is_limited=False,
    ),
    Endpoint(
        method="GET",
        path="/metrics",
        needs=(cluster(DESCRIBE),),
        function=show_metrics,
        content_type="text/plain",
        is_limited=False,
    ),
)
