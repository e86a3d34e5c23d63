"""What is measured: one function per group of rows, on a server of whatever system it is given.

Where speed is measured, every server is warmed up first with the load that follows, until it spends no less CPU on it
than before, because Kafka's Java compiles what is used often; it then keeps running through all rounds. Time to ready
is cold, as it is met in life.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.embedded import start_embedded
from benchmarks.figures import Figure, Kind
from benchmarks.kafka.performance_tools import PerformanceTools
from benchmarks.kafka.release import Release
from benchmarks.partitions import produce_to_each
from benchmarks.requests import Answered, send_requests
from benchmarks.server import Server, System
from benchmarks.steady import receive_steadily, send_steadily
from benchmarks.streams import Consumed, consume, create_topic, produce
from benchmarks.transactions import RECORDS, commit_transactions
from benchmarks.workers import run_together, work

_PRODUCERS = 2
_CONNECTIONS = 16
_CHEAP_PRODUCERS = 4
_TRANSACTIONAL_PRODUCERS = (1, 4)
_BATCH = 1_000
_PARTITIONS = 2_000
_IDLE_S = 2.0
_SETTLING_S = 2
_WARM_UP_S = 4
_SHORT_WARM_UP_S = 0.5
"""Where much is written: the disk has to keep up afterwards."""
_MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """scale: how much load, 1.0 is the default. release: Kafka's jars, for its tools; None without them."""

    scale: float
    release: Release | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One turn of one system. label: tells it from the turns before, for the names of topics."""

    system: System
    server: Server
    load: Load
    label: str

    def create_topic(self, name: str, partitions: int) -> str:
        """Make a topic of this turn's own, under the system's flush policy; wait until it answers. Returns its name."""
        topic = f"{name}-{self.label}"
        create_topic(self.server.bootstrap_servers, topic, partitions, self.system.topic_settings)
        self.server.wait_for_records(topic, partitions, 0)
        return topic

    def resident(self) -> float:
        """What the server takes, in MiB."""
        return self.server.resident_bytes() / _MEBIBYTE


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Rows that are measured together.

    warm_up: what each server does before the first round, until the CPU seconds that it returns fall no more.
    None: each turn gets a fresh server, and that is the point.
    every_policy: whether Conveyor's flush policies are measured one by one.
    beside: the system that is measured on the same rows, if any.
    """

    measure: Callable[[Trial], Iterator[Figure]]
    warm_up: Callable[[Trial], float] | None = None
    every_policy: bool = True
    beside: str = "Kafka"
    needs_release: bool = False


def start_and_memory(trial: Trial) -> Iterator[Figure]:
    """From the command to the first answered Metadata request, on fresh storage; what an idle server takes."""
    yield Figure(
        name="ready after the command", kind=Kind.READY, value=trial.server.startup_ms, unit="ms", own_target=400
    )
    time.sleep(_IDLE_S)
    yield Figure(name="resident at idle", kind=Kind.IDLE_MEMORY, value=trial.resident(), unit="MiB", own_target=80)


def embedded(trial: Trial) -> Iterator[Figure]:
    """`Broker()` in a test's process, where Hypothesis is installed. The trial's own server is not asked."""
    started = start_embedded()
    name = "with Hypothesis installed"
    yield Figure(name=f"Broker() ready, {name}", kind=Kind.WAIT, value=started.ready_ms, unit="ms", own_target=400)
    peak_mib = started.peak_bytes / _MEBIBYTE
    yield Figure(name=f"peak with Broker(), {name}", kind=Kind.LOADED_MEMORY, value=peak_mib, unit="MiB", own_target=80)


def streams(trial: Trial) -> Iterator[Figure]:
    """Two confluent-kafka producers, then one consumer of both partitions, with acks=all and no compression."""
    for size, label, count, own_target in ((100, "100 B", 1_500_000, 1_000_000.0), (1000, "1 kB", 300_000, None)):
        messages = int(count * trial.load.scale)
        produced, consumed = _stream(trial, messages, size)
        rate = _PRODUCERS * messages / produced.seconds
        yield Figure(name=f"produce {label}", kind=Kind.THROUGHPUT, value=rate, unit="msg/s", own_target=own_target)
        for name, moved in (("produce", produced), ("consume", consumed)):
            mb_a_second, cpu_ms = moved.megabytes / moved.seconds, moved.cpu_seconds * 1000 / moved.megabytes
            yield Figure(name=f"{name} {label}, bytes", kind=Kind.THROUGHPUT, value=mb_a_second, unit="MB/s")
            yield Figure(name=f"{name} {label}: server's CPU", kind=Kind.COST, value=cpu_ms, unit="ms/MB")
    yield Figure(name="resident after load", kind=Kind.LOADED_MEMORY, value=trial.resident(), unit="MiB")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moved:
    """So many megabytes of values in so many seconds, for which the server's cores worked so many."""

    megabytes: float
    seconds: float
    cpu_seconds: float


