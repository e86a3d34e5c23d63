"""librdkafka, whose batches are refused for a passing reason while later ones are in flight, loses and doubles nothing.

It takes the success of a batch for that of all earlier ones. After OUT_OF_ORDER_SEQUENCE it begins a new epoch, and
sends all unanswered batches again in it.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.produce.acknowledgement import Published
from conveyor.broker.produce.publisher import Publisher
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.testing import Broker

Finished = Callable[[Sequence[Published]], None]


class RefusingPublisher:
    """The publisher of a broker, which treats the first batches of a topic as `treatments` say, and answers none of
    them before all have come, so that they are in flight together.

    stored: appended, but the client is told that the partition is offline. refused: not appended. None: as always.
    """

    def __init__(self, topic: str, treatments: Sequence[str | None]) -> None:
        self._topic, self._treatments = topic, list(treatments)
        self._publish = Publisher.publish
        self._unanswered: list[Callable[[], None]] = []
        self.received = 0

    def publish(
        self, publisher: Publisher, caller: Any, batches: Sequence[Any], acks: int, finished: Finished, **more: Any
    ) -> None:
        number, treatments = self.received, self._treatments
        if batches[0][0] != self._topic or number >= len(treatments):
            return self._publish(publisher, caller, batches, acks, finished, **more)
        self.received += 1
        if treatments[number] == "refused":
            with pytest.MonkeyPatch.context() as offline:
                offline.setattr(PartitionTable, "find_for_producer", Mock(side_effect=_offline()))
                return self._publish(publisher, caller, batches, acks, partial(self._answer, finished), **more)
        answer = partial(self._answer_failed if treatments[number] == "stored" else self._answer, finished)
        self._publish(publisher, caller, batches, acks, answer, **more)

    def _answer_failed(self, finished: Finished, results: Sequence[Published]) -> None:
        assert results[0].error is None
        self._answer(finished, [Published(error=_offline())])

    def _answer(self, finished: Finished, results: Sequence[Published]) -> None:
        self._unanswered.append(partial(finished, results))
        if len(self._unanswered) == len(self._treatments):
            for answer in self._unanswered:
                answer()


def _offline() -> RequestError:
    return RequestError(ErrorKind.PARTITION_OFFLINE, "offline: No space left on device")


@pytest.fixture
def servers(broker: Broker, topic: str) -> dict[str, Any]:
    servers = {"bootstrap.servers": broker.bootstrap_servers}
    admin = AdminClient(servers)
    for created in admin.create_topics([NewTopic(topic, 2, 1)]).values():
        created.result(10)
    return servers


def produce(
    monkeypatch: pytest.MonkeyPatch, servers: dict[str, Any], topic: str, treatments: Sequence[str | None],
    partitions: Sequence[int],
) -> None:  # fmt: skip
    """Send one batch after the other to these partitions, all in flight together, each with its number."""
    refusing = RefusingPublisher(topic, treatments)
    told: list[tuple[bytes | None, KafkaError | None]] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        told.append((message.value(), error))

    def publish(publisher: Publisher, *arguments: Any, **more: Any) -> None:
        refusing.publish(publisher, *arguments, **more)

    producer = Producer({**servers, "enable.idempotence": True, "linger.ms": 0, "batch.num.messages": 1})
    producer.produce(topic, b"first", partition=1)
    assert producer.flush(30) == 0
    with monkeypatch.context() as patched:
        patched.setattr(Publisher, "publish", publish)
        for number, partition in enumerate(partitions):
            producer.produce(topic, b"%d" % number, partition=partition, on_delivery=delivered)
            while refusing.received <= number:
                producer.poll(0.01)
        assert producer.flush(30) == 0
    assert sorted(told, key=str) == [(b"%d" % number, None) for number in range(len(partitions))]


def stored(servers: dict[str, Any], topic: str, partition: int) -> list[bytes | None]:
    consumer = Consumer({**servers, "group.id": "reader"})
    place = TopicPartition(topic, partition, OFFSET_BEGINNING)
    end = consumer.get_watermark_offsets(place, 30)[1]
    consumer.assign([place])
    values: list[bytes | None] = []
    while len(values) < end:
        values += [message.value() for message in consumer.consume(end - len(values), 1.0)]
    consumer.close()
    return values


def test_first_batch_of_a_producer_that_is_refused_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, servers: dict[str, Any], topic: str
) -> None:
    produce(monkeypatch, servers, topic, ["refused", None], [0, 0])
    assert stored(servers, topic, 0) == [b"0", b"1"]


@pytest.mark.parametrize("other", [0, 1], ids=["same partition", "other partition"])
def test_batch_that_is_stored_although_it_failed_is_not_stored_twice(
    monkeypatch: pytest.MonkeyPatch, servers: dict[str, Any], topic: str, other: int
) -> None:
    produce(monkeypatch, servers, topic, ["stored", "refused", None], [0, other, other])
    assert stored(servers, topic, 0) == ([b"0", b"1", b"2"] if other == 0 else [b"0"])
    assert stored(servers, topic, 1) == ([b"first"] if other == 0 else [b"first", b"1", b"2"])
