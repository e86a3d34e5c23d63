"""Load on a queue over REST: cycles of publish, lease and ack; a steady rate; leases alone."""

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import msgspec
import uvloop

from benchmarks.queues.http import Connection, connect, request
from benchmarks.queues.loads import BATCH, CONNECTIONS, CONSUMERS, SIZE, Cycled
from benchmarks.workers import Gate

_SECOND_NS = 1_000_000_000
_STAMP_DIGITS = 20
_PUBLISHERS = 16
_OK = b'"status":"ok"'
_GIVEN_UP_S = 60


class Leased(msgspec.Struct):
    """What is read of a lease."""

    ack_id: str
    message_id: str
    payload: str


class _Leases(msgspec.Struct):
    messages: list[Leased]


_decode = msgspec.json.Decoder(_Leases).decode
_encode = msgspec.json.Encoder().encode


def cycle(gate: Gate, address: str, topic: str, subscription: str, seconds: float) -> Cycled:
    """Every connection publishes ten messages, leases ten, acknowledges them, and so on.

    Raises RuntimeError unless, in the end, every message was acknowledged exactly once.
    """
    return uvloop.run(_cycle(gate, address, topic, subscription, seconds))


def lease_all(gate: Gate, address: str, subscription: str, count: int) -> float:
    """Lease so many messages that are there, and keep them. Returns the seconds that takes."""
    return uvloop.run(_lease_all(gate, address, subscription, count))


def receive_steadily(
    gate: Gate, address: str, topic: str, subscription: str, rate: int, count: int, batch: int
) -> list[int]:
    """Publish at a rate, while some consumers wait. Returns how old each message was when it came, in microseconds, in
    the order of publishing; its age counts from when it was due to be sent."""
    return uvloop.run(_receive_steadily(gate, address, topic, subscription, rate, count, batch))


def receive_due(gate: Gate, address: str, subscription: str, from_ms: int, seconds: float) -> list[int]:
    """Take delayed messages as they fall due, whose payloads say when that is. Returns how late each came, in
    microseconds, of those that were due within so many seconds from a moment on."""
    return uvloop.run(_receive_due(gate, address, subscription, from_ms, seconds))


@dataclass(slots=True)
class _Counts:
    published: int = 0
    acknowledged: int = 0
    ids: set[str] = field(default_factory=set)


async def _cycle(gate: Gate, address: str, topic: str, subscription: str, seconds: float) -> Cycled:
    connections = [await connect(address) for _ in range(CONNECTIONS)]
    document = {"messages": [{"payload": "x" * SIZE}] * BATCH}
    publish = request("POST", f"/topics/{topic}/messages:batch", _encode(document))
    counts = _Counts()
    gate.wait()
    started, cpu = time.perf_counter(), time.process_time()
    ends = started + seconds
    cycles = [asyncio.ensure_future(_go_round(each, publish, subscription, ends, counts)) for each in connections]
    await asyncio.sleep(seconds)
    acknowledged, elapsed, spent = counts.acknowledged, time.perf_counter() - started, time.process_time() - cpu
    await asyncio.wait_for(asyncio.gather(*cycles), _GIVEN_UP_S)
    if not counts.published == counts.acknowledged == len(counts.ids):
        raise RuntimeError(
            f"{counts.published} published, {counts.acknowledged} acknowledged, {len(counts.ids)} different"
        )
    return Cycled(acknowledged, elapsed, spent, counts.acknowledged)


async def _go_round(connection: Connection, publish: bytes, subscription: str, ends: float, counts: _Counts) -> None:
    """After the end nothing more is published, but everything is acknowledged."""
    lease = _lease(subscription, "5s")
    while time.perf_counter() < ends or counts.acknowledged < counts.published:
        if time.perf_counter() < ends:
            answer = await connection.ask(publish)
            if answer.count(_OK) != BATCH:
                raise RuntimeError(f"not all published: {answer[:2000]!r}")
            counts.published += BATCH
        leased = _decode(await connection.ask(lease)).messages
        if leased:
            await _acknowledge(connection, subscription, leased)
            counts.acknowledged += len(leased)
            counts.ids.update([each.message_id for each in leased])


def _lease(subscription: str, wait: str, count: int = BATCH) -> bytes:
    return request("GET", f"/subscriptions/{subscription}/messages?max_messages={count}&wait={wait}")


async def _acknowledge(connection: Connection, subscription: str, leased: list[Leased]) -> None:
    body = _encode({"ack_ids": [each.ack_id for each in leased]})
    answer = await connection.ask(request("POST", f"/subscriptions/{subscription}/ack", body))
    if answer.count(_OK) != len(leased):
        raise RuntimeError(f"not all acknowledged: {answer[:2000]!r}")