def _stream(trial: Trial, count: int, size: int) -> tuple[_Moved, _Moved]:
    """What the producers moved, and the consumer; every message is acknowledged, in the log, and read."""
    server, total = trial.server, _PRODUCERS * count
    servers, megabytes = server.bootstrap_servers, total * size / 1e6
    topic = trial.create_topic(f"bench-{size}", _PRODUCERS)
    at_first = server.cpu_seconds()
    run = run_together(*[work(produce, servers, topic, number, count, size) for number in range(_PRODUCERS)])
    server.wait_for_records(topic, _PRODUCERS, total)
    between = server.cpu_seconds()
    consumed: Consumed = run_together(work(consume, servers, topic, _PRODUCERS, total)).results[0]
    at_last = server.cpu_seconds()
    if (consumed.messages, consumed.value_bytes) != (total, total * size):
        raise RuntimeError(f"{consumed} is not {total} messages of {size} bytes")
    return (
        _Moved(megabytes=megabytes, seconds=run.seconds, cpu_seconds=between - at_first),
        _Moved(megabytes=megabytes, seconds=consumed.seconds, cpu_seconds=at_last - between),
    )


def latency(trial: Trial) -> Iterator[Figure]:
    """From when a message of 100 B was due to just after `poll`, one partition, acks=all, at steady rates."""
    for rate in (5_000, 20_000):
        ages = _ages(trial, rate, max(2.0, 6 * trial.load.scale))
        for label, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)):
            age_ms = ages[int(len(ages) * share)] / 1000
            kind = Kind.TAIL_LATENCY if label == "p99" else Kind.LATENCY
            yield Figure(name=f"end to end, {rate:,} msg/s, {label}", kind=kind, value=age_ms, unit="ms")


def _ages(trial: Trial, rate: int, seconds: float) -> list[int]:
    """Of every message that was sent after the connections have settled, in microseconds, sorted."""
    servers, count = trial.server.bootstrap_servers, int(rate * (_SETTLING_S + seconds))
    topic = trial.create_topic(f"bench-{rate}", 1)
    run = run_together(
        work(send_steadily, servers, topic, rate, count, 100), work(receive_steadily, servers, topic, count)
    )
    trial.server.wait_for_records(topic, 1, count)
    return sorted(run.results[1][rate * _SETTLING_S :])


def requests(trial: Trial) -> Iterator[Figure]:
    """One-record Produce requests, 100 B each, over 16 connections to 16 partitions."""
    for acks, label in ((1, "1"), (-1, "all")):
        before = trial.server.cpu_seconds()
        sent = _send(trial, acks, max(1.0, 4 * trial.load.scale))
        cpu_us = (trial.server.cpu_seconds() - before) / sent.all_requests * 1e6
        name, rate = f"one-record requests, acks={label}", sent.requests / sent.seconds
        yield Figure(name=name, kind=Kind.REQUESTS, value=rate, unit="requests/s", own_target=50_000)
        yield Figure(name=f"{name}: server's CPU", kind=Kind.COST, value=cpu_us, unit="us/request", own_target=25)


def batches(trial: Trial) -> Iterator[Figure]:
    """What the broker takes from clients that leave it the cores: 100 B a message, acks=all, batches ready-made."""
    sent = _send(trial, -1, max(1.0, 2 * trial.load.scale), connections=_CHEAP_PRODUCERS, records=_BATCH)
    name, rate = f"produce 100 B, {_CHEAP_PRODUCERS} cheap producers", sent.requests * _BATCH / sent.seconds
    yield Figure(name=name, kind=Kind.THROUGHPUT, value=rate, unit="msg/s", own_target=2_000_000)


def _send(trial: Trial, acks: int, seconds: float, *, connections: int = _CONNECTIONS, records: int = 1) -> Answered:
    """Every request is answered with success, and its records in the log."""
    topic = trial.create_topic(f"bench-acks{acks}-{records}", connections)
    load = work(send_requests, trial.server.bootstrap_servers, topic, connections, acks, records, seconds)
    answered: Answered = run_together(load).results[0]
    trial.server.wait_for_records(topic, connections, answered.all_requests * records)
    return answered


def transactions(trial: Trial) -> Iterator[Figure]:
    """Transactions of 100 records of 1 kB, each to one partition, committed one after the other by each producer."""
    for producers in _TRANSACTIONAL_PRODUCERS:
        count = max(10, int(400 * trial.load.scale))
        before = trial.server.cpu_seconds()
        rate = _transactions(trial, producers, count)
        cpu_us = (trial.server.cpu_seconds() - before) / (producers * (count + 1)) * 1e6
        name = f"transactions, {RECORDS} records of 1 kB, producers: {producers}"
        yield Figure(name=name, kind=Kind.TRANSACTIONS, value=rate, unit="transactions/s")
        yield Figure(name=f"{name}: server's CPU", kind=Kind.COST, value=cpu_us, unit="us/transaction")


