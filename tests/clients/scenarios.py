"""What every client has to get right, whatever its language: played with its program, checked here."""

from base64 import b64decode, b64encode
from collections.abc import Iterable
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from conveyor.testing import Broker
from tests.clients.programs import Line, Program, Running
from tests.clients.records import BASE_TIME_MS, COUNT, PARTITIONS, Sent, number_of, sent
from tests.processes import BrokerProcess

GROUP_PARTITIONS = 6
HALF = 10_000
# Clients choose their timeouts in the classic protocol; in the other, the broker does.
QUICK_GROUPS = {"groups.consumer_session_timeout_ms": 6000, "groups.consumer_heartbeat_interval_ms": 300}

ADMIN_STEPS: list[Line] = [
    {"step": "create", "partitions": 2},
    {"step": "create again", "error": "TOPIC_ALREADY_EXISTS"},
    {"step": "configs", "retention.ms": "60000"},
    {"step": "alter", "retention.ms": "120000"},
    {"step": "alter badly", "error": "INVALID_CONFIG"},
    {"step": "grow", "partitions": 4},
    {"step": "delete records", "start": 4, "end": 10},
    {"step": "delete records beyond", "error": "OFFSET_OUT_OF_RANGE"},
    {"step": "delete", "listed": False},
]

GROUP_STEPS: list[Line] = [
    {"step": "list", "listed": True},
    {"step": "describe", "state": "Empty", "members": 0},
    {"step": "offsets", "offset": 5},
    {"step": "alter offsets", "offset": 3},
    {"step": "delete offsets", "left": 0},
    {"step": "delete", "listed": False},
    {"step": "delete again", "error": "GROUP_ID_NOT_FOUND"},
]


def make_topic(bootstrap: str, topic: str, partitions: int = PARTITIONS) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(20)


def to_line(record: Sent) -> Line:
    def text(data: bytes | None) -> str | None:
        return None if data is None else b64encode(data).decode()

    headers = [{"name": name, "value": text(value)} for name, value in record.headers]
    return {
        "key": text(record.key), "value": text(record.value), "headers": headers, "timestamp": record.timestamp_ms
    }  # fmt: skip


def from_line(line: Line) -> Sent:
    value = b64decode(line["value"])
    headers = tuple((each["name"], b64decode(each["value"])) for each in line["headers"])
    key = None if line["key"] is None else b64decode(line["key"])
    return Sent(number_of(value), key, value, headers, line["timestamp"])


def lines_of(numbers: Iterable[int]) -> list[Line]:
    return [to_line(sent(number)) for number in numbers]


def check_records(program: Program, broker: Broker, topic: str, codecs: tuple[str, ...], count: int = COUNT) -> None:
    """Records sent with each codec come back as they were sent."""
    make_topic(broker.bootstrap_servers, topic)
    share = count // len(codecs)
    for place, codec in enumerate(codecs):
        given = lines_of(range(place * share, (place + 1) * share))
        program.run("produce", broker.bootstrap_servers, topic, codec, given=given)
    read = program.run("consume", broker.bootstrap_servers, topic, topic, share * len(codecs))
    found = sorted(map(from_line, read), key=lambda each: each.number)
    assert found == [sent(number) for number in range(share * len(codecs))]
    partitions = {each: [line["offset"] for line in read if line["partition"] == each] for each in range(PARTITIONS)}
    assert all(offsets == list(range(len(offsets))) for offsets in partitions.values())


def check_kill(program: Program, topic: str, folder: Path) -> None:
    """An idempotent producer goes on over the death of the broker: each record is kept, and none twice."""
    broker = BrokerProcess(folder / "data").start()
    make_topic(broker.kafka, topic)
    producer = program.start("produce", broker.kafka, topic, "none")
    producer.give(lines_of(range(2 * HALF)))
    producer.until(lambda line: line["acknowledged"] > 0)
    broker.kill()
    broker.start()
    producer.finish()
    read = program.run("consume", broker.kafka, topic, topic, 2 * HALF)
    assert sorted(map(from_line, read)) == [sent(number) for number in range(2 * HALF)]
    ends = {each["partition"]: each["offset"] + 1 for each in sorted(read, key=lambda line: int(line["offset"]))}
    assert sum(ends.values()) == 2 * HALF
    assert broker.stop() == 0


