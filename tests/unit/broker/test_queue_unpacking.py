"""Queues on stored batches that are slow to decompress, or unreadable."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping
from functools import partial

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.coordinators import queue_partition
from conveyor.broker.produce.publisher import ACKS_ALL, Published
from conveyor.broker.queues.subscription_statistics import SubscriptionStats
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ports import Bytes, FileSlice
from conveyor.log.record_source import SourceBatch, unpack_batch
from conveyor.queues.queue_commands import LeasedMessage
from conveyor.queues.subscription.policy import StartPosition
from conveyor.records import compression
from conveyor.records.batch import BatchHeader
from conveyor.records.compression import Unpacked
from conveyor.replication.trimming import delete_records
from tests.callers import CALLER, answer_of
from tests.lying_batches import LIES, RawHeader, bomb, many_records, raw_record, sealed
from tests.unit.broker.markers.producers import until
from tests.unit.broker.parts import Storage, running_parts
from tests.unit.replication.parts import set_at_change

EARLIEST = StartPosition(kind="earliest")
LARGE = many_records(12_000, compression.ZSTD)
BROAD = sealed(b"".join(raw_record(delta, value=bytes(1 << 20)) for delta in range(3)), 3, codec=compression.LZ4)
LAST = sealed(raw_record(0, value=b"last"), 1)


async def produce(broker: BrokerNode, *batches: bytes, topic: str = "t") -> int:
    """Produce batches. Returns the offset of the last one."""
    done: asyncio.Future[list[Published]] = asyncio.get_running_loop().create_future()
    broker.produce.publisher.publish(
        CALLER, [(topic, 0, batch) for batch in batches], ACKS_ALL, lambda results: done.set_result([*results])
    )
    results = await done
    assert [result.error for result in results] == [None] * len(batches)
    return results[-1].base_offset


async def subscribe(broker: BrokerNode, name: str = "s", policy: Mapping[str, object] | None = None) -> None:
    await broker.queues.lifecycle.create(CALLER, "t", name, EARLIEST, policy or {})


async def drained(broker: BrokerNode, count: int, name: str = "s") -> list[int]:
    """Lease and acknowledge messages until there are `count`. Returns their offsets."""
    offsets: list[int] = []
    while len(offsets) < count:
        leased = await broker.queues.leases.lease(CALLER, name, 5_000, 20_000, None)
        offsets += [lease.message.offset for lease in leased]
        assert not any(await answer_of(broker.queues.settlements.ack, CALLER, name, [lease.ack_id for lease in leased]))
    return offsets


@pytest.mark.slow
@pytest.mark.parametrize("policy", [{}, {"fair_by": "group"}, {"ordering": "key"}], ids=["plain", "fair", "ordered"])
async def test_messages_of_large_batches_are_leased(broker: BrokerNode, policy: dict[str, object]) -> None:
    await subscribe(broker, policy=policy)
    last = await produce(broker, BROAD, LARGE[:], BROAD, LAST)
    count = 4 if policy.get("ordering") == "key" else last + 1
    assert await drained(broker, count) == list(range(count))


async def test_messages_of_large_batches_are_leased_after_a_restart(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=1))
        await subscribe(broker)
        await produce(broker, *[BROAD] * 4, LAST)
    async with running_parts(storage=storage) as broker:
        assert await drained(broker, 13) == list(range(13))


async def test_subscriptions_at_different_large_batches_both_go_on(broker: BrokerNode) -> None:
    await subscribe(broker, "s")
    await subscribe(broker, "other")
    await produce(broker, *[BROAD] * 6)
    both = tuple(await asyncio.gather(drained(broker, 18, "s"), drained(broker, 18, "other")))
    assert both == (list(range(18)), list(range(18)))


@pytest.mark.parametrize("policy", [{}, {"fair_by": "group"}, {"ordering": "key"}], ids=["plain", "fair", "ordered"])
async def test_batches_that_cannot_be_read_hold_no_messages(broker: BrokerNode, policy: dict[str, object]) -> None:
    await subscribe(broker, policy=policy)
    unreadable = [*LIES.values(), bomb(compression.ZSTD, 4 << 20), bomb(compression.SNAPPY, 4 << 20)]
    last = await produce(broker, *unreadable, LAST)
    await subscribe(broker, "later", policy)
    for name in ("s", "later"):
        while last not in await drained(broker, 1, name):  # A valid record may lie among invalid ones.
            pass
    assert not broker.partitions.table.offline()


async def test_subscription_made_on_batches_that_cannot_be_read_begins_behind_them(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=1))
        last = await produce(broker, *LIES.values(), LAST)
        await broker.queues.lifecycle.create(CALLER, "t", "s", StartPosition(kind="time", timestamp_ms=1), {})
        assert (await drained(broker, 1))[-1] <= last
    async with running_parts(storage=storage) as broker:
        await produce(broker, LAST)
        while last + 1 not in await drained(broker, 1):
            pass


async def test_lease_is_answered_while_the_broker_stops(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=1))
        await subscribe(broker)
        await produce(broker, *[BROAD] * 6)
        waiting = asyncio.ensure_future(broker.queues.leases.lease(CALLER, "s", 18, 20_000, None))
        await asyncio.sleep(0)
    with contextlib.suppress(RequestError):
        assert len(await asyncio.wait_for(waiting, 20)) < 18


async def test_batch_that_cannot_be_read_from_the_disk_is_said_to_whoever_wants_it(
    broker: BrokerNode, storage: Storage
) -> None:
    await subscribe(broker)
    await produce(broker, *[BROAD] * 12)
    await drained(broker, 3)
    storage.disk.faults.fail("read")
    with pytest.raises(RequestError) as refused:
        await drained(broker, 33)
    assert refused.value.kind is ErrorKind.PARTITION_OFFLINE


async def statistics(
    broker: BrokerNode, are_right: Callable[[SubscriptionStats], bool], wait: Callable[[], object] = lambda: None
) -> None:
    """Wait until the statistics of the subscription are right."""
    while not are_right(await broker.queues.statistics.stats(CALLER, "s")):
        wait()
        await asyncio.sleep(0)


@pytest.fixture
def unpacked_on_loop(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of compressed records that were decompressed on the event loop."""
    sizes: list[int] = []
    decompress, loop_thread = compression.decompress, threading.get_ident()

    def watched(codec: int, content: Bytes, limit_bytes: int = compression.MAX_UNPACKED_BYTES) -> Unpacked:
        unpacked = decompress(codec, content, limit_bytes)
        if codec != compression.NONE and threading.get_ident() == loop_thread:
            sizes.append(len(unpacked))
        return unpacked

    monkeypatch.setattr(compression, "decompress", watched)
    return sizes


