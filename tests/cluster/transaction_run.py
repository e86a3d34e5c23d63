"""Runs transactional workers over kills and freezes of workers and brokers, then checks the history of all of them.

python -m tests.cluster.transaction_run --seconds 300 --seed 7 --brokers 3 --report report.md

Eight workers read a topic and write two results of each record to two other topics. Five are one consumer group, which
commits positions and results in one transaction; three lease the records over REST, and acknowledge them in one request
with their results, in other topics. While a worker is frozen, another process takes over its transactional
id, or its messages. In the end each record has exactly one result in each topic, and the history has no anomaly.
"""

import argparse
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from random import Random
from typing import Any, Protocol

import msgspec
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from simulation.histories.history import History, HistoryPlace, PollResult
from simulation.histories.history_checker import check_history
from tests.cluster.broker_cluster import BrokerCluster
from tests.cluster.ledgers import Violation
from tests.cluster.queue_worker import QUEUE_LEDGER, QUEUE_RESULTS, SUBSCRIPTION
from tests.cluster.transaction_history import read_process
from tests.cluster.transactional_worker import CLIENT_CONFIG, GROUP, LEDGER, PARTITIONS, RESULTS, SOURCE
from tests.cluster.worker_processes import Team, WorkerProcesses
from tests.processes import BrokerProcess

GROUP_TEAM = Team("group", "tests.cluster.transactional_worker", (RESULTS, LEDGER), 5)
QUEUE_TEAM = Team("queue", "tests.cluster.queue_worker", (QUEUE_RESULTS, QUEUE_LEDGER), 3)
TEAMS = (GROUP_TEAM, QUEUE_TEAM)
_RECORDS_PER_S = 200
_MOST_WAITING = 2_000
_PAUSE_S = (0.2, 1.5)
_SETTLE_S = 240
_READ = tuple(topic for team in TEAMS for topic in team.topics)
_FAULTS = ("kill worker",) * 4 + ("freeze worker",) * 4 + ("kill broker",) * 2 + ("freeze broker",) * 2


class Node(Protocol):
    """A broker that can be killed, started, paused and resumed."""

    def kill(self) -> None: ...

    def start(self) -> object: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class _LoneNode:
    """The only broker, as a node."""

    def __init__(self, process: BrokerProcess) -> None:
        self.kill, self.start = process.kill, process.start
        self._process = process

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)


@contextmanager
def running_brokers(directory: Path, count: int) -> Iterator[tuple[str, str, Sequence[Node]]]:
    """Run one broker, or several with a ZooKeeper. Yields their Kafka and HTTP addresses, and the brokers."""
    if count > 1:
        cluster = BrokerCluster(directory, count)
        try:
            cluster.start()
            yield cluster.bootstrap, ",".join(node.http for node in cluster.nodes), cluster.nodes
        finally:
            cluster.end()
        return
    process = BrokerProcess(directory / "data", "--set", "topics.segment_bytes=300000")
    try:
        process.start()
        yield process.kafka, process.http, [_LoneNode(process)]
    finally:
        process.end()