def check_seek(program: Program, broker: Broker, topic: str) -> None:
    """A time leads to the first record that is not older."""
    make_topic(broker.bootstrap_servers, topic, 1)
    program.run("produce", broker.bootstrap_servers, topic, "none", given=lines_of(range(0, 1000, 10)))
    wanted = {0: 0, BASE_TIME_MS + 500: 50, BASE_TIME_MS + 501: 51, BASE_TIME_MS + 990: 99}
    found = program.run("seek", broker.bootstrap_servers, topic, *wanted)
    assert [line["offset"] for line in found] == list(wanted.values())
    assert [from_line(line) for line in found] == [sent(offset * 10) for offset in wanted.values()]


def check_admin(program: Program, broker: Broker, topic: str, without: tuple[str, ...] = ()) -> None:
    """An administrator's steps have Kafka's outcomes; without: the steps that a client does not know."""
    steps = program.run("admin", broker.bootstrap_servers, topic)
    assert steps == [each for each in ADMIN_STEPS if each["step"] not in without]


def check_group_admin(program: Program, broker: Broker, topic: str, without: tuple[str, ...] = ()) -> None:
    """A group without members is listed, described, moved and removed."""
    make_topic(broker.bootstrap_servers, topic, 1)
    program.run("produce", broker.bootstrap_servers, topic, "none", given=lines_of(range(5)))
    program.run("consume", broker.bootstrap_servers, topic, f"{topic}-readers", 5)
    steps = program.run("groups", broker.bootstrap_servers, topic, f"{topic}-readers")
    assert steps == [each for each in GROUP_STEPS if each["step"] not in without]


class Group:
    """Members of one group, each a process."""

    def __init__(self, program: Program, broker: Broker, topic: str, protocol: str) -> None:
        self._program = program
        self._arguments = ("member", broker.bootstrap_servers, topic, topic, protocol)

    def join(self) -> Running:
        return self._program.start(*self._arguments)

    def settle(self, *members: Running) -> None:
        """Wait until the members share all partitions evenly."""
        share = GROUP_PARTITIONS // len(members)
        while True:
            for each in members:
                while len(assignment(each)) != share:
                    each.until(is_assignment)
            if set().union(*map(assignment, members)) == set(range(GROUP_PARTITIONS)):
                return
            members[0].until(is_assignment)


def is_assignment(line: Line) -> bool:
    return "assigned" in line


def assignment(member: Running) -> list[int]:
    """What a member has last said that it is assigned."""
    return next((line["assigned"] for line in reversed(member.seen) if is_assignment(line)), [])


def numbers_read(member: Running) -> list[int]:
    return [from_line(line).number for line in member.seen if "value" in line]


def check_rebalance(program: Program, topic: str, protocol: str = "classic") -> None:
    """Members join, leave and die while records come: each partition has a reader, and each record is read."""
    with Broker(settings=QUICK_GROUPS) as broker:
        play_rebalance(program, broker, topic, protocol)


def play_rebalance(program: Program, broker: Broker, topic: str, protocol: str) -> None:
    make_topic(broker.bootstrap_servers, topic, GROUP_PARTITIONS)
    group = Group(program, broker, topic, protocol)
    produced = 0

    def produce() -> None:
        nonlocal produced
        given = lines_of(range(produced, produced + 600))
        program.run("produce", broker.bootstrap_servers, topic, "none", given=given)
        produced += 600

    first = group.join()
    group.settle(first)
    produce()
    second = group.join()
    group.settle(first, second)
    assert group_type(broker, topic) == protocol
    produce()
    third = group.join()
    group.settle(first, second, third)
    produce()
    second.finish()
    group.settle(first, third)
    produce()
    third.kill()
    group.settle(first)
    produce()
    missing = set(range(produced)).difference(*map(numbers_read, (first, second, third)))
    while missing:
        missing.discard(from_line(first.until(lambda line: "value" in line)).number)
    first.finish()
    assert committed(broker, topic) == produced


def group_type(broker: Broker, group: str) -> str:
    """Which protocol a group speaks; a client may fall back from one to the other and say nothing."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    listed = admin.list_consumer_groups(request_timeout=20).result().valid
    return next(str(each.type.name).lower() for each in listed if each.group_id == group)


def committed(broker: Broker, topic: str) -> int:
    """The committed offsets of the group that is named as the topic, added up."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": topic})
    places = [TopicPartition(topic, each) for each in range(GROUP_PARTITIONS)]
    offsets = [each.offset for each in consumer.committed(places, 20)]
    consumer.close()
    return sum(offsets)
