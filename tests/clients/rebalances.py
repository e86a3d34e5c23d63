"""Members of a group join, leave and die while records come: each partition has a reader, and each record is read."""

from base64 import b64decode
from typing import Protocol, Self

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.clients.programs import Line, Program, Running
from tests.clients.python.security import librdkafka
from tests.clients.records import number_of
from tests.clients.scenarios import Bootstrap, commit_start, lines_of, make_topic

PARTITIONS = 6
STEP = 1000
SESSION_MS = 3000
# Clients choose their timeouts in the classic protocol (theirs are 3 s); in the other, the broker does.
QUICK_GROUPS = {
    "groups.min_session_timeout_ms": 1000,
    "groups.consumer_session_timeout_ms": 3000,
    "groups.consumer_heartbeat_interval_ms": 300,
}


class Members(Protocol):
    """Who shares the partitions of a topic, each a process; the group is named as the topic, which is there."""

    def join(self) -> Running: ...

    def leave(self, member: Running) -> None: ...

    def die(self, member: Running) -> None: ...

    def produce(self, numbers: range) -> None:
        """Returns when all are acknowledged."""


class Group:
    """The members of a group, which is named as its topic; each is a process. And the producer of the topic, which is
    of the same program unless another is given.
    """

    def __init__(
        self, program: Program, broker: Bootstrap, topic: str, protocol: str, producer: Program | None = None
    ) -> None:
        make_topic(broker.bootstrap_servers, topic, PARTITIONS)
        commit_start(broker.bootstrap_servers, topic, PARTITIONS)
        self._program = program
        self._arguments = ("member", broker.bootstrap_servers, topic, topic, protocol, SESSION_MS)
        self._producer = (producer or program).start("produce", broker.bootstrap_servers, topic, "none")
        self._started = [self._producer]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let none of them live on, whatever has happened."""
        for each in self._started:
            each.kill()

    def join(self) -> Running:
        member = self._program.start(*self._arguments)
        self._started.append(member)
        return member

    def leave(self, member: Running) -> None:
        member.finish()

    def die(self, member: Running) -> None:
        member.kill()

    def produce(self, numbers: range) -> None:
        """Returns when all are acknowledged."""
        self._producer.give(lines_of(numbers))
        self._producer.until(lambda line: bool(line.get("acknowledged") == numbers.stop))


def check_rebalance(group: Members, broker: Bootstrap, topic: str, kind: str) -> None:
    """kind: which protocol the group has to speak, as the broker sees it."""
    produced = 0

    def produce() -> None:
        nonlocal produced
        group.produce(range(produced, produced + STEP))
        produced += STEP

    first = group.join()
    settle(first)
    produce()
    second = group.join()
    settle(first, second)
    assert group_type(broker, topic) == kind
    produce()
    third = group.join()
    settle(first, second, third)
    produce()
    group.leave(second)
    settle(first, third)
    produce()
    group.die(third)
    settle(first)
    produce()
    missing = set(range(produced)).difference(*map(numbers_read, (first, second, third)))
    while missing:
        missing.discard(number_read(first.until(is_record)))
    group.leave(first)
    assert committed(broker, topic) == produced


def settle(*members: Running) -> None:
    """Wait until the members share all partitions evenly."""
    share = PARTITIONS // len(members)
    while True:
        for each in members:
            while len(assignment(each)) != share:
                each.until(is_assignment)
        if set().union(*map(assignment, members)) == set(range(PARTITIONS)):
            return
        members[0].until(is_assignment)


def is_assignment(line: Line) -> bool:
    return "assigned" in line


def assignment(member: Running) -> list[int]:
    """What a member has last said that it is assigned."""
    return next((line["assigned"] for line in reversed(member.seen) if is_assignment(line)), [])


def is_record(line: Line) -> bool:
    return "value" in line


def number_read(line: Line) -> int:
    return number_of(b64decode(line["value"]))


def numbers_read(member: Running) -> list[int]:
    return [number_read(line) for line in member.seen if is_record(line)]


def group_type(broker: Bootstrap, group: str) -> str:
    """Which protocol a group speaks; a client may fall back from one to the other and say nothing."""
    admin = AdminClient(librdkafka(broker.bootstrap_servers))
    listed = admin.list_consumer_groups(request_timeout=20).result().valid
    return next(str(each.type.name).lower() for each in listed if each.group_id == group)


def committed(broker: Bootstrap, topic: str) -> int:
    """The committed offsets of the group that is named as the topic, added up."""
    consumer = Consumer(librdkafka(broker.bootstrap_servers) | {"group.id": topic})
    places = [TopicPartition(topic, each) for each in range(PARTITIONS)]
    offsets = [each.offset for each in consumer.committed(places, 20)]
    consumer.close()
    return sum(offsets)