async def test_large_batches_are_not_unpacked_on_the_event_loop_to_show_messages(
    broker: BrokerNode, unpacked_on_loop: list[int]
) -> None:
    last = await produce(broker, *[BROAD] * 4, LARGE, LAST)
    await subscribe(broker)
    inspection = broker.queues.inspection
    peeked = [*await inspection.peek(CALLER, "s", 7), *await inspection.peek(CALLER, "s", 20)]
    assert [found.message.offset for found in peeked] == [*range(7), *range(8)]
    states = await inspection.message_states(CALLER, "t", f"0-{last - 1}")
    assert states["s"].state == "available"
    with pytest.raises(RequestError) as refused:
        await broker.queues.delayed_messages.cancel(CALLER, "t", "0-4")
    assert refused.value.kind is ErrorKind.MESSAGE_NOT_DELAYED
    assert (await broker.fetch.browser.get(CALLER, "t", "0-4")).value == bytes(1 << 20)
    assert unpacked_on_loop == []


async def reject(broker: BrokerNode, count: int) -> None:
    """Reject this many messages, and wait until they are dead letters."""
    leased: list[LeasedMessage] = []
    while len(leased) < count:
        leased += await broker.queues.leases.lease(CALLER, "s", count, 20_000, None)
    await answer_of(broker.queues.settlements.reject, CALLER, "s", [lease.ack_id for lease in leased], "no stock")
    await statistics(broker, lambda stats: stats.dead == count)