async def _lease_all(gate: Gate, address: str, subscription: str, count: int) -> float:
    connections = [await connect(address) for _ in range(CONSUMERS)]
    lease = _lease(subscription, "0s")
    leased = 0

    async def take(connection: Connection) -> None:
        nonlocal leased
        while leased < count:
            messages = _decode(await connection.ask(lease)).messages
            leased += len(messages)

    gate.wait()
    started = time.perf_counter()
    await asyncio.wait_for(asyncio.gather(*map(take, connections)), _GIVEN_UP_S)
    return time.perf_counter() - started


async def _receive_steadily(
    gate: Gate, address: str, topic: str, subscription: str, rate: int, count: int, batch: int
) -> list[int]:
    publishers: asyncio.Queue[Connection] = asyncio.Queue()
    for _ in range(_PUBLISHERS):
        publishers.put_nowait(await connect(address))
    arrived: dict[int, int] = {}
    all_came = asyncio.Event()

    def received(leased: list[Leased]) -> None:
        now_ns = time.monotonic_ns()
        for each in leased:
            number, due_ns = int(each.payload[:_STAMP_DIGITS]), int(each.payload[_STAMP_DIGITS : 2 * _STAMP_DIGITS])
            arrived[number] = (now_ns - due_ns) // 1000
        if len(arrived) == count:
            all_came.set()

    consumers = [asyncio.ensure_future(_take(await connect(address), subscription, received)) for _ in range(CONSUMERS)]
    gate.wait()
    await _publish_steadily(publishers, topic, rate, count, batch)
    await _first_to_end(all_came.wait(), *consumers)
    return [arrived[number] for number in range(count)]


async def _publish_steadily(
    publishers: "asyncio.Queue[Connection]", topic: str, rate: int, count: int, batch: int
) -> None:
    """Each batch when it is due, whatever became of the one before it, as long as there is a connection."""
    path = f"/topics/{topic}/messages:batch"
    padding = b"x" * (SIZE - 2 * _STAMP_DIGITS)

    async def publish(connection: Connection, first: int, due_ns: int) -> None:
        messages = (b'{"payload":"%020d%020d%s"}' % (first + place, due_ns, padding) for place in range(batch))
        answer = await connection.ask(request("POST", path, b'{"messages":[%s]}' % b",".join(messages)))
        if answer.count(_OK) != batch:
            raise RuntimeError(f"not all published: {answer[:2000]!r}")
        publishers.put_nowait(connection)

    started_ns = time.monotonic_ns()
    async with asyncio.TaskGroup() as tasks:
        for first in range(0, count, batch):
            due_ns = started_ns + first * _SECOND_NS // rate
            ahead_ns = due_ns - time.monotonic_ns()
            if ahead_ns > 0:
                await asyncio.sleep(ahead_ns / _SECOND_NS)
            tasks.create_task(publish(await publishers.get(), first, due_ns))


async def _take(connection: Connection, subscription: str, received: Any) -> None:
    """Lease, and acknowledge, for ever."""
    lease = _lease(subscription, "20s")
    while True:
        leased = _decode(await connection.ask(lease)).messages
        if leased:
            received(leased)
            await _acknowledge(connection, subscription, leased)


async def _receive_due(gate: Gate, address: str, subscription: str, from_ms: int, seconds: float) -> list[int]:
    late: list[int] = []
    until_ms = from_ms + int(seconds * 1000)

    def received(leased: list[Leased]) -> None:
        now_us = time.time_ns() // 1000
        late.extend(now_us - 1000 * due for each in leased if from_ms <= (due := int(each.payload)) < until_ms)

    consumers = [asyncio.ensure_future(_take(await connect(address), subscription, received)) for _ in range(CONSUMERS)]
    gate.wait()
    await _first_to_end(asyncio.sleep(until_ms / 1000 - time.time() + 1), *consumers)
    return late


async def _first_to_end(awaited: Coroutine[Any, Any, Any], *others: "asyncio.Future[Any]") -> None:
    """Wait for one that ends, or for others that fail before; then stop these."""
    ending: asyncio.Future[Any] = asyncio.ensure_future(asyncio.wait_for(awaited, 2 * _GIVEN_UP_S))
    done, _ = await asyncio.wait([ending, *others], return_when=asyncio.FIRST_COMPLETED)
    for each in (ending, *others):
        each.cancel()
    for each in done:
        each.result()
