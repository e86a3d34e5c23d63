"""The metrics page shows the current counters."""

from threading import Thread, current_thread
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from conveyor.broker.slices import SLICE_ITEMS
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.http_api.ops import metrics
from conveyor.http_api.ops.metrics import COUNTERS, render_metrics
from conveyor.log.log_probe import LogProbe
from conveyor.replication.partition import Partition
from conveyor.replication.transactions import last_stable_offset
from conveyor.server.network_probe import NetworkProbe
from tests.callers import CALLER
from tests.unit.broker.parts import publish, running_parts


async def test_every_counter_is_on_the_page() -> None:
    async with running_parts() as broker:
        page = (await render_metrics(broker, NetworkProbe()))[0].decode()
    assert all(f"\n{name}_total 0.0\n" in page for name in COUNTERS)


def test_every_field_of_the_probes_is_printed() -> None:
    printed = {(probe, field) for probe, field, _ in COUNTERS.values()}
    assert printed >= {("log", field) for field in LogProbe.__dataclass_fields__}
    assert printed >= {("network", field) for field in NetworkProbe.__dataclass_fields__ if field != "certificates"}


async def test_certificates_are_on_the_page() -> None:
    async with running_parts() as broker:
        expiring = SimpleNamespace(expires_at_s=broker.clock.now_ms() / 1000 + 500)
        probe = NetworkProbe(certificates={"clients": expiring, "brokers": expiring})
        with_tls = (await render_metrics(broker, probe))[0].decode()
        without = (await render_metrics(broker, NetworkProbe()))[0].decode()
    for shown_to in ("clients", "brokers"):
        assert f'\nconveyor_certificate_expires_seconds{{shown_to="{shown_to}"}} 500.0\n' in with_tls
    assert "certificate" not in without


async def test_long_page_is_read_in_slices_and_made_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    makers: list[Thread] = []
    read_in_turns = [0]

    def recorded(registry: CollectorRegistry) -> bytes:
        makers.append(current_thread())
        return generate_latest(registry)

    def counted(partition: Partition) -> int:
        read_in_turns[-1] += 1
        return last_stable_offset(partition)

    monkeypatch.setattr(metrics, "generate_latest", recorded)
    monkeypatch.setattr(metrics, "last_stable_offset", counted)
    async with running_parts() as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=2 * SLICE_ITEMS + 1))
        turn = broker.slices.turn

        async def next_turn() -> None:
            read_in_turns.append(0)
            await turn()

        monkeypatch.setattr(broker.slices, "turn", next_turn)
        page = (await render_metrics(broker, NetworkProbe()))[0].decode().splitlines()
    assert sum(line.startswith("conveyor_partition_log_end_offset{") for line in page) == 2 * SLICE_ITEMS + 1
    assert sum(read_in_turns) == 2 * SLICE_ITEMS + 1
    assert max(read_in_turns) <= SLICE_ITEMS
    assert len(makers) == 1
    assert makers != [current_thread()]


async def test_the_page_shows_every_partition() -> None:
    async with running_parts() as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=2))
        await publish(broker, ("t", 1))
        page = (await render_metrics(broker, NetworkProbe(received_bytes=7)))[0].decode().splitlines()
    assert 'conveyor_partition_log_end_offset{partition="0",topic="t"} 0.0' in page
    assert 'conveyor_partition_log_end_offset{partition="1",topic="t"} 1.0' in page
    assert "conveyor_network_received_bytes_total 7.0" in page
