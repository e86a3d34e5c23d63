"""What is measured of queues: speed, beside RabbitMQ; what a backlog costs; delays; starting with much to do.

RabbitMQ's rows are the same work in AMQP, with frames made beforehand: a load generator as cheap as the one of REST.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benchmarks.figures import Figure, Kind
from benchmarks.queues import engine, rest
from benchmarks.queues.http import call
from benchmarks.queues.loads import BATCH, SETTLING_S, Cycled, share
from benchmarks.queues.preload import delayed, fill, plain, prioritised
from benchmarks.rabbitmq import load as rabbitmq
from benchmarks.rows import Group, Trial
from benchmarks.streams import create_topic
from benchmarks.workers import run_together, work

_RATE = 2_000
_LONGEST_MS = 12 * 3_600_000
_BACKLOG = 1_000_000
_LEASED = 30_000
_TURNS = 3
_SMALL = 100
_DELAYED = 1_000_000
_UNSETTLED = 10_000_000
_WARM_UP_S = 3

_DELAYS: dict[str, dict[str, str]] = {"queue": {}}
"""By the kind of delay: what a topic has to be created with."""


def speed(trial: Trial) -> Iterator[Figure]:
    """Publish, lease and acknowledge 1 kB messages, ten in a request: as many as possible, then at a steady rate."""
    before = trial.server.cpu_seconds()
    done = _cycle(trial, "bench-cycle", max(1.0, 6 * trial.load.scale))
    name, own_cpu = "publish, lease, ack, 1 kB", trial.server.cpu_seconds() - before
    yield _rate(name, done, 20_000)
    yield _cost(f"{name}: server's CPU", own_cpu / done.all_messages)
    yield _cost(f"{name}: generator's CPU", done.generator_seconds / done.messages)
    for batch, label, target in ((BATCH, "in tens", 10.0), (1, "one by one", None)):
        ages = _ages(trial, batch, max(2.0, 6 * trial.load.scale))
        for part, wanted in ((0.5, None), (0.99, target), (0.999, None)):
            age = f"publish to lease, {_RATE:,} msg/s {label}, p{100 * part:g}"
            yield Figure(name=age, kind=Kind.WAIT, value=share(ages, part), unit="ms", own_target=wanted)


def engine_alone(trial: Trial) -> Iterator[Figure]:
    """The same in one process, without sockets, on a disk in memory; a hundred at once."""
    done: Cycled = run_together(work(engine.cycle, max(1.0, 6 * trial.load.scale))).results[0]
    yield _rate("publish, lease, ack, engine alone", done, 60_000)
    yield _cost("publish, lease, ack, engine alone: CPU", done.generator_seconds / done.messages)


def backlog(trial: Trial) -> Iterator[Figure]:
    """How fast messages are leased, ten at once, from a queue that holds many, and from one that holds no others."""
    count = max(_LEASED * (_TURNS + 1), int(_BACKLOG * min(1.0, trial.load.scale)))
    for label, batches in (("plain", plain), ("with priorities", prioritised)):
        seconds = _lease_from_both(trial, label.replace(" ", "-"), batches, count)
        alone, many = (_LEASED / statistics.median(each) for each in seconds)
        yield Figure(name=f"lease, {label}, no backlog", kind=Kind.RATE, value=alone, unit="msg/s")
        yield Figure(name=f"lease, {label}, backlog of {count:,}", kind=Kind.RATE, value=many, unit="msg/s")
        name = f"lease, {label}, backlog of {count:,}, ratio"
        yield Figure(name=name, kind=Kind.RATE, value=many / alone, unit="", own_target=0.8)


def delays(trial: Trial) -> Iterator[Figure]:
    """A start with many messages that are not due yet; then how late they come, 2,000 of them due in a second."""
    count, server = int(_DELAYED * min(1.0, trial.load.scale)), trial.server
    for kind, config in _DELAYS.items():
        topic, name = f"bench-{kind}-delay", f"{count:,} pending {kind} delays"
        from_ms = _now_ms() + int(15_000 + 45_000 * min(1.0, trial.load.scale))
        _create(trial, topic, config)
        fill(server.bootstrap_servers, topic, delayed(count, from_ms, _RATE))
        ready_s = _restart(trial, topic)
        yield Figure(name=f"ready with {name}", kind=Kind.READY, value=ready_s, unit="s", own_target=10)
        yield Figure(name=f"resident with {name}", kind=Kind.LOADED_MEMORY, value=trial.resident(), unit="MiB",
                     own_target=300)  # fmt: skip
        begin_ms = max(from_ms, _now_ms()) + 1000 * SETTLING_S
        seconds = max(2.0, 10 * trial.load.scale)
        late = _together(rest.receive_due, server.http_address(), topic, begin_ms, seconds)
        if len(late) != int(seconds * _RATE):
            raise RuntimeError(f"{len(late)} of {int(seconds * _RATE)} delayed messages came")
        for part, wanted in ((0.5, None), (0.99, 50.0)):
            lateness = f"{kind} delay, {_RATE:,} due a second, late by, p{100 * part:g}"
            value = share(sorted(late), part)
            yield Figure(name=lateness, kind=Kind.WAIT, value=value, unit="ms", own_target=wanted)


def unsettled(trial: Trial) -> Iterator[Figure]:
    """A start with ten million messages that nobody has settled: until the broker answers, and until a lease does."""
    count, topic = int(_UNSETTLED * min(1.0, trial.load.scale)), "bench-unsettled"
    _create(trial, topic, {})
    fill(trial.server.bootstrap_servers, topic, plain(count, _SMALL))
    name = f"{count:,} unsettled messages"
    leased_s = _restart(trial, topic)
    yield Figure(name=f"ready with {name}", kind=Kind.READY, value=trial.server.startup_ms / 1000, unit="s")
    yield Figure(name=f"first lease with {name}", kind=Kind.READY, value=leased_s, unit="s", own_target=10)
    yield Figure(name=f"resident with {name}", kind=Kind.LOADED_MEMORY, value=trial.resident(), unit="MiB")


def _cycle(trial: Trial, name: str, seconds: float) -> Cycled:
    if trial.system.name == "RabbitMQ":
        done: Cycled = _together(rabbitmq.cycle, trial.server.bootstrap_servers, seconds)
        return done
    topic = _queue(trial, name)
    done = _together(rest.cycle, trial.server.http_address(), topic, topic, seconds)
    return done


def _ages(trial: Trial, batch: int, seconds: float) -> list[int]:
    """Of every message after the connections have settled, in microseconds, sorted."""
    count = int(_RATE * (SETTLING_S + seconds)) // batch * batch
    if trial.system.name == "RabbitMQ":
        ages = _together(rabbitmq.receive_steadily, trial.server.bootstrap_servers, _RATE, count, batch)
    else:
        topic = _queue(trial, f"bench-steady-{batch}")
        ages = _together(rest.receive_steadily, trial.server.http_address(), topic, topic, _RATE, count, batch)
    return sorted(ages[_RATE * SETTLING_S :])


def _lease_from_both(
    trial: Trial, label: str, batches: Callable[[int, int], Iterator[bytes]], count: int
) -> tuple[list[float], list[float]]:
    """The seconds of each turn, with no backlog and with one; the turns alternate."""
    few, many = _queue(trial, f"few-{label}"), _queue(trial, f"many-{label}")
    servers, address = trial.server.bootstrap_servers, trial.server.http_address()
    fill(servers, many, batches(count, _SMALL))
    alone: list[float] = []
    behind: list[float] = []
    for _ in range(_TURNS):
        fill(servers, few, batches(_LEASED, _SMALL))
        alone.append(_together(rest.lease_all, address, few, _LEASED))
        behind.append(_together(rest.lease_all, address, many, _LEASED))
    return alone, behind


def _queue(trial: Trial, name: str) -> str:
    """A topic of this turn's own, and a subscription of the same name."""
    topic = f"{name}-{trial.label}"
    _create(trial, topic, {})
    return topic


