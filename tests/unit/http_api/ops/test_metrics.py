"""The metrics page shows the current counters."""

from types import SimpleNamespace

from conveyor.cluster.topic_creation import TopicRequest
from conveyor.http_api.ops.metrics import COUNTERS, render_metrics
from conveyor.log.log_probe import LogProbe
from conveyor.server.network_probe import NetworkProbe
from tests.callers import CALLER
from tests.unit.broker.parts import publish, running_parts


async def test_every_counter_is_on_the_page() -> None:
    async with running_parts() as broker:
        page = render_metrics(broker, NetworkProbe())[0].decode()
    assert all(f"\n{name}_total 0.0\n" in page for name in COUNTERS)


def test_every_field_of_the_probes_is_printed() -> None:
    printed = {(probe, field) for probe, field, _ in COUNTERS.values()}
    assert printed >= {("log", field) for field in LogProbe.__dataclass_fields__}
    assert printed >= {("network", field) for field in NetworkProbe.__dataclass_fields__ if field != "certificates"}


async def test_certificates_are_on_the_page() -> None:
    async with running_parts() as broker:
        expiring = SimpleNamespace(expires_at_s=broker.clock.now_ms() / 1000 + 500)
        with_tls = render_metrics(broker, NetworkProbe(certificates={"clients": expiring, "brokers": expiring}))[
            0
        ].decode()
        without = render_metrics(broker, NetworkProbe())[0].decode()
    for shown_to in ("clients", "brokers"):
        assert f'\nconveyor_certificate_expires_seconds{{shown_to="{shown_to}"}} 500.0\n' in with_tls
    assert "certificate" not in without


async def test_the_page_shows_every_partition() -> None:
    async with running_parts() as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=2))
        await publish(broker, ("t", 1))
        page = render_metrics(broker, NetworkProbe(received_bytes=7))[0].decode().splitlines()
    assert 'conveyor_partition_log_end_offset{partition="0",topic="t"} 0.0' in page
    assert 'conveyor_partition_log_end_offset{partition="1",topic="t"} 1.0' in page
    assert "conveyor_network_received_bytes_total 7.0" in page
