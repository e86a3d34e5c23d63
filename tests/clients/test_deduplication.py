"""Real clients on a topic that leaves out duplicates: what they produce twice, and read once, over gaps and all."""

import json
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.error import HTTPError

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer

from conveyor.testing import Broker
from tests.clients.test_confluent_kafka import read_all
from tests.clients.test_confluent_transactions import PATIENCE_SECONDS, initialized, make_topic


def read_with_confluent(broker: Broker, topic: str, count: int) -> list[Any]:
    return [each.value() for each in read_all(broker, topic, count)]


def read_with_kafka_python(broker: Broker, topic: str, count: int) -> list[Any]:
    consumer = KafkaConsumer(topic, bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest")
    found = [next(consumer).value for _ in range(count)]
    consumer.close()
    return found


@pytest.mark.parametrize("compression", ["none", "lz4"])
@pytest.mark.parametrize("read", [read_with_confluent, read_with_kafka_python])
def test_idempotent_producer_goes_on_and_consumers_see_each_id_once(
    broker: Broker, topic: str, read: Callable[[Broker, str, int], list[Any]], compression: str
) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(topic, num_partitions=1, config={"dedup.enable": "true"})])[topic].result(10)
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "enable.idempotence": True,
            "linger.ms": 5,
            "compression.type": compression,
        }
    )
    errors: list[object] = []
    for ids in (["a", "b"], ["b", "a"], ["b", "c", "a"], ["a"], ["c", "d"]):
        for each in ids:
            producer.produce(
                topic,
                value=each,
                headers=[("conveyor-dedup-id", each.encode())],
                on_delivery=lambda error, _: errors.append(error),
            )
        assert producer.flush(10) == 0
    assert errors == [None] * 10
    assert read(broker, topic, 4) == [b"a", b"b", b"c", b"d"]


def test_ids_of_transactions_count_once_they_are_committed(broker: Broker, topic: str) -> None:
    """A committed id comes once, an aborted one can be published again, through any door."""
    make_topic(broker, topic, 1, **{"dedup.enable": "true"})
    producer = initialized(broker, topic)
    other = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True, "linger.ms": 0})
    for ids, commits in ((["a", "b"], False), (["b", "c"], True), (["a", "c"], True), (["d"], False)):
        producer.begin_transaction()
        for each in ids:
            producer.produce(topic, value=each, headers=[("conveyor-dedup-id", each.encode())])
        assert producer.flush(PATIENCE_SECONDS) == 0
        other.produce(topic, value=ids[-1], headers=[("conveyor-dedup-id", ids[-1].encode())])
        other.poll(0)
        if commits:
            producer.commit_transaction(PATIENCE_SECONDS)
        else:
            producer.abort_transaction(PATIENCE_SECONDS)
        assert other.flush(PATIENCE_SECONDS) == 0
    assert publish_by_rest(broker, topic, "a")["duplicate"]
    assert not publish_by_rest(broker, topic, "e")["duplicate"]
    found = [each.value() for each in read_all(broker, topic, 5)]
    assert sorted(found) == [b"a", b"b", b"c", b"d", b"e"]


def test_new_producer_keeps_its_order_while_its_first_id_is_in_an_open_transaction(broker: Broker, topic: str) -> None:
    """Its batches are refused until the transaction has ended, and its client sends them again."""
    make_topic(broker, topic, 1, **{"dedup.enable": "true"})
    holder = initialized(broker, topic)
    holder.begin_transaction()
    holder.produce(topic, value="a", headers=[("conveyor-dedup-id", b"a")])
    assert holder.flush(PATIENCE_SECONDS) == 0
    other = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "enable.idempotence": True,
            "linger.ms": 0,
            "batch.num.messages": 1,
        }
    )
    errors: list[object] = []
    ids = ["a", "b", "c", "d", "e", "f"]
    for each in ids:
        other.produce(
            topic,
            value=each,
            headers=[("conveyor-dedup-id", each.encode())],
            on_delivery=lambda error, _: errors.append(error),
        )
    assert other.flush(0.5) == len(ids)
    with pytest.raises(HTTPError) as refused:
        publish_by_rest(broker, topic, "a")
    assert (refused.value.code, refused.value.headers["Retry-After"]) == (503, "1")
    assert "send the message again" in json.load(refused.value)["detail"]
    holder.abort_transaction(PATIENCE_SECONDS)
    assert other.flush(PATIENCE_SECONDS) == 0
    assert errors == [None] * len(ids)
    assert [each.value() for each in read_all(broker, topic, len(ids))] == [each.encode() for each in ids]


def publish_by_rest(broker: Broker, topic: str, dedup_id: str) -> Any:
    request = urllib.request.Request(
        f"{broker.http_url}/topics/{topic}/messages", data=dedup_id.encode(), headers={"Conveyor-Dedup-Id": dedup_id}
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as response:
        return json.load(response)
