"""Quix Streams: a word count with its repartition topic, its changelog and its state."""

import json
import random
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from tests.clients.applications import Application, Processes, until
from tests.clients.scenarios import make_topic
from tests.clients.toolchains import quix_python

GROUP = "word-count"
INPUT = "lines"
OUTPUT = "counts"
REPARTITION = f"repartition__{GROUP}--{INPUT}--word"
CHANGELOG = f"changelog__{GROUP}--repartition.{INPUT}.word--default"
PARTITIONS = 2
LINES = 4000
WORDS_OF_A_LINE = 5
VOCABULARY = [f"word{number}" for number in range(20)]
PROGRAM = Path(__file__).parent / "python" / "quix" / "word_count.py"


class Words:
    """What went into the word count, and what has come out."""

    def __init__(self, bootstrap: str) -> None:
        settings = {"bootstrap.servers": bootstrap, "log_level": 0}
        self._admin = AdminClient(settings)
        self._producer = Producer(settings | {"enable.idempotence": True})
        self._consumer = Consumer(settings | {"group.id": "reader"})
        for topic in (INPUT, OUTPUT):
            make_topic(bootstrap, topic, PARTITIONS)
        self._consumer.assign([TopicPartition(OUTPUT, partition, 0) for partition in range(PARTITIONS)])
        self._random = random.Random(1)
        self._sent: Counter[str] = Counter()
        self._lines = 0
        self._counts: dict[str, list[int]] = {}

    def send(self) -> None:
        """Give lines to the producer, which goes on over the death of the broker."""
        for number in range(self._lines, self._lines + LINES):
            words = self._random.sample(VOCABULARY, WORDS_OF_A_LINE)
            partition = number % PARTITIONS
            line = {"words": words, "number": number, "partition": partition}
            self._producer.produce(INPUT, json.dumps(line), partition=partition)
            self._sent.update(words)
        self._lines += LINES

    def flush(self) -> None:
        assert self._producer.flush(60) == 0

    def read(self) -> int:
        """Read what has come out. Returns how many counts."""
        messages = self._consumer.consume(10_000, 0.1)
        for message in messages:
            assert message.error() is None
            self._counts.setdefault(message.key().decode(), []).append(json.loads(message.value()))
        return len(messages)

    def are_counted(self) -> bool:
        """Whether each word has come to its count by steps of one: steps may be repeated, and none is left out."""
        self.read()
        return {word: (counts[-1], set(counts)) for word, counts in self._counts.items()} == {
            word: (count, set(range(1, count + 1))) for word, count in self._sent.items()
        }

    def are_counted_once(self) -> bool:
        """Whether each word has come to its count by steps of one, and no step is repeated."""
        self.read()
        return self._counts == {word: list(range(1, count + 1)) for word, count in self._sent.items()}

    def policies(self) -> dict[str, str]:
        """The cleanup policies of the topics that Quix has made."""
        topics = [topic for topic in self._admin.list_topics(timeout=60).topics if GROUP in topic]
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        described = self._admin.describe_configs(resources)
        return {each.name: future.result(60)["cleanup.policy"].value for each, future in described.items()}


def word_count(processes: Processes, bootstrap: str, name: str, guarantee: str = "at-least-once") -> Application:
    """Start the application with state of its own."""
    arguments = [bootstrap, INPUT, OUTPUT, GROUP, str(processes.folder / f"{name}-state"), guarantee]
    return processes.application(name, [str(quix_python()), str(PROGRAM), *arguments])


def test_words_are_counted_over_kills_of_the_broker_and_of_the_application(processes: Processes) -> None:
    broker = processes.broker()
    words = Words(broker.kafka)
    words.send()
    words.flush()
    first = word_count(processes, broker.kafka, "first")
    until(words.read, "words are counted")
    words.send()
    broker.kill()
    broker.start()
    words.flush()
    until(words.are_counted, "words are counted after a kill of the broker")
    assert first.is_running()
    assert words.policies() == {REPARTITION: "delete", CHANGELOG: "compact"}

    words.send()
    words.flush()
    until(words.read, "more words are counted")
    first.kill()
    second = word_count(processes, broker.kafka, "without-state")
    until(words.are_counted, "words are counted after a kill of the application")
    assert second.is_running()
    assert broker.stop() == 0


@pytest.mark.sweep
def test_words_are_counted_exactly_once_over_kills(processes: Processes) -> None:
    broker = processes.broker()
    words = Words(broker.kafka)
    words.send()
    words.flush()
    first = word_count(processes, broker.kafka, "first", "exactly-once")
    until(words.read, "words are counted")
    words.send()
    broker.kill()
    broker.start()
    words.flush()
    until(words.are_counted_once, "words are counted after a kill of the broker")
    words.send()
    words.flush()
    until(words.read, "more words are counted")
    first.kill()
    second = word_count(processes, broker.kafka, "without-state", "exactly-once")
    until(words.are_counted_once, "words are counted after a kill of the application")
    assert second.is_running()
    assert broker.stop() == 0
