"""The metrics page counts the requests that each kind of quota has throttled."""

from conveyor.cluster.quotas import CLIENT_ID, QuotaChange
from conveyor.http_api.ops.metrics import render_metrics
from conveyor.server.network_probe import NetworkProbe
from tests.callers import CALLER
from tests.unit.broker.parts import running_parts


async def test_throttled_requests_are_counted_by_quota() -> None:
    async with running_parts() as broker:
        await broker.clients.quotas.alter(
            CALLER, ((CLIENT_ID, None),), [QuotaChange(key="producer_byte_rate", value=1)]
        )
        broker.clients.quotas.meter(CALLER, "app", 1000, lambda _: None).produced()
        page = (await render_metrics(broker, NetworkProbe()))[0].decode().splitlines()
    assert 'conveyor_quota_throttled_total{quota="producer_byte_rate"} 1.0' in page
    assert 'conveyor_quota_throttled_total{quota="consumer_byte_rate"} 0.0' in page
