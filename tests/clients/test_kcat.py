"""kcat, a command line program: it goes through what a client without code of its own can do.

It cannot set timestamps, be idempotent, or administer anything: the death of a broker and the changes of topics and
groups are left to the other clients.
"""

import re
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from conveyor.testing import Broker
from tests.clients.kcat import READ_ALL, connection, kcat, run
from tests.clients.programs import Line, Running
from tests.clients.rebalances import PARTITIONS, QUICK_GROUPS, assignment, check_rebalance, committed
from tests.clients.records import BASE_TIME_MS, CODECS, COUNT
from tests.clients.scenarios import COMPACTED, KEYS, QUICK_COMPACTION, ROUNDS, await_compaction, make_topic
from tests.clients.stored_codecs import check_stored_codecs
from tests.clients.throttling import CLIENT_ID, VALUE_BYTES, quota, still_broker
from tests.clients.throttling import COUNT as THROTTLED_COUNT
from tests.clients.toolchains import require


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def broker(data_dir: Path) -> Iterator[Broker]:
    require("kcat", "kcat")
    with Broker(data_dir, settings=QUICK_GROUPS | QUICK_COMPACTION) as running:
        yield running


def test_records_come_back_as_they_were_sent(broker: Broker, topic: str, data_dir: Path) -> None:
    share = COUNT // len(CODECS)
    for number, codec in enumerate(CODECS):
        lines = b"".join(b"key-%d:value-%d\n" % (each, each) for each in range(number * share, (number + 1) * share))
        kcat(broker, "-P", "-t", topic, "-K", ":", "-z", codec, "-H", "from=kcat", given=lines)
    read = kcat(broker, *READ_ALL, "-t", topic, "-f", "%k:%s:%h\n")
    expected = sorted(b"key-%d:value-%d:from=kcat" % (each, each) for each in range(COUNT))
    assert sorted(read.splitlines()) == expected
    # kcat's librdkafka is old: it compresses only if Produce is advertised from version 0 on.
    check_stored_codecs(data_dir, topic, CODECS, partitions=1)


def test_metadata_is_listed(broker: Broker, topic: str) -> None:
    kcat(broker, "-P", "-t", topic, given=b"x\n")
    assert f'topic "{topic}" with 1 partitions' in kcat(broker, "-L").decode()


def test_offsets_by_time(broker: Broker, topic: str) -> None:
    make_topic(broker.bootstrap_servers, topic, 1)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for offset in range(100):
        producer.produce(topic, b"%d" % offset, timestamp=BASE_TIME_MS + offset * 10)
    producer.flush()
    for time, offset in ((0, 0), (BASE_TIME_MS + 500, 50), (BASE_TIME_MS + 501, 51), (BASE_TIME_MS + 990, 99)):
        assert kcat(broker, "-Q", "-t", f"{topic}:0:{time}") == f"{topic} [0] offset {offset}\n".encode()
        read = kcat(broker, "-C", "-t", topic, "-o", f"s@{time}", "-e", "-q", "-f", "%o %s\n")
        assert read.splitlines() == [b"%d %d" % (each, each) for each in range(offset, 100)]


def test_what_compaction_has_left_is_read(broker: Broker, topic: str) -> None:
    make_topic(broker.bootstrap_servers, topic, 1, COMPACTED)
    keyed = ("-P", "-t", topic, "-K", ":", "-Z")
    sent_last = range(KEYS * (ROUNDS - 1), KEYS * ROUNDS)
    written = [b"" if each in sent_last and each % 3 == 0 else b"%0100d" % each for each in range(KEYS * ROUNDS)]
    lines = b"".join(b"%d:%s\n" % (number % KEYS, value) for number, value in enumerate(written))
    kcat(broker, *keyed, given=lines)
    for end in (b"end", b"very end"):
        kcat(broker, *keyed, given=end + b":" + b"x" * 15_000 + b"\n")
    await_compaction(broker, topic, KEYS + 2)
    read = kcat(broker, *READ_ALL, "-t", topic, "-f", "%o %k %S\n").splitlines()
    # The size of what is not there is -1.
    expected = [b"%d %d %d" % (each, each % KEYS, -1 if each % 3 == 0 else 100) for each in sent_last]
    assert read[:KEYS] == expected
    assert len(read) == KEYS + 2


