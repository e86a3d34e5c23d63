"""The consumer protocol (KIP-848) with librdkafka: members join, leave and die, and no record is lost or read twice."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
    Message,
)
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from conveyor.testing import Broker
from tests.clients.test_topic_admin import produce

PARTITIONS = 6
QUICK = {"groups.consumer_heartbeat_interval_ms": 200, "groups.consumer_session_timeout_ms": 3_000}
MOST_POLLS = 600


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker whose members are heard often, so that rebalances are quick."""
    with Broker(settings=QUICK) as running:
        yield running


@pytest.fixture
def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers})


def make_topic(admin: AdminClient, topic: str, partitions: int = PARTITIONS) -> None:
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(20)


MOST_COMMITS = 2000


class Reader:
    """A member of a group; it commits what it has read before it gives a partition up."""

    def __init__(self, broker: Broker, group: str, *topics: str, **config: str) -> None:
        self.values: list[bytes] = []
        self.consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "topic.metadata.refresh.interval.ms": 500,
            }
            | {name.replace("_", "."): value for name, value in config.items()}
        )
        self.consumer.subscribe(list(topics), on_revoke=lambda *_: self.commit())

    def poll(self) -> None:
        message: Message | None = self.consumer.poll(0.05)
        if message is not None and message.error() is None:
            value = message.value()
            assert value is not None
            self.values.append(value)

    def commit(self) -> None:
        places = [each for each in self.consumer.position(self.consumer.assignment()) if each.offset >= 0]
        for attempt in range(MOST_COMMITS if places else 0):
            try:
                self.consumer.commit(offsets=places, asynchronous=False)
            except KafkaException as failure:
                # The answer to a heartbeat, with the new epoch, is still on its way: the protocol says to commit again.
                if failure.args[0].code() != KafkaError.STALE_MEMBER_EPOCH or attempt == MOST_COMMITS - 1:
                    raise
            else:
                return

    @property
    def partitions(self) -> set[tuple[str, int]]:
        return {(each.topic, each.partition) for each in self.consumer.assignment()}


@contextmanager
def reading(broker: Broker, group: str, *topics: str, **config: str) -> Iterator[Reader]:
    reader = Reader(broker, group, *topics, **config)
    try:
        yield reader
    finally:
        reader.consumer.close()


def poll_until(condition: Callable[[], bool], *readers: Reader) -> None:
    for _ in range(MOST_POLLS):
        if condition():
            return
        for reader in readers:
            reader.poll()
    raise AssertionError(f"it did not come about: {[reader.partitions for reader in readers]}")


def shares(*readers: Reader) -> list[int]:
    return sorted(len(each.partitions) for each in readers)


def produce_everywhere(broker: Broker, topic: str, name: str, partitions: int = PARTITIONS) -> set[bytes]:
    """Ten records in each partition. Returns their values."""
    sent = set()
    for partition in range(partitions):
        values = [f"{name}-{partition}-{number}".encode() for number in range(10)]
        produce(broker, topic, values, partition)
        sent.update(values)
    return sent


def test_single_member_reads_everything_and_goes_on_where_it_was(
    broker: Broker, admin: AdminClient, topic: str
) -> None:
    make_topic(admin, topic)
    first = produce_everywhere(broker, topic, "first")
    with reading(broker, topic, topic) as reader:
        poll_until(lambda: len(reader.values) == len(first), reader)
        reader.commit()
    assert set(reader.values) == first
    second = produce_everywhere(broker, topic, "second")
    with reading(broker, topic, topic) as reader:
        poll_until(lambda: len(reader.values) == len(second), reader)
    assert set(reader.values) == second


def test_members_come_and_go_and_every_record_is_read_once(broker: Broker, admin: AdminClient, topic: str) -> None:
    make_topic(admin, topic)
    sent: set[bytes] = set()
    with ExitStack() as stack:
        readers = [stack.enter_context(reading(broker, topic, topic))]
        poll_until(lambda: shares(*readers) == [6], *readers)
        sent |= produce_everywhere(broker, topic, "alone")
        readers += [stack.enter_context(reading(broker, topic, topic)) for _ in range(2)]
        poll_until(lambda: shares(*readers) == [2, 2, 2], *readers)
        sent |= produce_everywhere(broker, topic, "three")
        poll_until(lambda: sum(len(each.values) for each in readers) == len(sent), *readers)
        readers[0].commit()
        readers[0].consumer.close()
        poll_until(lambda: shares(*readers[1:]) == [3, 3], *readers[1:])
        sent |= produce_everywhere(broker, topic, "two")
        poll_until(lambda: sum(len(each.values) for each in readers) == len(sent), *readers[1:])
    read = Counter(value for each in readers for value in each.values)
    assert read == Counter(sent)


def test_pattern_takes_in_topics_that_come_later(broker: Broker, admin: AdminClient, topic: str) -> None:
    make_topic(admin, f"{topic}-one", 1)
    with reading(broker, topic, f"^{topic}-.*") as reader:
        poll_until(lambda: reader.partitions == {(f"{topic}-one", 0)}, reader)
        make_topic(admin, f"{topic}-two", 2)
        poll_until(lambda: len(reader.partitions) == 3, reader)
        admin.create_partitions([NewPartitions(f"{topic}-one", 2)])[f"{topic}-one"].result(20)
        poll_until(lambda: len(reader.partitions) == 4, reader)
        admin.delete_topics([f"{topic}-two"])[f"{topic}-two"].result(20)
        poll_until(lambda: reader.partitions == {(f"{topic}-one", 0), (f"{topic}-one", 1)}, reader)


