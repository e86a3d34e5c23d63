"""Consume, transform, produce: the output and the position in the input change together, or not at all."""

import asyncio
from collections.abc import Callable

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonPartition
from kafka.structs import OffsetAndMetadata

from conveyor.testing import Broker
from tests.clients.programs import Program
from tests.clients.scenarios import make_topic
from tests.clients.toolchains import go_program, java_program

PATIENCE_SECONDS = 60
COUNT = 60
AT_ONCE = 5
PROTOCOLS = pytest.mark.parametrize("protocol", ["classic", "consumer"])


@pytest.fixture
def names(topic: str, broker: Broker) -> tuple[str, str]:
    """An input with numbers, and an empty output."""
    source, target = f"{topic}-in", f"{topic}-out"
    for name in (source, target):
        make_topic(broker.bootstrap_servers, name, 1)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(COUNT):
        producer.produce(source, str(number))
    producer.flush(PATIENCE_SECONDS)
    return source, target


def is_aborted(position: int, attempts: dict[int, int]) -> bool:
    """Abort the first attempt at every third portion."""
    attempts[position] = attempts.get(position, 0) + 1
    return position // AT_ONCE % 3 == 1 and attempts[position] == 1


def check(broker: Broker, target: str) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": f"{target}-check"})
    consumer.assign([TopicPartition(target, 0, 0)])
    found: list[int] = []
    while len(found) < COUNT:
        message = consumer.poll(PATIENCE_SECONDS)
        assert message is not None
        assert message.error() is None
        found.append(int(message.value()))
    assert found == [2 * number for number in range(COUNT)]
    assert consumer.poll(0.3) is None
    consumer.close()


@pytest.mark.parametrize("program", [java_program, go_program])
def test_programs(broker: Broker, names: tuple[str, str], program: Callable[[], Program]) -> None:
    program().run("transform", broker.bootstrap_servers, *names, COUNT)
    check(broker, names[1])


@pytest.mark.parametrize(
    ("program", "errors"),
    [
        (java_program, {"ProducerFencedException", "InvalidProducerEpochException"}),
        (go_program, {"PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"}),
    ],
)
def test_zombies_are_fenced(broker: Broker, topic: str, program: Callable[[], Program], errors: set[str]) -> None:
    make_topic(broker.bootstrap_servers, topic, 1)
    [outcome] = program().run("fence", broker.bootstrap_servers, topic)
    assert outcome["error"] in errors
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": topic})
    consumer.assign([TopicPartition(topic, 0, 0)])
    message = consumer.poll(PATIENCE_SECONDS)
    assert message is not None
    assert message.value() == b"successor"
    consumer.close()


def subscribed(broker: Broker, source: str, protocol: str) -> Consumer:
    """A consumer of confluent-kafka whose group is named for its input."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": source,
            "group.protocol": protocol,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([source])
    return consumer


@PROTOCOLS
def test_confluent_kafka(broker: Broker, names: tuple[str, str], protocol: str) -> None:
    source, target = names
    consumer = subscribed(broker, source, protocol)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": source})
    producer.init_transactions(PATIENCE_SECONDS)
    done, attempts = 0, dict[int, int]()
    while done < COUNT:
        messages = consumer.consume(AT_ONCE, PATIENCE_SECONDS)
        producer.begin_transaction()
        for message in messages:
            producer.produce(target, str(2 * int(message.value())))
        positions = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), PATIENCE_SECONDS)
        if is_aborted(done, attempts):
            producer.abort_transaction(PATIENCE_SECONDS)
            for committed in consumer.committed(consumer.assignment(), PATIENCE_SECONDS):
                assert max(committed.offset, 0) == done
                consumer.seek(TopicPartition(source, 0, done))
        else:
            producer.commit_transaction(PATIENCE_SECONDS)
            done += len(messages)
    assert [place.offset for place in consumer.committed([TopicPartition(source, 0)], PATIENCE_SECONDS)] == [COUNT]
    consumer.close()
    check(broker, target)


@PROTOCOLS
def test_a_zombie_of_the_group_commits_no_offsets(broker: Broker, names: tuple[str, str], protocol: str) -> None:
    """A member that has left the group cannot commit in a transaction, and can abort it (KIP-447)."""
    source, target = names
    consumer = subscribed(broker, source, protocol)
    assert consumer.consume(1, PATIENCE_SECONDS)
    zombie = consumer.consumer_group_metadata()
    consumer.close()
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": source})
    producer.init_transactions(PATIENCE_SECONDS)
    producer.begin_transaction()
    producer.produce(target, "zombie")
    with pytest.raises(KafkaException) as refused:
        producer.send_offsets_to_transaction([TopicPartition(source, 0, 1)], zombie, PATIENCE_SECONDS)
    error = refused.value.args[0]
    assert error.code() in (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION)
    assert error.txn_requires_abort()
    producer.abort_transaction(PATIENCE_SECONDS)
    successor = subscribed(broker, source, protocol)
    messages = successor.consume(COUNT, PATIENCE_SECONDS)
    assert [int(message.value()) for message in messages] == list(range(COUNT))
    successor.close()


def test_aiokafka(broker: Broker, names: tuple[str, str]) -> None:
    asyncio.run(_aiokafka(broker.bootstrap_servers, *names))
    check(broker, names[1])


async def _aiokafka(bootstrap: str, source: str, target: str) -> None:
    consumer = AIOKafkaConsumer(
        source, bootstrap_servers=bootstrap, group_id=source, enable_auto_commit=False, auto_offset_reset="earliest",
        isolation_level="read_committed",
    )  # fmt: skip
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=source)
    await consumer.start()
    await producer.start()
    done, attempts = 0, dict[int, int]()
    while done < COUNT:
        read = await consumer.getmany(timeout_ms=PATIENCE_SECONDS * 1000, max_records=AT_ONCE)
        await producer.begin_transaction()
        for place, messages in read.items():
            for message in messages:
                await producer.send(target, str(2 * int(message.value)).encode())
            await producer.send_offsets_to_transaction({place: messages[-1].offset + 1}, source)
            if is_aborted(done, attempts):
                await producer.abort_transaction()
                assert (await consumer.committed(place) or 0) == done
                consumer.seek(place, done)
            else:
                await producer.commit_transaction()
                done += len(messages)
    await producer.stop()
    await consumer.stop()


def test_kafka_python(broker: Broker, names: tuple[str, str]) -> None:
    source, target = names
    consumer = KafkaConsumer(
        source, bootstrap_servers=broker.bootstrap_servers, group_id=source, enable_auto_commit=False,
        auto_offset_reset="earliest", isolation_level="read_committed",
    )  # fmt: skip
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id=source)
    producer.init_transactions()
    place = PythonPartition(source, 0)
    done, attempts = 0, dict[int, int]()
    while done < COUNT:
        read = consumer.poll(timeout_ms=1000, max_records=AT_ONCE)
        messages = read.get(place, [])
        if not messages:
            continue
        producer.begin_transaction()
        for message in messages:
            producer.send(target, str(2 * int(message.value)).encode())
        position = {place: OffsetAndMetadata(messages[-1].offset + 1, "", -1)}
        producer.send_offsets_to_transaction(position, source)
        if is_aborted(done, attempts):
            producer.abort_transaction()
            assert (consumer.committed(place) or 0) == done
            consumer.seek(place, done)
        else:
            producer.commit_transaction()
            done += len(messages)
    producer.close()
    consumer.close()
    check(broker, target)
