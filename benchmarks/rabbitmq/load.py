"""The load of `benchmarks.queues.rest` on RabbitMQ: publisher confirms, consumers with prefetch that acknowledge."""

import asyncio
import time

import uvloop

from benchmarks.queues.loads import BATCH, CONNECTIONS, CONSUMERS, SIZE, Cycled
from benchmarks.rabbitmq.amqp import AmqpConnection, connect, publish_frames
from benchmarks.workers import Gate

_SECOND_NS = 1_000_000_000
_NUMBER_BYTES = 8
_PREFETCH = 10 * BATCH
_PUBLISHERS = 16
_GIVEN_UP_S = 60


def cycle(gate: Gate, address: str, seconds: float) -> Cycled:
    """Every connection publishes ten messages, waits until they are confirmed, and so on; meanwhile it consumes what
    comes, and acknowledges ten at a time. Raises TimeoutError unless, in the end, all that was published has come."""
    return uvloop.run(_cycle(gate, address, seconds))


def receive_steadily(gate: Gate, address: str, rate: int, count: int, batch: int) -> list[int]:
    """Publish at a rate. Returns how old each message was when a consumer had it, in microseconds."""
    return uvloop.run(_receive_steadily(gate, address, rate, count, batch))


class _Consumer:
    """Acknowledges ten messages at once, or fewer when nothing more came in a turn of the loop."""

    def __init__(self, connection: AmqpConnection) -> None:
        self._connection = connection
        self._open = 0
        self._last_tag = 0
        self.acknowledged = 0

    def received(self, body: bytes, tag: int) -> None:
        self._last_tag = tag
        if not self._open:
            asyncio.get_running_loop().call_soon(self._acknowledge)
        self._open += 1
        if self._open == BATCH:
            self._acknowledge()

    def _acknowledge(self) -> None:
        if self._open:
            self._connection.acknowledge(self._last_tag)
            self.acknowledged += self._open
            self._open = 0


async def _cycle(gate: Gate, address: str, seconds: float) -> Cycled:
    connections = [await connect(address) for _ in range(CONNECTIONS)]
    consumers = [_Consumer(each) for each in connections]
    for connection, consumer in zip(connections, consumers, strict=True):
        await connection.consume(_PREFETCH, consumer.received)
    frames = publish_frames(b"x" * SIZE) * BATCH
    published = 0

    def acknowledged() -> int:
        return sum(each.acknowledged for each in consumers)

    async def go_round(connection: AmqpConnection) -> None:
        nonlocal published
        while time.perf_counter() < ends:
            published += BATCH
            await connection.publish(frames, BATCH)

    async def all_came() -> None:
        while acknowledged() < published:  # noqa: ASYNC110 - it ends with the last of many consumers.
            await asyncio.sleep(0.01)

    gate.wait()
    started, cpu = time.perf_counter(), time.process_time()
    ends = started + seconds
    rounds = [asyncio.ensure_future(go_round(each)) for each in connections]
    await asyncio.sleep(seconds)
    done, elapsed, spent = acknowledged(), time.perf_counter() - started, time.process_time() - cpu
    await asyncio.wait_for(asyncio.gather(*rounds), _GIVEN_UP_S)
    await asyncio.wait_for(all_came(), _GIVEN_UP_S)
    for each in connections:
        await each.close()
    if acknowledged() != published:
        raise RuntimeError(f"{published} published, {acknowledged()} acknowledged")
    return Cycled(done, elapsed, spent, published)


async def _receive_steadily(gate: Gate, address: str, rate: int, count: int, batch: int) -> list[int]:
    arrived: dict[int, int] = {}
    all_came = asyncio.Event()

    def received_by(consumer: _Consumer, body: bytes, tag: int) -> None:
        number, due_ns = (int.from_bytes(body[place : place + _NUMBER_BYTES]) for place in (0, _NUMBER_BYTES))
        arrived[number] = (time.monotonic_ns() - due_ns) // 1000
        consumer.received(body, tag)
        if len(arrived) == count:
            all_came.set()

    consuming = [await connect(address) for _ in range(CONSUMERS)]
    for connection in consuming:
        consumer = _Consumer(connection)
        await connection.consume(_PREFETCH, lambda body, tag, mine=consumer: received_by(mine, body, tag))  # type: ignore[misc]
    publishing: asyncio.Queue[AmqpConnection] = asyncio.Queue()
    for _ in range(_PUBLISHERS):
        publishing.put_nowait(await connect(address))
    gate.wait()
    await _publish_steadily(publishing, rate, count, batch)
    await asyncio.wait_for(all_came.wait(), _GIVEN_UP_S)
    for connection in consuming:
        await connection.close()
    return [arrived[number] for number in range(count)]


async def _publish_steadily(publishing: "asyncio.Queue[AmqpConnection]", rate: int, count: int, batch: int) -> None:
    padding = bytes(SIZE - 2 * _NUMBER_BYTES)

    async def publish(connection: AmqpConnection, first: int, due_ns: int) -> None:
        due = due_ns.to_bytes(_NUMBER_BYTES)
        frames = (publish_frames((first + place).to_bytes(_NUMBER_BYTES) + due + padding) for place in range(batch))
        await connection.publish(b"".join(frames), batch)
        publishing.put_nowait(connection)

    started_ns = time.monotonic_ns()
    async with asyncio.TaskGroup() as tasks:
        for first in range(0, count, batch):
            due_ns = started_ns + first * _SECOND_NS // rate
            ahead_ns = due_ns - time.monotonic_ns()
            if ahead_ns > 0:
                await asyncio.sleep(ahead_ns / _SECOND_NS)
            tasks.create_task(publish(await publishing.get(), first, due_ns))