def _create(trial: Trial, topic: str, config: dict[str, str]) -> None:
    create_topic(trial.server.bootstrap_servers, topic, 1, trial.system.topic_settings | config)
    subscription = {"name": topic, "start": "earliest", "visibility_timeout_ms": _LONGEST_MS}
    call(trial.server.http_address(), "POST", f"/topics/{topic}/subscriptions", subscription)


def _restart(trial: Trial, subscription: str) -> float:
    """Seconds from the command until a lease is answered."""
    trial.server.stop()
    trial.server.startup_ms = trial.server.start()
    address = trial.server.http_address()
    lease = partial(call, address, "GET", f"/subscriptions/{subscription}/messages")
    return trial.server.wait_until(lambda: lease() is not None, "a lease") / 1000


def _together(function: Callable[..., Any], *arguments: Any) -> Any:
    return run_together(work(function, *arguments)).results[0]


def _rate(name: str, done: Cycled, target: float) -> Figure:
    return Figure(name=name, kind=Kind.RATE, value=done.messages / done.seconds, unit="msg/s", own_target=target)


def _cost(name: str, seconds: float) -> Figure:
    return Figure(name=name, kind=Kind.COST, value=seconds * 1e6, unit="us/msg")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _server_seconds_a_message(trial: Trial) -> float:
    before = trial.server.cpu_seconds()
    done = _cycle(trial, "bench-warm", _WARM_UP_S)
    return (trial.server.cpu_seconds() - before) / done.all_messages


QUEUE_GROUPS: dict[str, Group] = {
    "queues": Group(measure=speed, warm_up=_server_seconds_a_message, every_policy=False, beside="RabbitMQ"),
    "queues-engine": Group(measure=engine_alone, every_policy=False, beside=""),
    "queues-backlog": Group(measure=backlog, every_policy=False, beside=""),
    "queues-delays": Group(measure=delays, every_policy=False, beside=""),
    "queues-unsettled": Group(measure=unsettled, every_policy=False, beside=""),
}
"""By the name that `--only` takes."""