class _Feeder:
    """Writes the records to process, each once, to the partitions in turn, and waits while the workers are far behind.

    processed_count: returns how many have a result.
    """

    def __init__(self, bootstrap: str, processed_count: Callable[[], int]) -> None:
        self.sources: set[tuple[int, int]] = set()
        self.failures: list[str] = []
        self._is_over = threading.Event()
        self._processed_count = processed_count
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, **CLIENT_CONFIG}
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._is_over.set()
        self._thread.join()
        if self._producer.flush(60):
            self.failures.append("records were not acknowledged after the faults")

    def _run(self) -> None:
        number = 0
        while not self._is_over.wait(0.05):
            for _ in range(_RECORDS_PER_S // 20):
                if number - self._processed_count() < _MOST_WAITING:
                    value = b"in:%d" % number
                    self._producer.produce(SOURCE, value, partition=number % PARTITIONS, on_delivery=self._delivered)
                    number += 1
            self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self.failures.append(str(error))
        elif message.offset() >= 0:
            self.sources.add((message.partition(), message.offset()))


class _CommittedReader:
    """Reads the results as they come, and notes every poll."""

    def __init__(self, bootstrap: str) -> None:
        self.polls: list[PollResult] = []
        self.seen_count = 0
        self._is_over = False
        self._consumer = _consumer(bootstrap)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._is_over = True
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over:
            by_place: dict[HistoryPlace, list[tuple[int, str]]] = {}
            for message in self._consumer.consume(500, 0.1):
                if message.error() is None:
                    place = HistoryPlace(message.topic(), message.partition())
                    by_place.setdefault(place, []).append((message.offset(), message.value().decode()))
            for place, records in by_place.items():
                self.seen_count += len(records)
                self.polls.append(PollResult(reader="reader", place=place, records=records, at=time.monotonic()))
        self._consumer.close()


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has done: numbers by name."""

    seconds: float
    seed: int
    brokers: int
    faults: dict[str, int]
    counts: dict[str, int]

    def text(self) -> str:
        """Return the numbers as two Markdown tables."""
        lines = [f"{self.seconds:.0f} seconds, {self.brokers} broker(s), seed {self.seed}.", ""]
        lines += ["| fault | times |", "|---|---|", *(f"| {name} | {count} |" for name, count in self.faults.items())]
        lines += ["", "| observed | number |", "|---|---|"]
        return "\n".join([*lines, *(f"| {name} | {count:,} |" for name, count in self.counts.items())]) + "\n"


def run(directory: Path, seconds: float, seed: int, broker_count: int, told: Callable[[str], None]) -> RunReport:
    """Raises Violation."""
    faults = Counter[str]()
    with running_brokers(directory, broker_count) as (bootstrap, http, nodes):
        _create_topics(bootstrap, http, broker_count)
        addresses = {GROUP_TEAM.name: bootstrap, QUEUE_TEAM.name: http}
        workers, reader = WorkerProcesses(directory, TEAMS, addresses), _CommittedReader(bootstrap)
        feeder = _Feeder(bootstrap, lambda: reader.seen_count // len(_READ))
        began = time.monotonic()
        try:
            for number in range(workers.count):
                workers.start(number)
            for name in _play(Random(seed), nodes, workers, began + seconds):
                told(f"{time.monotonic() - began:6.1f} s  {name}")
                faults[name] += 1
            feeder.end()
            _wait_for_results(feeder, reader, workers)
            told(f"{time.monotonic() - began:6.1f} s  all records are processed")
        finally:
            workers.end()
        reader.end()
        _check_stable(bootstrap)
        contents = _read_to_the_end(bootstrap)
    histories = {team: _history(team, workers, reader, contents) for team in TEAMS}
    _check(histories, feeder, workers)
    counts: dict[str, int] = {}
    for team, history in histories.items():
        outcomes = Counter(transaction.outcome.value for transaction in history.transactions)
        counts |= {f"transactions of the {team.name} {outcome}": count for outcome, count in sorted(outcomes.items())}
        counts[f"records delivered to the {team.name}"] = len(history.deliveries)
    counts |= {
        "records to process": len(feeder.sources),
        "starts of workers": workers.starts_count,
        "workers that were fenced": workers.fenced_count,
        "workers whose consumer has gone back by itself": workers.rewound_count,
        "polls of the reader": len(reader.polls),
    }
    return RunReport(
        seconds=seconds, seed=seed, brokers=broker_count, faults=dict(sorted(faults.items())), counts=counts
    )


def _play(chance: Random, nodes: Sequence[Node], workers: WorkerProcesses, ends: float) -> Iterator[str]:
    """Break and heal until the time is over. Yields the names of the faults. Everything runs at the end."""
    thaws: list[tuple[float, Callable[[], None]]] = []
    while time.monotonic() < ends:
        time.sleep(chance.uniform(*_PAUSE_S))
        name, number = chance.choice(_FAULTS), chance.randrange(workers.count)
        yield name
        if name == "kill worker":
            workers.kill(number)
        elif name == "freeze worker":
            thaws.append((time.monotonic() + chance.uniform(0.5, 10), workers.freeze(number)))
        else:
            _break(chance, chance.choice(nodes), kills=name == "kill broker")
        for due, thaw in [item for item in thaws if item[0] < time.monotonic()]:
            thaw()
            thaws.remove((due, thaw))
        workers.restart_ended()
    for _, thaw in thaws:
        thaw()


def _break(chance: Random, node: Node, *, kills: bool) -> None:
    if kills:
        node.kill()
        time.sleep(chance.uniform(0, 0.5))
        node.start()
    else:
        node.pause()
        time.sleep(chance.uniform(0.2, 3))
        node.resume()


def _create_topics(bootstrap: str, http: str, broker_count: int) -> None:
    """Create the topics, and what is to be read of them: the first positions of the group, and the subscription."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [NewTopic(name, PARTITIONS, broker_count) for name in (SOURCE, *_READ)]
    for created in admin.create_topics(topics, operation_timeout=30).values():
        created.result(60)
    starts = [TopicPartition(SOURCE, number, 0) for number in range(PARTITIONS)]
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, **CLIENT_CONFIG})
    consumer.commit(offsets=starts, asynchronous=False)
    consumer.close()
    with closing(HTTPConnection(http.partition(",")[0], timeout=60)) as connection:
        body = msgspec.json.encode({"name": SUBSCRIPTION, "start": "earliest", "max_deliveries": 0})
        connection.request("POST", f"/topics/{SOURCE}/subscriptions", body)
        assert connection.getresponse().status == 201


