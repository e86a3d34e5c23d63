"""The engine of queues alone: a broker's log and machines on a disk in memory, no socket, no door, one event loop."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID, uuid4

import uvloop

from benchmarks.queues.loads import SIZE, Cycled
from benchmarks.workers import Gate
from conveyor.adapters.compactor import ThreadCompactor
from conveyor.adapters.system_clock import SystemClock
from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.broker_ports import BrokerPorts
from conveyor.broker.coordinators.queue_partition import QueuePartition
from conveyor.cluster.image import BrokerEndpoint
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.access.caller import ANONYMOUS, PLAINTEXT, Caller
from conveyor.kernel.errors import RequestError
from conveyor.queues.delivery.ack_id import decode_ack_id
from conveyor.queues.queue_commands import Acknowledge, LeaseMessages, Target
from conveyor.queues.subscription.policy import StartPosition
from conveyor.records.checked_batch import check_batch
from conveyor.records.record import encode_batch
from conveyor.replication.partition import Partition
from conveyor.settings.tree import from_sources
from conveyor.testing import MemoryDisk
from conveyor.testing.memory_store import MemoryStore

_CALLER = Caller(ANONYMOUS, "127.0.0.1", PLAINTEXT, 1)
_BATCH = 100
_AT_ONCE = 16
_VISIBILITY_MS = 60_000
_FLUSH_THREADS = 4


def cycle(gate: Gate, seconds: float) -> Cycled:
    """Publish a hundred messages, lease a hundred, acknowledge them, and so on, some at once.

    Raises RuntimeError unless every message was acknowledged, once.
    """
    return uvloop.run(_cycle(gate, seconds))


async def _cycle(gate: Gate, seconds: float) -> Cycled:
    disk, failures = MemoryDisk(), list[BaseException]()
    with ThreadPoolExecutor(_FLUSH_THREADS) as threads:
        ports = BrokerPorts(
            disk=disk,
            store=MemoryStore(),
            clock=SystemClock(asyncio.get_running_loop()),
            threads=threads,
            new_id=uuid4,
            failed=failures.append,
            compactor=ThreadCompactor(disk),
        )
        broker = BrokerNode(from_sources({}), ports)
        await broker.start({PLAINTEXT: BrokerEndpoint("127.0.0.1", 9092)})
        try:
            return await _measure(gate, broker, ports, seconds)
        finally:
            await broker.finish_requests()
            await broker.stop()
            if failures:
                raise failures[0]


async def _measure(gate: Gate, broker: BrokerNode, ports: BrokerPorts, seconds: float) -> Cycled:
    await broker.topics.create(_CALLER, TopicRequest(name="bench", partitions=1))
    subscription = await broker.queues.lifecycle.create(_CALLER, "bench", "bench", StartPosition(kind="earliest"), {})
    partition = broker.partitions.table.find("bench", 0)
    queue = broker.coordinators.queues.find(partition.identity)
    assert queue is not None
    batch = encode_batch([(ports.clock.now_ms(), None, bytes(SIZE), ())] * _BATCH)
    acknowledged = 0

    async def go_round() -> None:
        nonlocal acknowledged
        while time.perf_counter() < ends or acknowledged < partition.term.high_watermark:
            if time.perf_counter() < ends:
                await _publish(partition, bytearray(batch), ports.clock.now_ms())
            settled = await _settle(queue, subscription.id)
            acknowledged += settled

    gate.wait()
    started, cpu = time.perf_counter(), time.process_time()
    ends = started + seconds
    await asyncio.gather(*(go_round() for _ in range(_AT_ONCE)))
    elapsed, spent = time.perf_counter() - started, time.process_time() - cpu
    stats = await broker.queues.statistics.stats(_CALLER, "bench")
    if not acknowledged == stats.acked == partition.term.high_watermark or stats.unsettled:
        raise RuntimeError(f"{partition.term.high_watermark} published, {acknowledged} acknowledged: {stats}")
    return Cycled(acknowledged, elapsed, spent, acknowledged)


async def _publish(partition: Partition, batch: bytearray, now_ms: int) -> None:
    committed: asyncio.Future[RequestError | None] = asyncio.get_running_loop().create_future()
    appended = partition.append(check_batch(batch, partition.log.topic.max_message_bytes), now_ms)
    partition.term.when_committed(appended.last_offset + 1, committed.set_result)
    error = await committed
    if error is not None:
        raise error


async def _settle(queue: QueuePartition, subscription: UUID) -> int:
    wanted = LeaseMessages(
        subscription=subscription, count=_BATCH, max_bytes=_BATCH * SIZE, visibility_ms=_VISIBILITY_MS
    )
    leased = await queue.ask(wanted)
    if not leased:  # What was published is looked through a part at a time.
        await asyncio.sleep(0)
        return 0
    ids = [decode_ack_id(subscription, each.ack_id) for each in leased]
    targets = tuple(Target(each.offset, (each.incarnation, each.number)) for each in ids if each is not None)
    refused = [each for each in await queue.ask(Acknowledge(subscription=subscription, targets=targets)) if each]
    if refused:
        raise refused[0]
    return len(targets)
