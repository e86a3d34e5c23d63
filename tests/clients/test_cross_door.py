"""One topic through both doors: produced by Kafka, leased and settled over REST, and read again as a stream."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import confluent_kafka
import kafka
import pytest

from conveyor.testing import Broker
from tests.clients.rest_client import Rest

PARTITIONS = 2
DELAY_S = 600
FILTER = "tag == 'vip' && payload.total > 10"


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Record:
    """A record as a Kafka client sends and reads it."""

    key: bytes
    value: bytes
    timestamp_ms: int
    headers: tuple[tuple[str, bytes], ...]

    @property
    def is_vip(self) -> bool:
        return ("conveyor-tag", b"vip") in self.headers

    @property
    def is_delayed(self) -> bool:
        return any(name == "conveyor-delay-ms" for name, _ in self.headers)


class Client(Protocol):
    """What a Kafka client is asked for here. `read`: every record of a topic, from the first on."""

    def send(self, broker: Broker, topic: str, records: Sequence[Record]) -> None: ...

    def read(self, broker: Broker, topic: str) -> list[Record]: ...


class Confluent:
    """confluent-kafka, with an idempotent producer."""

    def send(self, broker: Broker, topic: str, records: Sequence[Record]) -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True})
        for each in records:
            producer.produce(topic, each.value, each.key, timestamp=each.timestamp_ms, headers=list(each.headers))
        assert producer.flush(30) == 0

    def read(self, broker: Broker, topic: str) -> list[Record]:
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": broker.bootstrap_servers, "group.id": "replay", "enable.partition.eof": True}
        )
        partitions = consumer.list_topics(topic, 10).topics[topic].partitions
        consumer.assign([confluent_kafka.TopicPartition(topic, each, 0) for each in partitions])
        found, ends = [], 0
        while ends < len(partitions):
            message: Any = consumer.poll(20)
            assert message is not None, "the broker does not answer"
            if message.error() is not None:
                ends += 1
                continue
            time_ms, headers = message.timestamp()[1], tuple(message.headers() or ())
            found.append(Record(key=message.key(), value=message.value(), timestamp_ms=time_ms, headers=headers))
        consumer.close()
        return found


class KafkaPython:
    """kafka-python."""

    def send(self, broker: Broker, topic: str, records: Sequence[Record]) -> None:
        producer = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap_servers, acks="all")
        sent = [
            producer.send(topic, each.value, each.key, timestamp_ms=each.timestamp_ms, headers=list(each.headers))
            for each in records
        ]
        for future in sent:
            future.get(30)
        producer.close()

    def read(self, broker: Broker, topic: str) -> list[Record]:
        consumer = kafka.KafkaConsumer(bootstrap_servers=broker.bootstrap_servers)
        partitions = [kafka.TopicPartition(topic, each) for each in consumer.partitions_for_topic(topic)]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        end = sum(consumer.end_offsets(partitions).values())
        found = []
        while sum(consumer.position(each) for each in partitions) < end:
            message = next(consumer)
            found.append(
                Record(
                    key=message.key,
                    value=message.value,
                    timestamp_ms=message.timestamp,
                    headers=tuple(message.headers),
                )
            )
        consumer.close()
        return found


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """Time stands still, and is moved on by the tests. Records keep their producers' timestamps."""
    with Broker(manual_clock=True, settings={"topics.message_timestamp_type": "CreateTime"}) as running:
        yield running


def orders(now_ms: int) -> list[Record]:
    """With every combination of tag and delay; some that are tagged are not for who asks for a large total."""
    records = []
    for number in range(16):
        headers = [("shop", b"\xff%d" % number)]
        headers += [("conveyor-tag", b"vip" if number % 2 else b"plain")]
        headers += [("conveyor-delay-ms", b"%d" % (DELAY_S * 1000))] if number // 2 % 2 else []
        value = b'{"order": %d, "total": %d}' % (number, 5 if number >= 12 else 50)
        records.append(
            Record(key=b"customer-%d" % (number % 5), value=value, timestamp_ms=now_ms, headers=tuple(headers))
        )
    return records


def payloads(records: Sequence[Record]) -> list[str]:
    return sorted(each.value.decode() for each in records)


def leased(rest: Rest, name: str, count: int) -> list[dict[str, Any]]:
    """So many messages, which are there or come."""
    found: list[dict[str, Any]] = []
    while len(found) < count:
        found += rest.lease(name, max_messages=1000, visibility="12h")
    assert rest.get(f"/subscriptions/{name}/messages").json["messages"] == []
    return sorted(found, key=lambda each: str(each["payload"]))


