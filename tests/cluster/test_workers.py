"""The workers of one machine, in processes: acknowledged records survive the kill of a worker and of the supervisor."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.cluster.worker_group import WorkerGroup
from tests.cluster.workloads import read_all

TOPIC, PARTITIONS = "flights", 2


@pytest.fixture
def group(tmp_path: Path) -> Iterator[WorkerGroup]:
    group = WorkerGroup(tmp_path, 2, "--set", "broker.worker_session_timeout_ms=1000")
    try:
        yield group.start()
    finally:
        group.end()


class Writer:
    """Produces with acks=all, and keeps what was acknowledged."""

    def __init__(self, group: WorkerGroup, first: int = 0) -> None:
        self.acknowledged: list[str] = []
        self.failed: list[str] = []
        self._first = self._next = first
        settings = {"enable.idempotence": True, "reconnect.backoff.max.ms": 500, "socket.timeout.ms": 3_000}
        self._producer = Producer({"bootstrap.servers": group.bootstrap, "log_level": 0} | settings)

    def write(self, count: int) -> None:
        """Begin to produce some records, to all partitions in turn."""
        for number in range(self._next, self._next + count):
            self._producer.produce(TOPIC, str(number), partition=number % PARTITIONS, on_delivery=self._delivered)
        self._next += count

    def finish(self) -> None:
        """All records are acknowledged when this returns."""
        assert self._producer.flush(120) == 0
        assert (self.failed, len(self.acknowledged)) == ([], self._next - self._first)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        value = message.value()
        assert isinstance(value, bytes)
        (self.failed if error else self.acknowledged).append(value.decode())


def create(group: WorkerGroup, replicas: int) -> None:
    admin = AdminClient({"bootstrap.servers": group.bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, replicas)])[TOPIC].result(60)


def until_in_sync(group: WorkerGroup) -> None:
    """Wait until every partition has both replicas in sync."""
    admin = AdminClient({"bootstrap.servers": group.bootstrap, "log_level": 0})
    while True:
        partitions = admin.list_topics(TOPIC, timeout=60).topics[TOPIC].partitions
        if partitions and all(len(partition.isrs) == 2 for partition in partitions.values()):
            return


def check(group: WorkerGroup, acknowledged: list[str]) -> None:
    """What was acknowledged is there, once, and in the order of its partition."""
    records = sorted(read_all(group, TOPIC, PARTITIONS).items())
    values = [value.decode() for _, value in records]
    assert sorted(values, key=int) == sorted(acknowledged, key=int)
    for number in range(PARTITIONS):
        found = [int(value) for (partition, _), value in records if partition == number]
        assert found == sorted(found)


def test_acknowledged_records_survive_the_death_of_each_worker(group: WorkerGroup) -> None:
    """Each in turn, so that the one that has returned must have caught up. A stopped one is replaced, too."""
    create(group, replicas=2)
    writer = Writer(group)
    writer.write(200)
    writer.finish()
    for number in (1, 2):
        writer.write(500)
        group.kill_worker(number)
        writer.write(500)
        writer.finish()
        group.until_back(number)
        until_in_sync(group)
    group.signal_worker(1, signal.SIGSTOP)
    writer.write(500)
    writer.finish()
    group.signal_worker(1, signal.SIGCONT)
    until_in_sync(group)
    check(group, writer.acknowledged)
    assert group.stop() == 0
    assert not (group.directory / "data" / "metadata.sock").exists()


def test_workers_end_with_their_supervisor_and_return_with_the_next_one(group: WorkerGroup) -> None:
    """The next one starts at once and waits for them; with one replica, too, nothing that was acknowledged is lost."""
    create(group, replicas=1)
    writer = Writer(group)
    writer.write(500)
    writer.finish()
    workers = dict(group.pids)
    group.kill_supervisor()
    again = WorkerGroup(group.directory, 2).start()
    try:
        assert not set(workers.values()) & set(again.pids.values())
        group.until_workers_end()
        later = Writer(again, first=500)
        later.write(100)
        later.finish()
        check(again, writer.acknowledged + later.acknowledged)
        assert again.stop() == 0
    finally:
        again.end()