def test_static_member_comes_back_to_its_partitions(broker: Broker, admin: AdminClient, topic: str) -> None:
    make_topic(admin, topic)
    with reading(broker, topic, topic) as other:
        with reading(broker, topic, topic, group_instance_id="one") as static:
            poll_until(lambda: shares(static, other) == [3, 3], static, other)
            kept = static.partitions
        with reading(broker, topic, topic, group_instance_id="one") as static:
            poll_until(lambda: len(static.partitions) == 3, static, other)
            assert static.partitions == kept
            assert len(other.partitions) == 3


def test_range_assignor_gives_neighbours(broker: Broker, admin: AdminClient, topic: str) -> None:
    make_topic(admin, topic)
    with (
        reading(broker, topic, topic, group_remote_assignor="range") as one,
        reading(broker, topic, topic, group_remote_assignor="range") as two,
    ):
        poll_until(lambda: shares(one, two) == [3, 3], one, two)
        numbers = sorted(sorted(number for _, number in each.partitions) for each in (one, two))
        assert numbers == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_group_is_moved_over_and_back_while_it_reads(
    broker: Broker, admin: AdminClient, topic: str, strategy: str
) -> None:
    make_topic(admin, topic)
    classic = {
        "group_protocol": "classic",
        "partition_assignment_strategy": strategy,
        "session_timeout_ms": "6000",
        "heartbeat_interval_ms": "200",
    }
    sent: set[bytes] = set()
    readers: list[Reader] = []
    living: list[Reader] = []

    def rest(*expected: int) -> None:
        """Everybody has its share, and what is sent now is read by somebody."""
        poll_until(lambda: shares(*living) == list(expected), *living)
        sent.update(produce_everywhere(broker, topic, f"{len(readers)}-{len(living)}"))
        poll_until(lambda: {value for each in readers for value in each.values} == sent, *living)

    def start(**config: str) -> None:
        readers.append(Reader(broker, topic, topic, **config))
        living.append(readers[-1])

    def stop() -> None:
        leaving = living.pop(0)
        leaving.commit()
        leaving.consumer.close()

    start(**classic)
    start(**classic)
    rest(3, 3)
    start()
    rest(2, 2, 2)
    stop()
    rest(3, 3)
    stop()
    rest(6)
    start(**classic)
    rest(3, 3)
    stop()
    rest(6)
    types = {each.group_id: each.type for each in admin.list_consumer_groups().result(20).valid}
    assert types[topic] is ConsumerGroupType.CLASSIC
    stop()
    read = [value for each in readers for value in each.values]
    assert set(read) == sent


def test_members_go_on_when_the_broker_comes_back(topic: str) -> None:
    with Broker(settings=QUICK) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        make_topic(admin, topic)
        sent = produce_everywhere(broker, topic, "before")
        with reading(broker, topic, topic) as one, reading(broker, topic, topic) as two:
            poll_until(lambda: shares(one, two) == [3, 3], one, two)
            kept = one.partitions
            broker.stop()
            broker.start()
            sent |= produce_everywhere(broker, topic, "after")
            poll_until(lambda: set(one.values + two.values) == sent, one, two)
            assert one.partitions == kept


def test_groups_are_listed_before_anybody_has_asked_for_them(topic: str) -> None:
    with Broker(settings=QUICK) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        make_topic(admin, topic)
        for number in range(3):
            with reading(broker, f"{topic}-{number}", topic) as reader:
                poll_until(lambda reader=reader: shares(reader) == [6], reader)  # type: ignore[misc]
        broker.stop()
        broker.start()
        found = {each.group_id: each.state for each in admin.list_consumer_groups().result(20).valid}
        assert found == {f"{topic}-{number}": ConsumerGroupState.EMPTY for number in range(3)}


def test_group_is_administered(broker: Broker, admin: AdminClient, topic: str) -> None:
    make_topic(admin, topic)
    produce(broker, topic, [b"one"])
    with reading(broker, topic, topic, client_id="reader") as reader:
        poll_until(lambda: len(reader.values) == 1 and shares(reader) == [6], reader)
        reader.commit()
        found = admin.list_consumer_groups(types={ConsumerGroupType.CONSUMER}).result(20)
        assert topic in {each.group_id for each in found.valid}
        described = admin.describe_consumer_groups([topic])[topic].result(20)
        assert (described.state, described.type) == (ConsumerGroupState.STABLE, ConsumerGroupType.CONSUMER)
        [member] = described.members
        assert member.client_id == "reader"
        assert len(member.assignment.topic_partitions) == len(member.target_assignment.topic_partitions) == PARTITIONS
        with pytest.raises(Exception, match=r"NON_EMPTY_GROUP|not empty"):
            admin.delete_consumer_groups([topic])[topic].result(20)
    asked = ConsumerGroupTopicPartitions(topic)
    offsets = admin.list_consumer_group_offsets([asked])[topic].result(20).topic_partitions
    assert {each.offset for each in offsets if each.partition == 0} == {1}
    admin.delete_consumer_groups([topic])[topic].result(20)
    assert topic not in {each.group_id for each in admin.list_consumer_groups().result(20).valid}
