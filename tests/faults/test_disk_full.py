"""A failed write, a failed flush, a full disk: nothing acknowledged is lost, and a full disk is got over without help.

DISK_FULL_ROUNDS: how often the disk fills under load (3 by default).
"""

import gc
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from conveyor.testing import Broker, MemoryDisk
from tests.faults.small_disk import KINDS, SmallDisk, mounted_disk, small_disk
from tests.processes import BrokerProcess

ROUNDS = int(os.environ.get("DISK_FULL_ROUNDS", "3"))
PATIENCE_S = 10
SMALL_SEGMENTS = {"topics.segment_bytes": 262_144, "broker.retention_check_ms": 3_600_000}


def producer_to(bootstrap: str, **others: object) -> Producer:
    config = {"bootstrap.servers": bootstrap, "linger.ms": 0, "message.timeout.ms": 4000, "log_level": 0}
    return Producer(config | {"message.send.max.retries": 1, "retry.backoff.ms": 10} | others)


def produce(producer: Producer, values: range) -> dict[int, Any]:
    outcome: dict[int, Any] = {}

    def settle(error: Any, message: Any) -> None:
        outcome[int(message.value()[:6])] = error

    for value in values:
        producer.produce("full", value=b"%06d" % value + bytes(1000), on_delivery=settle)
        producer.poll(0.001)
    producer.flush(30)
    return outcome


def call(url: str, method: str = "GET", document: object = None) -> tuple[int, Any]:
    """A status, and the JSON that came with it."""
    content = None if document is None else json.dumps(document).encode()
    request = urllib.request.Request(url, content, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            body = answer.read()
            return answer.status, json.loads(body) if body else None
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def readiness(http_url: str) -> tuple[int, dict[str, Any]]:
    return call(f"{http_url}/readyz")


def wait_for(seen: Callable[[], bool]) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not seen():
        assert time.monotonic() < give_up, "it has never come"
        time.sleep(0.01)


def wait_until_ready(http_url: str) -> None:
    wait_for(lambda: readiness(http_url)[0] == 200)


def wait_until_low(http_url: str) -> None:
    """Producers are refused, and everything else is served."""
    wait_for(lambda: readiness(http_url)[1].keys() == {"status", "offline_partitions", "low_disk"})
    wait_for(lambda: not readiness(http_url)[1]["offline_partitions"])


def read_back(bootstrap: str, start: int = 0) -> list[int]:
    config = {"bootstrap.servers": bootstrap, "group.id": "readers", "enable.auto.commit": False}
    consumer = Consumer(config | {"enable.partition.eof": True})
    consumer.assign([TopicPartition("full", 0, start)])
    found = []
    while (message := consumer.poll(20)) is not None and message.error() is None:
        found.append(int(message.value()[:6]))
    assert message is not None, "the broker does not answer"
    assert message.error().code() == KafkaError._PARTITION_EOF
    consumer.close()
    return found


def ack(http_url: str, leased: list[dict[str, Any]]) -> list[str]:
    document = {"ack_ids": [each["ack_id"] for each in leased]}
    status, answer = call(f"{http_url}/subscriptions/s/ack", "POST", document)
    return [each["status"] for each in answer["results"]] if status == 200 else [answer["kind"]]


def commit(bootstrap: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition("full", 0, offset)], asynchronous=False)
    consumer.close()