def settle(rest: Rest, name: str, verb: str, messages: Sequence[dict[str, Any]], **more: object) -> None:
    named = {"ack_ids": [each["ack_id"] for each in messages]}
    results = rest.post(f"/subscriptions/{name}/{verb}", named | more).json["results"]
    assert {each["status"] for each in results} == {"ok"}


def dead_letters(rest: Rest, name: str, count: int) -> list[dict[str, Any]]:
    """So many dead letters, once they lie where they belong."""
    shown: list[dict[str, Any]] = []
    while len(shown) < count:
        shown = rest.get(f"/dlq/{name}", limit=1000).json["messages"]
    return shown


@pytest.mark.parametrize("delay", ["queue delay", "stream delay"])
@pytest.mark.parametrize("client", [Confluent(), KafkaPython()], ids=["confluent-kafka", "kafka-python"])
def test_message_goes_through_every_door(broker: Broker, rest: Rest, topic: str, client: Client, delay: str) -> None:
    name, is_stream_delay = f"{topic}-vips", delay == "stream delay"
    assert rest.post("/topics", {"name": topic, "partitions": PARTITIONS}).status == 201
    sent_to = f"{topic}-later" if is_stream_delay else topic
    if is_stream_delay:
        assert rest.post("/topics", {"name": sent_to, "config": {"delay.target": topic}}).status == 201
    policy = {"filter": FILTER, "start": "earliest", "delivery": "exactly_once", "max_deliveries": 2}
    assert rest.post(f"/topics/{topic}/subscriptions", {"name": name, **policy}).status == 201

    sent = orders(broker.clock.now_ms())
    wanted = [each for each in sent if each.is_vip and b'"total": 50' in each.value]
    early, late = [[each for each in wanted if each.is_delayed is is_late] for is_late in (False, True)]
    client.send(broker, sent_to, sent)

    # Due at once: exactly those which the filter lets through. The others not before their time.
    found = leased(rest, name, len(early))
    assert [each["payload"] for each in found] == payloads(early)
    settle(rest, name, "ack", found)
    seen = client.read(broker, topic)
    assert sorted(seen) == sorted(each for each in sent if not (is_stream_delay and each.is_delayed))
    broker.clock.advance(ms=DELAY_S * 1000 - 1)
    assert rest.get(f"/subscriptions/{name}/messages").json["messages"] == []
    broker.clock.advance(ms=1)

    # They fail until they are dead letters.
    for delivery in (1, 2):
        found = leased(rest, name, len(late))
        assert [each["payload"] for each in found] == payloads(late)
        assert {each["delivery_count"] for each in found} == {delivery}
        settle(rest, name, "nack", found, delay="5s")
        broker.clock.advance(seconds=5)
    shown = dead_letters(rest, name, len(late))
    assert sorted(each["payload"] for each in shown) == payloads(late)
    assert {"topic": f"{topic}.dlq", "depth": len(late), "subscriptions": [name]} in rest.get("/dlq").json["topics"]
    check_dead_letters(client.read(broker, f"{topic}.dlq"), late, topic, name)

    # Another chance, for this subscription alone; and the stream is what it was.
    assert rest.post(f"/subscriptions/{name}/redrive").json == {"redriven": len(late), "unknown": []}
    found = leased(rest, name, len(late))
    assert [each["payload"] for each in found] == payloads(late)
    settle(rest, name, "ack", found)
    stands = rest.get(f"/subscriptions/{name}").json
    assert (stands["unsettled"], stands["dead"], stands["acked"]) == (0, 0, len(wanted))
    assert sorted(client.read(broker, topic)) == sorted(sent)


def check_dead_letters(copies: Sequence[Record], originals: Sequence[Record], topic: str, name: str) -> None:
    """As a Kafka consumer sees them: the originals, with headers that say where from and why."""
    assert payloads(copies) == payloads(originals)
    keys = {each.value: each.key for each in originals}
    shops = {each.value: each.headers[0] for each in originals}
    for each in copies:
        headers = dict(each.headers)
        assert each.key == keys[each.value]
        assert shops[each.value] in each.headers
        assert each.is_vip
        assert not each.is_delayed
        assert headers["conveyor-dead-topic"] == topic.encode()
        assert headers["conveyor-dead-subscription"] == name.encode()
        assert headers["conveyor-dead-reason"] == b"delivered 2 times"
        assert headers["conveyor-dead-deliveries"] == b"2"
        first_ms, last_ms = (int(headers[f"conveyor-dead-{which}-failure-ms"]) for which in ("first", "last"))
        assert last_ms - first_ms == 5000
