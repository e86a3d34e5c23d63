"""What is measured: one function per group of rows, each on a broker of its own."""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.broker import RunningBroker, running_broker
from benchmarks.requests import send_requests
from benchmarks.streams import consume, create_topic, produce, receive_steadily, send_steadily
from benchmarks.workers import run_together, work

_CONNECTIONS = 16
_STARTS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured figure. target: what we aim at, in the same unit; None where there is none."""

    name: str
    policy: str
    value: float
    unit: str
    target: float | None = None
    smaller_is_better: bool = False

    @property
    def ratio(self) -> float | None:
        """How far the target is met: 1 or more is met."""
        if self.target is None:
            return None
        return self.target / self.value if self.smaller_is_better else self.value / self.target


def throughput(policy: str, scale: float) -> Iterator[Row]:
    """Two confluent-kafka producers, then one consumer; load generators on the same cores."""
    for size, count, target in ((100, int(2_000_000 * scale), 1_000_000.0), (1000, int(400_000 * scale), None)):
        with running_broker() as broker:
            servers = broker.bootstrap_servers
            create_topic(servers, "bench", 2, {"flush.policy": policy})
            label = f"{size} B" if size < 1000 else "1 kB"
            run = run_together(*[work(produce, servers, "bench", number, count, size) for number in range(2)])
            rate = 2 * count / run.seconds
            yield Row(name=f"produce {label}", policy=policy, value=rate, unit="msg/s", target=target)
            yield Row(name=f"produce {label}", policy=policy, value=rate * size / 1e6, unit="MB/s")
            run = run_together(work(consume, servers, "bench", 0, count))
            yield Row(name=f"consume {label}", policy=policy, value=sum(run.results) / run.seconds / 1e6, unit="MB/s")


def requests(policy: str, scale: float) -> Iterator[Row]:
    """One-record Produce requests, 100 B each, over 16 connections to 16 partitions."""
    for acks, label in ((1, "1"), (-1, "all")):
        with running_broker() as broker:
            servers = broker.bootstrap_servers
            create_topic(servers, "bench", _CONNECTIONS, {"flush.policy": policy})
            before = broker.cpu_seconds()
            load = work(send_requests, servers, "bench", _CONNECTIONS, _CONNECTIONS, acks, 5.0 * scale)
            answered, seconds = run_together(load).results[0]
            cpu_us = (broker.cpu_seconds() - before) / answered * 1e6
            name = f"one-record requests, acks={label}"
            yield Row(name=name, policy=policy, value=answered / seconds, unit="requests/s", target=50_000)
            yield Row(name=f"{name}: broker's CPU", policy=policy, value=cpu_us, unit="us/request", target=25,
                      smaller_is_better=True)  # fmt: skip


def latency(policy: str, scale: float) -> Iterator[Row]:
    """From just before `produce` to just after `poll`, 5,000 messages of 100 B a second, acks=all, one partition."""
    rate, seconds = 5_000, max(2, int(15 * scale))
    with running_broker() as broker:
        servers = broker.bootstrap_servers
        create_topic(servers, "bench", 1, {"flush.policy": policy})
        run = run_together(
            work(send_steadily, servers, "bench", rate, seconds, 100),
            work(receive_steadily, servers, "bench", rate * seconds, 1),
        )
    ages = sorted(run.results[1])
    for label, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)):
        age_ms = ages[int(len(ages) * share)] / 1000
        yield Row(name=f"end to end, 5,000 msg/s, acks=all, {label}", policy=policy, value=age_ms, unit="ms")


def start_and_memory(scale: float) -> Iterator[Row]:
    """From the command to the ready line, on an empty data directory; and what an idle broker takes."""
    starts, resident = [], []
    for _ in range(max(3, int(_STARTS * scale))):
        with running_broker() as broker:
            starts.append(broker.startup_ms)
            resident.append(broker.resident_bytes() / (1 << 20))
    yield Row(name="ready after the command (median)", policy="-", value=statistics.median(starts), unit="ms",
              target=400, smaller_is_better=True)  # fmt: skip
    yield Row(name="ready after the command (best)", policy="-", value=min(starts), unit="ms")
    yield Row(name="resident at idle", policy="-", value=max(resident), unit="MiB", target=80, smaller_is_better=True)
    with running_broker() as broker:
        yield _loaded_memory(broker, int(1_000_000 * scale))


def _loaded_memory(broker: RunningBroker, count: int) -> Row:
    servers = broker.bootstrap_servers
    create_topic(servers, "bench", 2, {})
    run_together(*[work(produce, servers, "bench", number, count, 100) for number in range(2)])
    run_together(work(consume, servers, "bench", 0, count))
    return Row(name="resident after load", policy="ack", value=broker.resident_bytes() / (1 << 20), unit="MiB")
