"""Health, readiness and metrics, over HTTP."""

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from conveyor.testing import Broker, MemoryDisk


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(memory=True) as running:
        producer = Producer({"bootstrap.servers": running.bootstrap_servers})
        for number in range(3):
            producer.produce("counted", value=b"%d" % number, partition=0)
            assert producer.flush(20) == 0
        yield running


def get(broker: Broker, path: str) -> tuple[int, str, bytes]:
    """Return the status, content type and body of a response."""
    try:
        with urlopen(broker.http_url + path) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read()
    except HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read()


def get_json(broker: Broker, path: str) -> tuple[int, Any]:
    status, content_type, body = get(broker, path)
    assert content_type.startswith("application/json")
    return status, json.loads(body)


def metrics(broker: Broker) -> dict[str, str]:
    """Return every sample by its name and labels."""
    return dict(re.findall(r"^(\S+) (\S+)$", get(broker, "/metrics")[2].decode(), re.MULTILINE))


def test_healthz_says_ok_and_names_the_cluster(broker: Broker) -> None:
    cluster = AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics(timeout=10).cluster_id
    assert get_json(broker, "/healthz") == (200, {"status": "ok", "cluster_id": cluster})


def test_readyz_says_ready(broker: Broker) -> None:
    assert get_json(broker, "/readyz") == (200, {"status": "ready", "offline_partitions": {}})


def test_metrics_are_prometheus_text(broker: Broker) -> None:
    status, content_type, body = get(broker, "/metrics")
    assert (status, content_type.split(";")[0]) == (200, "text/plain")
    samples = dict(re.findall(r"^(\S+) (\S+)$", body.decode(), re.MULTILINE))
    assert float(samples["conveyor_log_appended_records_total"]) == 3
    assert float(samples["conveyor_partitions"]) == 1
    assert float(samples["conveyor_partitions_offline"]) == 0
    labels = '{partition="0",topic="counted"}'
    assert float(samples[f"conveyor_partition_log_end_offset{labels}"]) == 3
    assert float(samples[f"conveyor_partition_high_watermark{labels}"]) == 3
    assert float(samples[f"conveyor_partition_size_bytes{labels}"]) > 0
    assert float(samples["conveyor_network_received_bytes_total"]) > 0


def test_every_metric_has_a_help_line(broker: Broker) -> None:
    page = get(broker, "/metrics")[2].decode()
    described = set(re.findall(r"^# HELP (\S+) \S", page, re.MULTILINE))
    assert described >= set(re.findall(r"^# TYPE (\S+)", page, re.MULTILINE))


def test_other_paths_are_not_found(broker: Broker) -> None:
    assert get(broker, "/nothing")[0] == 404


def test_readyz_shows_an_offline_partition_and_the_reason() -> None:
    disk = MemoryDisk()
    with Broker(disk=disk) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "retries": 0, "message.timeout.ms": 5000})
        producer.produce("lost", b"1")
        producer.flush(20)
        disk.faults.fail("append")
        producer.produce("lost", b"2")
        producer.flush(20)
        status, answer = get_json(broker, "/readyz")
        assert (status, answer["status"]) == (503, "degraded")
        assert list(answer["offline_partitions"]) == ["lost-0"]
        assert "append failed" in answer["offline_partitions"]["lost-0"]
        assert get_json(broker, "/healthz")[0] == 200


def test_readyz_shows_that_producers_are_refused_and_the_reason() -> None:
    disk = MemoryDisk(free_bytes=1 << 20)
    disk.allocate("filler", 1 << 20)
    with Broker(disk=disk) as broker:
        status, answer = get_json(broker, "/readyz")
        assert (status, answer["status"], answer["offline_partitions"]) == (503, "degraded", {})
        assert answer["low_disk"].startswith("the broker's disk has 0 bytes free")
        samples = metrics(broker)
        assert (samples["conveyor_disk_usable_bytes"], samples["conveyor_disk_low"]) == ("0.0", "1.0")


def test_readyz_shows_unloaded_queues_and_unserved_subscriptions() -> None:
    disk = MemoryDisk()
    with Broker(disk=disk) as broker:
        for path, document in (
            ("/topics", {"name": "t"}),
            ("/topics/t/subscriptions", {"name": "s"}),
        ):
            body = json.dumps(document).encode()
            request = Request(broker.http_url + path, body, {"Content-Type": "application/json"})
            with urlopen(request) as answer:
                assert answer.status == 201
        broker.stop()
        state = disk.open("logs/__queue_state.t-0/00000000000000000000.log")
        state.written[70] ^= 1
        broker.start()
        while "damaged" not in str(readiness := get_json(broker, "/readyz")[1]):
            assert list(readiness["unloaded_queues"]) == ["t"]
        status, readiness = get_json(broker, "/readyz")
        assert status == 503
        assert "damaged" in readiness["unloaded_queues"]["t"]
        assert list(readiness["offline_partitions"]) == ["__queue_state.t-0"]