def committed(bootstrap: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g"})
    offset = int(consumer.committed([TopicPartition("full", 0)], timeout=PATIENCE_S)[0].offset)
    consumer.close()
    return offset


@pytest.fixture(params=KINDS)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(request.param, tmp_path) as made:
        yield made


@pytest.mark.parametrize("fault", ["append", "sync"])
def test_a_partition_goes_offline_and_keeps_what_it_acknowledged(fault: str) -> None:
    disk = MemoryDisk()
    with Broker(disk=disk) as broker:
        before = produce(producer_to(broker.bootstrap_servers), range(20))
        assert all(error is None for error in before.values())
        assert readiness(broker.http_url) == (200, {"status": "ready", "offline_partitions": {}})
        disk.faults.fail(fault)
        after = produce(producer_to(broker.bootstrap_servers), range(20, 25))
        assert all(error is not None for error in after.values())
        status, answer = readiness(broker.http_url)
        assert status == 503
        assert fault in answer["offline_partitions"]["full-0"]
        broker.stop()
        disk.faults.heal()
        broker.start()
        found = read_back(broker.bootstrap_servers)
        assert found[:20] == list(range(20))
        after = produce(producer_to(broker.bootstrap_servers), range(30, 35))
        assert all(error is None for error in after.values())


def test_before_the_disk_is_full_producers_alone_are_refused(disk: SmallDisk) -> None:
    with disk.broker({"disk.min_free_bytes": 2 << 20}) as broker:
        bootstrap, http = broker.bootstrap_servers, broker.http_url
        admin = AdminClient({"bootstrap.servers": bootstrap})
        assert call(f"{http}/topics", "POST", {"name": "full"})[0] == 201
        assert call(f"{http}/topics/full/subscriptions", "POST", {"name": "s", "start": "earliest"})[0] == 201
        assert all(error is None for error in produce(producer_to(bootstrap), range(20)).values())
        leased = call(f"{http}/subscriptions/s/messages?max_messages=5")[1]["messages"]
        commit(bootstrap, 3)
        disk.fill(but_bytes=1 << 20)
        wait_until_low(http)
        assert "disk.min_free_bytes is 2097152" in readiness(http)[1]["low_disk"]
        refused = produce(producer_to(bootstrap), range(20, 22))
        assert {error.code() for error in refused.values()} == {KafkaError.KAFKA_STORAGE_ERROR}
        status, problem = call(f"{http}/topics/full/messages", "POST", {"payload": "x"})
        assert (status, problem["kind"], problem["retriable"]) == (507, "disk_full", True)
        assert read_back(bootstrap) == list(range(20))
        assert ack(http, leased) == ["ok"] * 5
        assert len(call(f"{http}/subscriptions/s/messages?max_messages=5")[1]["messages"]) == 5
        commit(bootstrap, 7)
        assert committed(bootstrap) == 7
        [made] = admin.create_topics([NewTopic("other", 1)]).values()
        made.result(PATIENCE_S)
        [deleted] = admin.delete_topics(["other"]).values()
        deleted.result(PATIENCE_S)
        [trimmed] = admin.delete_records([TopicPartition("full", 0, 10)]).values()
        assert trimmed.result(PATIENCE_S).low_watermark == 10
        disk.free()
        wait_until_ready(http)
        assert all(error is None for error in produce(producer_to(bootstrap), range(22, 30)).values())
        assert read_back(bootstrap, 10) == [*range(10, 20), *range(22, 30)]


def test_a_disk_that_another_program_has_filled_is_got_over(disk: SmallDisk) -> None:
    with disk.broker({"topics.segment_bytes": 65_536}) as broker:
        bootstrap, http = broker.bootstrap_servers, broker.http_url
        assert call(f"{http}/topics", "POST", {"name": "full"})[0] == 201
        assert call(f"{http}/topics/full/subscriptions", "POST", {"name": "s", "start": "earliest"})[0] == 201
        acknowledged = {number for number, error in produce(producer_to(bootstrap), range(100)).items() if not error}
        leased = call(f"{http}/subscriptions/s/messages?max_messages=20")[1]["messages"]
        disk.fill()
        failed = produce(producer_to(bootstrap), range(100, 300))
        acknowledged |= {number for number, error in failed.items() if error is None}
        assert {error.code() for error in failed.values() if error} <= {
            KafkaError.KAFKA_STORAGE_ERROR,
            KafkaError._MSG_TIMED_OUT,
        }
        wait_until_low(http)
        assert acknowledged <= set(read_back(bootstrap))
        wait_for(lambda: ack(http, leased) == ["ok"] * 20)
        disk.free()
        wait_until_ready(http)
        after = produce(producer_to(bootstrap), range(300, 400))
        assert all(error is None for error in after.values())
        found = read_back(bootstrap)
        assert acknowledged <= set(found)
        assert found[-100:] == list(range(300, 400))


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Whatever holds the files of a failed log open must let go of them by itself."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_a_broker_that_fills_its_disk_frees_it_by_retention(disk: SmallDisk) -> None:
    """Three times what the disk holds, by a producer that tries again, with no retention check but the disk's own."""
    settings = SMALL_SEGMENTS | {"topics.retention_bytes": 1 << 20}
    with disk.broker(settings) as broker:
        config = {"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True, "log_level": 0}
        producer = Producer(config | {"linger.ms": 5, "retry.backoff.ms": 20, "retry.backoff.max.ms": 200})
        errors: list[Any] = []
        count = ROUNDS * 8_000
        for number in range(count):
            while len(producer) > 500:
                producer.poll(0.05)
            producer.produce(
                "full",
                value=b"%06d" % number + bytes(1000),
                on_delivery=lambda error, _: errors.append(error) if error else None,
            )
            producer.poll(0)
        assert producer.flush(PATIENCE_S) == 0
        assert errors == []
        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
        start, end = consumer.get_watermark_offsets(TopicPartition("full", 0), timeout=PATIENCE_S)
        consumer.close()
        assert start > 0
        assert end == count
        assert read_back(broker.bootstrap_servers, start) == list(range(start, count))


@pytest.mark.parametrize("has_reserve", [True, False])
def test_a_start_on_a_full_disk_serves_reads_and_then_writes(disk: SmallDisk, has_reserve: bool) -> None:
    with disk.broker(SMALL_SEGMENTS) as broker:
        http = broker.http_url
        assert all(error is None for error in produce(producer_to(broker.bootstrap_servers), range(1000)).values())
        commit(broker.bootstrap_servers, 500)
        broker.stop()
        if not has_reserve:
            disk.remove_reserve()
        disk.fill()
        broker.start()
        bootstrap = broker.bootstrap_servers
        wait_until_low(http)
        assert read_back(bootstrap) == list(range(1000))
        assert committed(bootstrap) == 500
        refused = produce(producer_to(bootstrap), range(1000, 1002))
        assert all(error is not None for error in refused.values())
        admin = AdminClient({"bootstrap.servers": bootstrap})
        [trimmed] = admin.delete_records([TopicPartition("full", 0, 600)]).values()
        assert trimmed.result(PATIENCE_S).low_watermark == 600
        disk.free()
        wait_until_ready(http)
        assert all(error is None for error in produce(producer_to(bootstrap), range(1002, 1010)).values())
        assert read_back(bootstrap, 600) == [*range(600, 1000), *range(1002, 1010)]


if "mounted" in KINDS:

    def test_a_start_on_a_full_disk_after_a_kill(tmp_path: Path) -> None:
        """With no reserve: the room for new leader epochs is missing, too."""
        (tmp_path / "disk").mkdir()
        with mounted_disk(tmp_path / "disk") as disk:
            options = [part for name, value in SMALL_SEGMENTS.items() for part in ("--set", f"{name}={value}")]
            broker = BrokerProcess(disk.path / "data", *options)
            broker.use_log(tmp_path / "broker.log")
            broker.start()
            try:
                acknowledged = produce(producer_to(broker.kafka), range(600))
                assert all(error is None for error in acknowledged.values())
                broker.kill()
                disk.remove_reserve()
                disk.fill()
                broker.start()
                http = f"http://{broker.http}"
                wait_until_low(http)
                assert read_back(broker.kafka) == list(range(600))
                disk.free()
                wait_until_ready(http)
                retrying = {"enable.idempotence": True, "message.send.max.retries": 100}  # The epoch is being stored.
                written = produce(producer_to(broker.kafka, **retrying), range(600, 700))
                assert all(error is None for error in written.values())
                assert read_back(broker.kafka) == list(range(700))
                assert broker.stop() == 0
            finally:
                broker.end()