def _consumer(bootstrap: str, isolation_level: str = "read_committed") -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "nobody",
            "isolation.level": isolation_level,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            **CLIENT_CONFIG,
        }
    )
    places = [TopicPartition(topic, number, OFFSET_BEGINNING) for topic in _READ for number in range(PARTITIONS)]
    consumer.assign(places)
    return consumer


def _wait_for_results(feeder: _Feeder, reader: _CommittedReader, workers: WorkerProcesses) -> None:
    ends = time.monotonic() + _SETTLE_S
    while reader.seen_count < len(_READ) * len(feeder.sources):
        if time.monotonic() > ends:
            raise Violation(f"{reader.seen_count} results of {len(feeder.sources)} records after {_SETTLE_S} s")
        workers.restart_ended()
        time.sleep(0.1)


def _check_stable(bootstrap: str) -> None:
    """Wait until no transaction is open: the last stable offsets are the ends of the logs. Raises Violation."""
    ends = time.monotonic() + _SETTLE_S
    readers = [_consumer(bootstrap, level) for level in ("read_committed", "read_uncommitted")]
    while True:
        stable, last = ([*_ends(reader)] for reader in readers)
        if stable == last:
            break
        if time.monotonic() > ends:
            raise Violation(f"the last stable offsets stay at {stable}, the ends are {last}")
        time.sleep(0.2)
    for reader in readers:
        reader.close()


def _ends(reader: Consumer) -> Iterator[int]:
    for place in reader.assignment():
        while True:
            with suppress(KafkaException):
                yield reader.get_watermark_offsets(TopicPartition(place.topic, place.partition), 10)[1]
                break


def _history(
    team: Team,
    workers: WorkerProcesses,
    reader: _CommittedReader,
    contents: dict[HistoryPlace, Sequence[tuple[int, str]]],
) -> History:
    parts = [read_process(process, path) for process, path in workers.paths[team.name].items()]
    return History(
        transactions=[transaction for part in parts for transaction in part.transactions],
        initializations=[initialization for part in parts for initialization in part.initializations],
        deliveries=[delivery for part in parts for delivery in part.deliveries],
        polls=[poll for poll in reader.polls if poll.place.topic in team.topics],
        contents={place: records for place, records in contents.items() if place.topic in team.topics},
    )


def _read_to_the_end(bootstrap: str) -> dict[HistoryPlace, Sequence[tuple[int, str]]]:
    consumer = _consumer(bootstrap)
    contents: dict[HistoryPlace, list[tuple[int, str]]] = {
        HistoryPlace(topic, number): [] for topic in _READ for number in range(PARTITIONS)
    }
    missing = set(contents)
    while missing:
        for message in consumer.consume(1_000, 1.0):
            place = HistoryPlace(message.topic() or "", message.partition() or 0)
            error, value, offset = message.error(), message.value(), message.offset()
            if error is None and value is not None and offset is not None:
                contents[place].append((offset, value.decode()))
            elif error is not None and error.code() == KafkaError._PARTITION_EOF:
                missing.discard(place)
    consumer.close()
    return {**contents}


def _check(histories: dict[Team, History], feeder: _Feeder, workers: WorkerProcesses) -> None:
    """Raises Violation."""
    violations = [*feeder.failures]
    for team, history in histories.items():
        for process, path in workers.paths[team.name].items():
            history_of_process = read_process(process, path)
            violations += [f"position lost: {reset}" for reset in history_of_process.resets]
            violations += [f"another answer: {reason}" for reason in history_of_process.contradictions]
        violations += [f"{team.name}: {anomaly.kind.name}: {anomaly.detail}" for anomaly in check_history(history)]
        for topic in team.topics:
            found = {
                tuple(int(number) for number in value.split(":")[-2:])
                for place, records in history.contents.items() if place.topic == topic
                for _, value in records
            }  # fmt: skip
            violations += [f"{source} has no result in {topic}" for source in sorted(feeder.sources - found)]
    if violations:
        raise Violation(f"{len(violations)} violations, such as:\n" + "\n".join(violations[:10]))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--brokers", type=int, default=1)
    parser.add_argument("--report", type=Path)
    parser.add_argument("--keep", type=Path, help="keep the data, the logs and the histories here")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        directory = options.keep or Path(temporary)
        directory.mkdir(exist_ok=True, parents=True)
        try:
            report = run(
                directory, options.seconds, options.seed, options.brokers, lambda line: print(line, flush=True)
            ).text()
        except Violation as violation:
            print(f"VIOLATION (seed {options.seed}): {violation}", flush=True)
            return 1
    print(report)
    if options.report:
        options.report.write_text(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
