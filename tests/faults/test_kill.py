"""SIGKILL in mid-load: what was acknowledged with acks=all is there, in order, exactly once."""

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.processes import BrokerProcess

KILLS = 20
RECORDS_PER_KILL = 1500
PARTITIONS = 2


@pytest.fixture
def broker(tmp_path: Path) -> BrokerProcess:
    options = ("--set", f"broker.num_partitions={PARTITIONS}", "--set", "topics.segment_bytes=300000")
    return BrokerProcess(tmp_path / "data", *options).start()


class Load:
    """Numbers, sent in their order to each partition; remembers which were acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: set[tuple[int, int]] = set()
        self.errors: list[str] = []
        self.sent = 0
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
            if len(self._producer) < 2000:
                for partition in range(PARTITIONS):
                    value = b"%d" % self.sent
                    self._producer.produce("load", value=value, partition=partition, on_delivery=self._settle)
                self.sent += 1
            self._producer.poll(0)

    def finish(self) -> None:
        assert self._producer.flush(120) == 0

    def _settle(self, error: Any, message: Any) -> None:
        if error is not None:
            self.errors.append(error.str())
        else:
            self.acknowledged.add((message.partition(), int(message.value())))


def read_partition(bootstrap: str, partition: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "check", "enable.partition.eof": True})
    consumer.assign([TopicPartition("load", partition, 0)])
    found = []
    while True:
        message = consumer.poll(20)
        assert message is not None, "the broker does not answer"
        if message.error() is not None:
            break
        found.append(int(message.value()))
    consumer.close()
    return found


def test_twenty_kills_lose_and_repeat_nothing(broker: BrokerProcess) -> None:
    load = Load(broker.kafka)
    for kill in range(1, KILLS + 1):
        load.send_until_acknowledged(kill * RECORDS_PER_KILL)
        broker.kill()
        broker.start()
    load.finish()
    assert load.errors == []
    for partition in range(PARTITIONS):
        found = read_partition(broker.kafka, partition)
        acknowledged = {number for place, number in load.acknowledged if place == partition}
        assert found == sorted(set(found)), "out of order, or twice"
        assert acknowledged <= set(found), "acknowledged, and lost"
        assert found == list(range(load.sent))
    assert broker.stop() == 0


def test_a_clean_stop_exits_with_0_and_cuts_nothing(broker: BrokerProcess) -> None:
    load = Load(broker.kafka)
    load.send_until_acknowledged(1000)
    load.finish()
    assert broker.stop() == 0
    broker.start()
    assert read_partition(broker.kafka, 0) == list(range(load.sent))
    assert broker.stop() == 0
    assert "log cut" not in broker.log()
    assert "Traceback" not in broker.log()