def test_a_client_is_held_to_its_quota(topic: str) -> None:
    require("kcat", "kcat")
    name = ("-X", f"client.id={CLIENT_ID}")
    with still_broker() as broker:
        make_topic(broker.bootstrap_servers, topic, 1)
        with quota(broker, "producer_byte_rate"):
            done = run(broker, "-P", "-t", topic, *name, given=(b"x" * VALUE_BYTES + b"\n") * THROTTLED_COUNT)
            assert b"throttled request" in done.stderr
        with quota(broker, "consumer_byte_rate"):
            done = run(broker, "-C", "-o", "beginning", "-e", "-t", topic, *name)
            assert b"throttled request" in done.stderr
    assert done.stdout.count(b"\n") == THROTTLED_COUNT


class Group:
    """Members of a group, which is named as its topic."""

    def __init__(self, broker: Broker, topic: str, strategy: str) -> None:
        make_topic(broker.bootstrap_servers, topic, PARTITIONS)
        self._broker = broker
        self._topic = topic
        quick = ("session.timeout.ms=3000", "heartbeat.interval.ms=300", "auto.commit.interval.ms=100")
        settings = (*quick, "auto.offset.reset=earliest", f"partition.assignment.strategy={strategy}")
        # What it is assigned, kcat tells among its errors.
        self._command = ["sh", "-c", 'exec kcat "$@" 2>&1', "kcat", *connection(broker.bootstrap_servers), "-u"]
        self._command += [word for each in settings for word in ("-X", each)]
        self._command += ["-f", "%s\n", "-G", topic, topic]
        self._started: list[Running] = []

    def join(self) -> Running:
        self._started.append(Running(self._command, reading_lines()))
        return self._started[-1]

    def leave(self, member: Running) -> None:
        self._read_to_the_ends(member)
        member.terminate()

    def die(self, member: Running) -> None:
        """The member has committed by then. Otherwise records are read again, by one who may leave before that."""
        ends = self._read_to_the_ends(member)
        while committed(self._broker, self._topic) != sum(ends.values()):
            pass
        member.kill()

    def _read_to_the_ends(self, member: Running) -> dict[int, int]:
        """Wait until a member has printed all records of its partitions. Returns the ends of all partitions.

        kcat counts a record as read before it prints it, and prints none after a signal.
        """
        partitions = [word for partition in range(PARTITIONS) for word in ("-t", f"{self._topic}:{partition}:-1")]
        answer = kcat(self._broker, "-Q", *partitions).decode()
        ends = {int(partition): int(offset) for partition, offset in re.findall(r"\[(\d+)\] offset (\d+)", answer)}

        def is_at_the_ends() -> bool:
            reached = dict(line["end"] for line in member.seen if "end" in line)
            return all(reached.get(partition) == ends[partition] for partition in assignment(member))

        while not is_at_the_ends():
            member.until(lambda line: "end" in line)
        return ends

    def produce(self, numbers: range) -> None:
        kcat(self._broker, "-P", "-t", self._topic, given=b"".join(b"%d\n" % each for each in numbers))

    def end(self) -> None:
        for each in self._started:
            each.kill()


def reading_lines() -> Callable[[str], Line]:
    """Reads what one member prints: values, changes of its assignment, that a partition has no more, and other news."""
    assigned: set[int] = set()

    def line_of(text: str) -> Line:
        if not text.startswith("% "):
            return {"value": b64encode(text.strip().encode()).decode()}
        partitions = {int(each) for each in re.findall(r"\[(\d+)\]", text)}
        if at_end := re.search(r"Reached end .* at offset (\d+)", text):
            return {"end": (partitions.pop(), int(at_end.group(1)))}
        if " rebalanced" not in text:
            return {}
        if "revoke" in text:
            assigned.difference_update(partitions)
        else:
            assigned.update(partitions)
        return {"assigned": sorted(assigned)}

    return line_of


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_members_join_leave_and_die(broker: Broker, topic: str, strategy: str) -> None:
    group = Group(broker, topic, strategy)
    try:
        check_rebalance(group, broker, topic, "classic")
    finally:
        group.end()
