"""The HTTP application: health, readiness, metrics."""

from typing import Any

from aiohttp import web

from conveyor.broker.broker import Broker
from conveyor.http_api.metrics import render_metrics

_BROKER = web.AppKey("broker", Broker)
_NETWORK = web.AppKey("network", object)


def make_application(broker: Broker, network_probe: Any) -> web.Application:
    """An application over one broker."""
    application = web.Application(client_max_size=1 << 20)
    application[_BROKER] = broker
    application[_NETWORK] = network_probe
    application.add_routes([web.get("/healthz", _healthz), web.get("/readyz", _readyz), web.get("/metrics", _metrics)])
    return application


async def _healthz(request: web.Request) -> web.Response:
    """200 while the process serves requests."""
    return web.json_response({"status": "ok"})


async def _readyz(request: web.Request) -> web.Response:
    """200 if every partition is served, else 503 with those that are not, and why."""
    offline = request.app[_BROKER].partitions.offline()
    status = "ready" if not offline else "degraded"
    return web.json_response({"status": status, "offline_partitions": offline}, status=503 if offline else 200)


async def _metrics(request: web.Request) -> web.Response:
    """Prometheus text format, version 0.0.4."""
    body, content_type = render_metrics(request.app[_BROKER], request.app[_NETWORK])
    return web.Response(body=body, headers={"Content-Type": content_type})