async def test_large_batches_are_not_unpacked_on_the_event_loop_to_dead_letter_messages(
    broker: BrokerNode, unpacked_on_loop: list[int]
) -> None:
    await produce(broker, *[BROAD] * 4)
    await subscribe(broker)
    await reject(broker, 12)
    assert unpacked_on_loop == []


async def test_redrive_unpacks_each_large_batch_once(broker: BrokerNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are more than the cache holds. The first message is gone from its log, so its copy is redriven."""
    unpacked: list[int] = []

    def unpack(header: BatchHeader, place: FileSlice) -> SourceBatch:
        unpacked.append(header.base_offset)
        if len(unpacked) > 100:
            raise StorageFailure("batches are unpacked without end")
        return unpack_batch(header, place)

    await produce(broker, LAST, *[BROAD] * 4)
    await subscribe(broker)
    await reject(broker, 13)
    delete_records(broker.partitions.table.find("t", 0), 1).run()
    monkeypatch.setattr(queue_partition, "unpack_batch", unpack)
    assert await broker.queues.dead_letters.redrive.redrive(CALLER, "s") == 13
    assert unpacked == [1, 4, 7, 10]
    assert (await broker.queues.statistics.stats(CALLER, "s")).dead == 0


@pytest.mark.parametrize(
    ("headers", "policy"),
    [
        ([(b"conveyor-delay-ms", b"10000"), (b"conveyor-ttl-ms", b"10000")], {}),
        ([(b"conveyor-delay-ms", b"10000"), (b"group", b"blue")], {"fair_by": "group"}),
    ],
    ids=["overdue", "due"],
)
async def test_large_batches_are_not_unpacked_on_the_event_loop_at_deadlines(
    broker: BrokerNode,
    storage: Storage,
    unpacked_on_loop: list[int],
    headers: list[RawHeader],
    policy: dict[str, object],
) -> None:
    records = b"".join(raw_record(delta, value=bytes(1 << 20), headers=headers) for delta in range(3))
    await subscribe(broker, policy=policy)
    await produce(broker, *[sealed(records, 3, codec=compression.LZ4)] * 6)
    await statistics(broker, lambda stats: stats.delayed == 18)
    pass_time = partial(storage.clock.advance, ms=1_000)
    await statistics(broker, lambda stats: (stats.depth, stats.delayed) == (18 if policy else 0, 0), pass_time)
    assert unpacked_on_loop == []


async def test_large_batches_are_not_unpacked_on_the_event_loop_to_cancel_or_forward_messages(
    broker: BrokerNode, storage: Storage, unpacked_on_loop: list[int]
) -> None:
    await broker.topics.create(CALLER, TopicRequest(name="due", partitions=1))
    await broker.topics.create(CALLER, TopicRequest(name="d", config={"delay.target": "due"}))
    headers = [(b"conveyor-delay-ms", b"10000")]
    records = b"".join(raw_record(delta, value=bytes(1 << 18), headers=headers) for delta in range(3))
    await produce(broker, *[sealed(records, 3, codec=compression.LZ4)] * 3, topic="d")
    forwarder = await broker.coordinators.forwarders.loaded(broker.partitions.table.find("d", 0))
    await until(lambda: forwarder.machine.scanned_offset == 9)
    for offset in (1, 4, 8, 0):
        await broker.queues.delayed_messages.cancel(CALLER, "d", f"0-{offset}")
    storage.clock.advance(ms=10_000)
    target = broker.partitions.table.find("due", 0)
    while target.term.high_watermark < 5:
        risen = asyncio.Event()
        set_at_change(target, risen)
        await asyncio.wait_for(risen.wait(), 20)
    assert unpacked_on_loop == []