def _transactions(trial: Trial, producers: int, count: int) -> float:
    """Every transaction is committed, and its records and its marker are in the log. Returns the transactions a
    second.
    """
    servers = trial.server.bootstrap_servers
    topic = trial.create_topic(f"bench-transactions-{producers}", producers)
    run = run_together(*[work(commit_transactions, servers, topic, number, count, 1000) for number in range(producers)])
    trial.server.wait_for_records(topic, producers, producers * (count + 1) * (RECORDS + 1))
    return producers * count / run.seconds


def tools(trial: Trial) -> Iterator[Figure]:
    """Kafka's own performance tools with the Java client's defaults, acks=all, messages of 1 kB to two partitions."""
    produced, consumed = _run_tools(trial, int(500_000 * trial.load.scale))
    yield Figure(name="ProducerPerformance, 1 kB", kind=Kind.THROUGHPUT, value=produced / 1e6, unit="MB/s")
    yield Figure(name="ConsumerPerformance, 1 kB", kind=Kind.THROUGHPUT, value=consumed / 1e6, unit="MB/s")


def _run_tools(trial: Trial, count: int) -> tuple[float, float]:
    """The producer's and the consumer's bytes a second. A fifth as much goes before, to warm up the tool's own Java."""
    assert trial.load.release is not None
    size, warm_up = 1000, count // 5
    generator = PerformanceTools(release=trial.load.release, bootstrap_servers=trial.server.bootstrap_servers)
    topic = trial.create_topic("bench-tools", 2)
    produced = generator.produce(topic, count, size, warm_up)
    trial.server.wait_for_records(topic, 2, count + warm_up)
    return produced, generator.consume(topic, count + warm_up)


def partitions(trial: Trial) -> Iterator[Figure]:
    """A topic of 2,000 partitions: until all answer, one record to each, and a start on what they hold."""
    server, count = trial.server, max(10, int(_PARTITIONS * min(1.0, trial.load.scale)))
    started = time.perf_counter()
    topic = trial.create_topic("many", count)
    created = time.perf_counter() - started
    yield Figure(name=f"create {count:,} partitions", kind=Kind.COST, value=created, unit="s")
    run = run_together(work(produce_to_each, server.bootstrap_servers, topic, count, 100))
    yield Figure(name=f"a record to each of {count:,}", kind=Kind.COST, value=run.seconds, unit="s")
    name = f"resident with {count:,} partitions"
    yield Figure(name=name, kind=Kind.LOADED_MEMORY, value=trial.resident(), unit="MiB")
    server.stop()
    server.start()
    ready_ms = server.wait_for_records(topic, count, count)
    yield Figure(name=f"ready again with {count:,} partitions", kind=Kind.READY, value=ready_ms, unit="ms")


def _stream_a_little(trial: Trial) -> None:
    for size, count in ((100, 500_000), (1000, 100_000)):
        _stream(trial, int(count * trial.load.scale), size)


def _send_and_receive(trial: Trial) -> None:
    _ages(trial, 20_000, _WARM_UP_S)


def _run_tools_a_little(trial: Trial) -> None:
    _run_tools(trial, int(150_000 * trial.load.scale))


def _commit_a_little(trial: Trial) -> None:
    _transactions(trial, max(_TRANSACTIONAL_PRODUCERS), max(10, int(200 * trial.load.scale)))


def _server_seconds(trial: Trial, load: Callable[[Trial], object]) -> float:
    """The CPU time that the server spends on a load of always the same size."""
    before = trial.server.cpu_seconds()
    load(trial)
    return trial.server.cpu_seconds() - before


def _server_seconds_a_request(trial: Trial) -> float:
    before = trial.server.cpu_seconds()
    sent = _send(trial, -1, _WARM_UP_S)
    return (trial.server.cpu_seconds() - before) / sent.all_requests


def _server_seconds_a_batch(trial: Trial) -> float:
    before = trial.server.cpu_seconds()
    sent = _send(trial, -1, _SHORT_WARM_UP_S, connections=_CHEAP_PRODUCERS, records=_BATCH)
    return (trial.server.cpu_seconds() - before) / sent.all_requests


GROUPS: dict[str, Group] = {
    "start": Group(measure=start_and_memory),
    "embedded": Group(measure=embedded, every_policy=False, beside=""),
    "streams": Group(measure=streams, warm_up=lambda trial: _server_seconds(trial, _stream_a_little)),
    "latency": Group(measure=latency, warm_up=lambda trial: _server_seconds(trial, _send_and_receive)),
    "requests": Group(measure=requests, warm_up=_server_seconds_a_request),
    "batches": Group(measure=batches, warm_up=_server_seconds_a_batch),
    "transactions": Group(measure=transactions, warm_up=lambda trial: _server_seconds(trial, _commit_a_little)),
    "tools": Group(
        measure=tools, warm_up=lambda trial: _server_seconds(trial, _run_tools_a_little), needs_release=True
    ),
    "partitions": Group(measure=partitions),
}
"""By the name that `--only` takes."""
