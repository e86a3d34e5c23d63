"""A full disk, a failed flush: the partition goes offline and says why; nothing acknowledged is lost."""

import json
import urllib.error
import urllib.request
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from conveyor.testing import Broker, MemoryDisk


def producer_to(broker: Broker) -> Producer:
    config = {"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0, "message.timeout.ms": 4000}
    return Producer(config | {"message.send.max.retries": 1, "retry.backoff.ms": 10, "log_level": 0})


def produce(producer: Producer, values: range) -> dict[int, Any]:
    outcome: dict[int, Any] = {}

    def settle(error: Any, message: Any) -> None:
        outcome[int(message.value()[:6])] = error

    for value in values:
        producer.produce("full", value=b"%06d" % value + bytes(1000), on_delivery=settle)
        producer.poll(0.001)
    producer.flush(30)
    return outcome


def readiness(broker: Broker) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"{broker.http_url}/readyz") as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def read_back(broker: Broker) -> list[int]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "enable.partition.eof": True})
    consumer.assign([TopicPartition("full", 0, 0)])
    found = []
    while (message := consumer.poll(20)) is not None and message.error() is None:
        found.append(int(message.value()[:6]))
    consumer.close()
    return found


@pytest.mark.parametrize("fault", ["append", "sync"])
def test_a_partition_goes_offline_and_keeps_what_it_acknowledged(fault: str) -> None:
    disk = MemoryDisk()
    with Broker(disk=disk) as broker:
        before = produce(producer_to(broker), range(20))
        assert all(error is None for error in before.values())
        assert readiness(broker) == (200, {"status": "ready", "offline_partitions": {}})
        disk.fail(fault)
        after = produce(producer_to(broker), range(20, 25))
        assert all(error is not None for error in after.values())
        status, answer = readiness(broker)
        assert status == 503
        assert fault in answer["offline_partitions"]["full-0"]
        broker.stop()
        disk.heal()
        broker.start()
        found = read_back(broker)
        assert found[:20] == list(range(20))
        assert all(error is None for error in produce(producer_to(broker), range(30, 35)).values())


def test_a_full_disk_is_named() -> None:
    disk = MemoryDisk(free_bytes=20_000)
    with Broker(disk=disk) as broker:
        outcome = produce(producer_to(broker), range(40))
        taken = [number for number, error in outcome.items() if error is None]
        refused = {error.code() for error in outcome.values() if error is not None}
        assert refused <= {KafkaError.KAFKA_STORAGE_ERROR, KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT}
        assert "No space left" in readiness(broker)[1]["offline_partitions"]["full-0"]
        broker.stop()
        disk.heal()
        broker.start()
        assert read_back(broker)[: len(taken)] == sorted(taken)
