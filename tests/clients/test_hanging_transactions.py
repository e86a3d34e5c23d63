"""Kafka's tool for transactions finds a hanging one and aborts it, and consumers of committed records read on."""

import asyncio
from functools import partial

from confluent_kafka import Consumer, TopicPartition

from conveyor.records.batch import TRANSACTIONAL
from conveyor.records.checked_batch import own_batch
from conveyor.records.record import encode_batch
from conveyor.testing import Broker
from tests.clients.scenarios import make_topic
from tests.clients.toolchains import java_tool

PATIENCE_SECONDS = 60
LONG_AGO_MS = 1_700_000_000_000
PRODUCER_ID = 777


def append(broker: Broker, topic: str) -> None:
    """Append a batch of a transaction that no coordinator knows, and a plain batch."""

    async def both() -> None:
        partition = broker._started_server().broker.partitions.table.find(topic, 0)
        producer = {"attributes": TRANSACTIONAL, "producer_id": PRODUCER_ID, "producer_epoch": 3, "base_sequence": 0}
        partition.append(own_batch(encode_batch([(LONG_AGO_MS, None, b"hangs", ())], **producer)), LONG_AGO_MS)
        partition.append(own_batch(encode_batch([(LONG_AGO_MS, None, b"waits", ())])), LONG_AGO_MS)

    asyncio.run_coroutine_threadsafe(both(), broker._loop).result(PATIENCE_SECONDS)


def test_kafkas_tool_finds_and_aborts_a_hanging_transaction(broker: Broker, topic: str) -> None:
    make_topic(broker.bootstrap_servers, topic, 1)
    append(broker, topic)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": topic})
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert consumer.poll(0.3) is None
    transactions = partial(
        java_tool("org.apache.kafka.tools.TransactionsCommand").print, "--bootstrap-server", broker.bootstrap_servers
    )
    found = transactions("find-hanging", "--topic", topic)
    assert str(PRODUCER_ID) in found.splitlines()[-1].split()
    transactions("abort", "--topic", topic, "--partition", 0, "--start-offset", 0)
    message = consumer.poll(PATIENCE_SECONDS)
    assert message is not None
    assert message.value() == b"waits"
    consumer.close()
    assert str(PRODUCER_ID) not in transactions("find-hanging", "--topic", topic)
