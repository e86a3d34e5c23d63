"""Real consumers with `isolation.level=read_committed`, on a log that the test fills with transactions."""

import asyncio
from collections.abc import Iterator

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPosition
from confluent_kafka import OFFSET_BEGINNING, Consumer
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AdminClient, NewTopic

from conveyor.records.batch import TRANSACTIONAL
from conveyor.records.checked_batch import own_batch
from conveyor.records.record import encode_batch
from conveyor.records.transaction_marker import TransactionMarker
from conveyor.replication.transactions import append_marker
from conveyor.testing import Broker

NOW_MS = 1_700_000_000_000
COMMITTED = [b"plain", b"2 committed", b"after"]
STABLE_OFFSET, HIGH_WATERMARK = 8, 10


class Filling:
    """Appends batches and markers to one partition, on the broker's loop."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self._broker = broker
        node = broker._started_server().broker
        self._partition = node.partitions.table.find(topic, 0)
        self._sequences: dict[int, int] = {}

    def append(self, value: bytes, producer_id: int = -1) -> None:
        if producer_id < 0:
            return self._partition_append(encode_batch([(NOW_MS, None, value, ())]))
        sequence = self._sequences.get(producer_id, 0)
        self._sequences[producer_id] = sequence + 1
        self._partition_append(
            encode_batch(
                [(NOW_MS, None, value, ())],
                attributes=TRANSACTIONAL, producer_id=producer_id, producer_epoch=0, base_sequence=sequence,
            )
        )  # fmt: skip

    def end(self, producer_id: int, *, commits: bool) -> None:
        marker = TransactionMarker(producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, commits=commits)
        append_marker(self._partition, marker, 1, NOW_MS)

    def _partition_append(self, content: bytes) -> None:
        self._partition.append(own_batch(content), NOW_MS)

    async def fill(self) -> None:
        """Two transactions that interleave, of which one is aborted, plain records, and one that stays open."""
        self.append(b"plain")
        self.append(b"1 aborted", 1)
        self.append(b"2 committed", 2)
        self.append(b"1 aborted", 1)
        self.end(1, commits=False)
        self.end(2, commits=True)
        self.append(b"after")
        self.end(3, commits=True)
        self.append(b"1 open", 1)
        self.append(b"plain above")
        await self._committed()

    async def commit_open(self) -> None:
        self.end(1, commits=True)
        await self._committed()

    async def _committed(self) -> None:
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._partition.term.when_committed(self._partition.log.log_end_offset, done.set_result)
        assert await done is None

    def run(self, *, fills: bool) -> None:
        work = self.fill() if fills else self.commit_open()
        asyncio.run_coroutine_threadsafe(work, self._broker._loop).result(20)


@pytest.fixture
def filling(broker: Broker, topic: str) -> Filling:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(20)
    filling = Filling(broker, topic)
    filling.run(fills=True)
    return filling


@pytest.fixture
def consumer(broker: Broker, topic: str) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": topic,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([Position(topic, 0, OFFSET_BEGINNING)])
    yield consumer
    consumer.close()


def consume(consumer: Consumer, count: int) -> list[bytes | None]:
    values = []
    for _ in range(count):
        message = consumer.poll(20)
        assert message is not None
        assert message.error() is None
        values.append(message.value())
    return values


def test_confluent_kafka_skips_aborted_records_and_waits_for_open_ones(
    filling: Filling, consumer: Consumer, topic: str
) -> None:
    assert consume(consumer, 3) == COMMITTED
    assert consumer.get_watermark_offsets(Position(topic, 0), 20) == (0, STABLE_OFFSET)
    filling.run(fills=False)
    assert consume(consumer, 2) == [b"1 open", b"plain above"]


def test_confluent_kafka_waits_at_an_offset_in_an_open_transaction(
    filling: Filling, consumer: Consumer, topic: str
) -> None:
    consumer.assign([Position(topic, 0, HIGH_WATERMARK - 1)])
    assert consumer.poll(0.5) is None
    filling.run(fills=False)
    assert consume(consumer, 1) == [b"plain above"]


async def test_aiokafka_skips_aborted_records_and_waits_for_open_ones(
    broker: Broker, filling: Filling, topic: str
) -> None:
    place = AioPosition(topic, 0)
    async with AIOKafkaConsumer(
        bootstrap_servers=broker.bootstrap_servers, isolation_level="read_committed", enable_auto_commit=False
    ) as consumer:
        consumer.assign([place])
        await consumer.seek_to_beginning(place)
        assert [(await asyncio.wait_for(consumer.getone(), 20)).value for _ in range(3)] == COMMITTED
        assert await consumer.end_offsets([place]) == {place: STABLE_OFFSET}
        await asyncio.to_thread(filling.run, fills=False)
        found = [(await asyncio.wait_for(consumer.getone(), 20)).value for _ in range(2)]
    assert found == [b"1 open", b"plain above"]
