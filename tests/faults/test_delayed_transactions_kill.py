"""SIGKILL during transactions on a delayed topic with dedup ids, and on its target: committed records come once, others
never.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.processes import BrokerProcess

KILLS = 4
TRANSACTIONS_PER_KILL = 12
PARTITIONS = 2
DELAYS_MS = (0, 0, 5, 100, 400)
PATIENCE_SECONDS = 120
LAST = b"last"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    running = BrokerProcess(tmp_path / "data", "--set", "topics.segment_bytes=300000").start()
    yield running
    running.end()


class Load:
    """Transactions of numbered records, a part of which is aborted and sent again in the next transaction."""

    def __init__(self, bootstrap: str) -> None:
        self.committed: set[bytes] = set()
        self.errors: list[str] = []
        self.ended_count = 0
        self.should_stop = False
        self._chance = Random(4)
        self._sent = 0
        config: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "transactional.id": "load",
            "linger.ms": 1,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
            "retry.backoff.ms": 20,
            "log_level": 0,
        }
        self._producer = Producer(config)
        self._producer.init_transactions(PATIENCE_SECONDS)
        self._thread = Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def wait_for(self, transactions: int) -> None:
        """Wait until this number of transactions has ended."""
        give_up = time.monotonic() + PATIENCE_SECONDS
        while self.ended_count < transactions and not self.errors:
            assert time.monotonic() < give_up
            self._thread.join(0.005)

    def finish(self) -> None:
        self.should_stop = True
        self._thread.join(PATIENCE_SECONDS)

    def _run(self) -> None:
        try:
            values: list[bytes] = []
            while not self.should_stop:
                values = self._transaction(values)
            self._commit([LAST])
        except KafkaException as error:
            self.errors.append(str(error))

    def _transaction(self, again: list[bytes]) -> list[bytes]:
        """Returns the values to publish again, because they were aborted."""
        values = [*again, *(b"%d" % number for number in range(self._sent, self._sent + 10))]
        self._sent += 10
        if self._chance.random() < 0.4:
            self._send(values)
            self._repeat(lambda: self._producer.abort_transaction(PATIENCE_SECONDS))
        else:
            self._commit(values)
            values = []
        self.ended_count += 1
        return values

    def _commit(self, values: list[bytes]) -> None:
        self._send(values)
        self._repeat(lambda: self._producer.commit_transaction(PATIENCE_SECONDS))
        self.committed.update(values)

    def _send(self, values: list[bytes]) -> None:
        self._producer.begin_transaction()
        for value in values:
            due_ms = int(time.time() * 1000) + self._chance.choice(DELAYS_MS)
            headers: Any = [("conveyor-deliver-at-ms", b"%d" % due_ms), ("conveyor-dedup-id", value)]
            partition = hash(value) % PARTITIONS
            is_direct = int(value) % 5 == 0 if value != LAST else False
            topic = "load" if is_direct else "load-later"
            headers = [] if is_direct else headers
            due_ms = 0 if is_direct else due_ms
            self._producer.produce(topic, value=value, key=b"%d" % due_ms, partition=partition, headers=headers)
        self._producer.flush(PATIENCE_SECONDS)

    def _repeat(self, call: Callable[[], None]) -> None:
        while True:
            try:
                return call()
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise


def read_until(bootstrap: str, wanted: set[bytes]) -> list[bytes]:
    """Return all values of the topic once these are there, and nothing more comes."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "check", "reconnect.backoff.max.ms": 100})
    consumer.assign([TopicPartition("load", partition, 0) for partition in range(PARTITIONS)])
    found: list[bytes] = []
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not wanted <= set(found) and time.monotonic() < give_up:
        found += values_of(consumer, 0.2)
    while more := values_of(consumer, 1):
        found += more
    consumer.close()
    return found


def values_of(consumer: Consumer, wait_seconds: float) -> list[bytes]:
    now_ms = time.time() * 1000
    messages = [each for each in consumer.consume(1000, wait_seconds) if each.error() is None]
    assert all(int(each.key() or b"0") <= now_ms + wait_seconds * 1000 for each in messages), "before its time"
    return [each.value() or b"" for each in messages]


def test_kills_lose_repeat_and_reveal_nothing(broker: BrokerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    for name, config in (("load", {}), ("load-later", {"delay.target": "load", "dedup.enable": "true"})):
        topic = NewTopic(name, num_partitions=PARTITIONS, replication_factor=1, config=config)
        admin.create_topics([topic])[name].result(20)
    load = Load(broker.kafka)
    load.start()
    for kill in range(1, KILLS + 1):
        load.wait_for(kill * TRANSACTIONS_PER_KILL)
        broker.kill()
        broker.start()
    load.wait_for((KILLS + 1) * TRANSACTIONS_PER_KILL)
    load.finish()
    assert load.errors == []
    found = read_until(broker.kafka, load.committed)
    assert len(set(found)) == len(found), "a record came twice"
    assert set(found) == load.committed
    assert broker.stop() == 0
