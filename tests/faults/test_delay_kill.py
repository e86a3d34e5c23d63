"""SIGKILL while records wait: each that was acknowledged is in the target once, and none before its time. Another
producer writes to the target meanwhile.
"""

import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.processes import BrokerProcess

KILLS = 8
RECORDS_PER_KILL = 600
PARTITIONS = 2
DELAYS_MS = (0, 0, 5, 100, 400, 1_500)
DIRECT_SHARE = 0.3
"""Of the records that are written to the target itself."""


@pytest.fixture
def broker(tmp_path: Path) -> BrokerProcess:
    return BrokerProcess(tmp_path / "data", "--set", "topics.segment_bytes=300000").start()


class Load:
    """Numbered records, each with a time before which nobody may see it."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: set[tuple[int, int]] = set()
        self.errors: list[str] = []
        self.sent = 0
        self._chance = Random(4)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "batch.num.messages": 50,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20,
                "log_level": 0,
            }
        )

    def send_until_acknowledged(self, count: int) -> None:
        """Keep sending until so many are acknowledged; more are under way then."""
        while len(self.acknowledged) < count and not self.errors:
            if len(self._producer) < 500:
                for partition in range(PARTITIONS):
                    self._send(partition)
                self.sent += 1
            self._producer.poll(0.001)

    def finish(self) -> None:
        assert self._producer.flush(120) == 0

    def _send(self, partition: int) -> None:
        is_direct = self._chance.random() < DIRECT_SHARE
        delay_ms = 0 if is_direct else self._chance.choice(DELAYS_MS)
        due_ms = int(time.time() * 1000) + delay_ms if delay_ms else 0
        headers: Any = [("conveyor-deliver-at-ms", b"%d" % due_ms)] if due_ms else []
        topic = "load" if is_direct else "load-later"
        self._producer.produce(
            topic, value=b"%d" % self.sent, key=b"%d" % due_ms, partition=partition, headers=headers,
            on_delivery=self._settle,
        )  # fmt: skip

    def _settle(self, error: Any, message: Any) -> None:
        if error is not None:
            self.errors.append(error.str())
        else:
            self.acknowledged.add((message.partition(), int(message.value())))


class Reader:
    """Reads the target as a stream, and notes what it has seen before its time."""

    def __init__(self, bootstrap: str) -> None:
        self.found: list[tuple[int, int]] = []
        self.too_early: list[tuple[int, int]] = []
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "check", "reconnect.backoff.max.ms": 100}
        )
        self._consumer.assign([TopicPartition("load", partition, 0) for partition in range(PARTITIONS)])

    def read(self, wait_seconds: float) -> bool:
        """Read what there is; whether there was anything."""
        messages = self._consumer.consume(1000, wait_seconds)
        now_ms = time.time() * 1000
        for message in messages:
            if message.error() is not None:
                continue
            partition, key, value = message.partition(), message.key(), message.value()
            assert partition is not None
            assert key is not None
            assert value is not None
            self.found.append((partition, int(value)))
            if int(key) > now_ms:
                self.too_early.append(self.found[-1])
        return bool(messages)

    def read_until(self, wanted: set[tuple[int, int]], seconds: int) -> None:
        give_up = time.monotonic() + seconds
        while not wanted <= set(self.found) and time.monotonic() < give_up:
            self.read(0.2)

    def close(self) -> None:
        self._consumer.close()


def make_topics(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for name, config in (("load", {}), ("load-later", {"delay.target": "load"})):
        topic = NewTopic(name, num_partitions=PARTITIONS, replication_factor=1, config=config)
        admin.create_topics([topic])[name].result(20)


def test_kills_lose_repeat_and_hasten_nothing(broker: BrokerProcess) -> None:
    make_topics(broker.kafka)
    load, reader = Load(broker.kafka), Reader(broker.kafka)
    for kill in range(1, KILLS + 1):
        load.send_until_acknowledged(kill * RECORDS_PER_KILL)
        broker.kill()
        broker.start()
        reader.read(0.1)
    load.finish()
    assert load.errors == []
    reader.read_until(load.acknowledged, seconds=60)
    while reader.read(1):
        pass
    reader.close()
    assert reader.too_early == []
    assert len(set(reader.found)) == len(reader.found), "a record was forwarded twice"
    assert set(reader.found) == load.acknowledged
    assert broker.stop() == 0
