"""Kafka Streams: its released word count, unchanged, with the internal topics, offsets and state that it keeps."""

import itertools
import random
import subprocess
from collections import ChainMap, Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, ConsumerGroupState, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from conveyor.testing import Broker
from tests.clients.applications import Killable, bounds_of, committed_of, write_properties
from tests.clients.python.security import librdkafka
from tests.clients.scenarios import make_topic
from tests.clients.toolchains import java_command, streams_jars
from tests.processes import BrokerProcess

GROUP = "streams-wordcount"
INPUT = "streams-plaintext-input"
OUTPUT = "streams-wordcount-output"
STORE = f"{GROUP}-KSTREAM-AGGREGATE-STATE-STORE-0000000003"
REPARTITION = f"{STORE}-repartition"
CHANGELOG = f"{STORE}-changelog"
PARTITIONS = 2
LINES = 1000
VOCABULARY = [f"word{number}" for number in range(20)]
# Streams commits, and purges what it has read of its repartition topic, every 30 s if nothing else is said.
# What starts with `topic.` goes to the topics that it makes.
SETTINGS = {
    "commit.interval.ms": "100",
    "repartition.purge.interval.ms": "0",
    "topic.segment.bytes": "20000",
    "topic.min.cleanable.dirty.ratio": "0.01",
}


class Words:
    """What went into the word count, and what has come out."""

    def __init__(self, bootstrap: str) -> None:
        connection = librdkafka(bootstrap) | {"log_level": 0}
        settings = connection | {"group.id": GROUP, "enable.auto.commit": False}
        self._admin = AdminClient(connection)
        self._producer = Producer(connection | {"enable.idempotence": True})
        self._consumer = Consumer(settings | {"enable.partition.eof": True})
        self._counted = Consumer(settings)
        for topic in (INPUT, OUTPUT):
            make_topic(bootstrap, topic, PARTITIONS)
        self._counted.assign([TopicPartition(each.topic, each.partition, 0) for each in places(OUTPUT)])
        self._random = random.Random(1)
        self._sent: Counter[str] = Counter()
        self._counts: dict[str, list[int]] = {}

    def send(self) -> None:
        for number in range(LINES):
            words = self._random.choices(VOCABULARY, k=5)
            self._producer.produce(INPUT, " ".join(words).title(), partition=number % PARTITIONS)
            self._sent.update(words)
        self._producer.flush()

    def check_counts(self) -> None:
        """Wait until all is counted and committed: each word was counted once, one up each time."""
        self.check_each_count()
        for topic in (INPUT, REPARTITION):
            while committed_of(self._consumer, places(topic)) != self.ends(topic):
                pass
        assert sum(self.ends(OUTPUT)) == self._sent.total()

    def check_each_count(self) -> None:
        """Wait until all is counted: each word was counted once, one up each time."""
        for _ in range(sum(map(len, self._counts.values())), self._sent.total()):
            message = self._counted.poll(60)
            assert message is not None
            assert message.error() is None
            self._counts.setdefault(message.key().decode(), []).append(int.from_bytes(message.value()))
        assert self._counts == {word: list(range(1, count + 1)) for word, count in self._sent.items()}

    def starts(self, topic: str) -> list[int]:
        return [bounds_of(self._consumer, each)[0] for each in places(topic)]

    def ends(self, topic: str) -> list[int]:
        return [bounds_of(self._consumer, each)[1] for each in places(topic)]

    def changelog_count(self) -> int:
        """How many records compaction has left in the changelog."""
        return sum(map(self._count, places(CHANGELOG)))

    def _count(self, place: TopicPartition) -> int:
        self._consumer.assign([TopicPartition(place.topic, place.partition, 0)])
        for count in itertools.count():
            message = self._consumer.poll(20)
            assert message is not None
            if message.error() is not None:
                return count
        raise AssertionError

    def config(self, topic: str, name: str) -> str:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        return str(self._admin.describe_configs([resource])[resource].result(20)[name].value)

    def members_with_work(self) -> int:
        """How many members the group has once it is stable and each of them has partitions; 0 while it is not so."""
        group = self._admin.describe_consumer_groups([GROUP])[GROUP].result(20)
        shares = [each.assignment.topic_partitions for each in group.members]
        return len(shares) if group.state is ConsumerGroupState.STABLE and all(shares) else 0


def places(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, each) for each in range(PARTITIONS)]


@contextmanager
def word_count(bootstrap: str, folder: Path, *client: Mapping[str, str], **settings: str) -> Iterator[None]:
    """The application, with its state in a folder of its own; it ends by SIGKILL. client: how it connects."""
    folder.mkdir()
    given = dict(ChainMap(*map(dict, client), {"bootstrap.servers": bootstrap, "state.dir": str(folder / "state")}))
    given |= SETTINGS
    given |= {name.replace("_", "."): value for name, value in settings.items()}
    file = write_properties(folder / "streams.properties", given)
    main = "org.apache.kafka.streams.examples.wordcount.WordCountDemo"
    process = subprocess.Popen([*java_command(main, streams_jars() / "*"), str(file)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def test_counts_go_on_from_the_compacted_changelog_after_a_kill(tmp_path: Path) -> None:
    with Broker(settings={"broker.compaction_check_ms": 20}) as broker:
        words = Words(broker.bootstrap_servers)
        # A member with an identity of its own takes its place again, without waiting for its session to end.
        with word_count(broker.bootstrap_servers, tmp_path / "first", group_instance_id="one"):
            words.send()
            words.check_counts()
        while words.changelog_count() > sum(words.ends(CHANGELOG)) // 2:
            pass
        words.send()
        with word_count(broker.bootstrap_servers, tmp_path / "without-state", group_instance_id="one"):
            words.check_counts()


def test_internal_topics_are_what_streams_asks_for(tmp_path: Path) -> None:
    with Broker() as broker:
        words = Words(broker.bootstrap_servers)
        words.send()
        with word_count(broker.bootstrap_servers, tmp_path / "only"):
            words.check_counts()
            assert words.config(CHANGELOG, "cleanup.policy") == "compact"
            assert words.config(REPARTITION, "cleanup.policy") == "delete"
            assert words.config(REPARTITION, "retention.ms") == "-1"
            assert words.config(REPARTITION, "segment.bytes") == "20000"
            # It deletes what it has read: nothing else would, from a topic that is kept forever.
            while words.starts(REPARTITION) == [0] * PARTITIONS:
                pass


def test_one_takes_over_the_words_of_another(tmp_path: Path) -> None:
    quick = {"session_timeout_ms": "6000", "heartbeat_interval_ms": "500"}
    with Broker() as broker:
        words = Words(broker.bootstrap_servers)
        words.send()
        with word_count(broker.bootstrap_servers, tmp_path / "stays", **quick):
            with word_count(broker.bootstrap_servers, tmp_path / "dies", **quick):
                while words.members_with_work() != 2:
                    pass
                words.send()
                words.check_counts()
            words.send()
            words.check_counts()


def check_counts_over_a_kill(broker: Killable, folder: Path, *client: Mapping[str, str]) -> None:
    words = Words(broker.bootstrap_servers)
    with word_count(broker.bootstrap_servers, folder / "only", *client):
        words.send()
        words.check_counts()
        words.send()
        broker.kill()
        broker.start()
        words.send()
        words.check_counts()


def test_counts_go_on_when_the_broker_was_killed(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data").start()
    check_counts_over_a_kill(broker, tmp_path)
    assert broker.stop() == 0
