"""Batches that come before an earlier one of their producer wait for it, and not for longer than it may take."""

import asyncio
from collections.abc import Mapping, Sequence
from unittest.mock import Mock

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.produce import early_batches
from conveyor.broker.produce.publisher import ACKS_ALL, Published
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import LeaderEpoch, NodeId
from conveyor.records.checked_batch import own_batch
from conveyor.records.record import encode_batch
from conveyor.replication.leader_term import LeaderTerm
from conveyor.replication.roles import Leader
from tests.callers import CALLER
from tests.unit.broker.parts import NOW_MS, Storage, publish, running_parts
from tests.unit.broker.two_brokers import ONE, TWO, two_brokers

EARLY, GAP = ErrorKind.NOT_ENOUGH_REPLICAS, ErrorKind.OUT_OF_ORDER_SEQUENCE
STAGES = pytest.mark.parametrize("config", [{}, {"dedup.enable": "true"}], ids=["plain", "inspected"])


async def create(
    broker: BrokerNode, config: Mapping[str, str] | None = None, *, refuses: ErrorKind | None = EARLY
) -> None:
    """Create a topic, whose partition refuses the first batch for a reason."""
    await broker.topics.create(CALLER, TopicRequest(name="one", partitions=1, config=config or {}))
    if refuses is None:
        return
    with pytest.MonkeyPatch.context() as refusing:
        refusing.setattr(LeaderTerm, "check_replicas", Mock(side_effect=RequestError(refuses, "")))
        assert await send(broker, 0, producer=99) is refuses


async def send(
    broker: BrokerNode, sequence: int, count: int = 1, *, producer: int = 1, epoch: int = 0, topic: str = "one"
) -> ErrorKind | None:
    """Publish a batch of an idempotent producer. Returns why it is refused."""
    batch = encode_batch(
        [(NOW_MS, None, b"v", ())] * count, producer_id=producer, producer_epoch=epoch, base_sequence=sequence
    )
    done: asyncio.Future[Sequence[Published]] = asyncio.get_running_loop().create_future()
    broker.produce.publisher.publish(CALLER, [(topic, 0, batch)], ACKS_ALL, done.set_result)
    [result] = await done
    return None if result.error is None else result.error.kind


async def send_for(broker: BrokerNode, storage: Storage, seconds: int, sequence: int) -> list[ErrorKind | None]:
    """Send a batch once a second, and once more."""
    answers = []
    for _ in range(seconds):
        answers.append(await send(broker, sequence))
        storage.clock.advance(seconds=1)
    return [*answers, await send(broker, sequence)]


@pytest.mark.parametrize("refuses", [None, ErrorKind.INVALID_RECORD])
async def test_nothing_can_be_on_its_way_to_the_first_leader_that_has_refused_nothing_for_a_while(
    broker: BrokerNode, refuses: ErrorKind | None
) -> None:
    await create(broker, refuses=refuses)
    assert [await send(broker, sequence) for sequence in (7, 9)] == [None, GAP]


@pytest.mark.parametrize("refuses", [ErrorKind.CORRUPT_BATCH, ErrorKind.MESSAGE_TOO_LARGE, ErrorKind.UNKNOWN_TOPIC])
async def test_batch_waits_for_one_that_its_producer_repeats_or_divides(broker: BrokerNode, refuses: ErrorKind) -> None:
    await create(broker, refuses=refuses)
    assert [await send(broker, sequence) for sequence in (1, 0, 1)] == [EARLY, None, None]


@pytest.mark.parametrize(("replicas", "refused"), [((NodeId(1),), GAP), ((NodeId(1), NodeId(2)), EARLY)])
async def test_batches_may_be_on_their_way_from_the_leader_before(
    broker: BrokerNode, replicas: tuple[NodeId, ...], refused: ErrorKind
) -> None:
    """A broker that has led the partition alone, and is started again, is sent the batches in order again."""
    await create(broker, refuses=None)
    assert await send(broker, 0) is None
    role = Leader(leader=NodeId(1), epoch=LeaderEpoch(1), isr=(NodeId(1),), replicas=replicas)
    broker.partitions.table.find("one", 0).assume(role)
    assert await send(broker, 2) is refused


async def test_all_may_have_refused_batches_once_too_many_have(
    broker: BrokerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early_batches, "_MAX_PARTITIONS", 0)
    await create(broker, refuses=None)
    await publish(broker, ("nothing", 0))
    assert await send(broker, 7) is EARLY


@pytest.mark.parametrize("topic", ["one", ""], ids=["by name", "by id"])
async def test_batch_may_be_on_its_way_that_came_before_the_topic(broker: BrokerNode, topic: str) -> None:
    """A client may know of the topic first, and a broker of its leadership before it has opened the log. A topic whose
    id is not known has no name.
    """
    assert await send(broker, 0, topic=topic) is ErrorKind.UNKNOWN_TOPIC
    await create(broker, refuses=None)
    assert [await send(broker, sequence) for sequence in (1, 0, 1)] == [EARLY, None, None]


async def test_batch_may_be_on_its_way_from_the_broker_that_had_the_only_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with two_brokers() as brokers:
        monkeypatch.setattr(brokers.one.produce.publisher._early_batches, "_is_alone", False)
        await brokers.create("one", TWO)
        await brokers.move("one", 0, ONE)
        assert await send(brokers.one, 1) is EARLY


@STAGES
async def test_first_batch_of_a_producer_is_not_overtaken(broker: BrokerNode, config: Mapping[str, str]) -> None:
    await create(broker, config)
    assert await send(broker, 1) is EARLY
    assert [await send(broker, sequence) for sequence in (0, 1)] == [None, None]


@STAGES
async def test_batch_behind_a_gap_waits_for_the_earlier_one(broker: BrokerNode, config: Mapping[str, str]) -> None:
    await create(broker, config)
    assert [await send(broker, sequence) for sequence in (0, 2, 3, 1, 2, 3)] == [None, EARLY, EARLY, None, None, None]


async def test_newer_epoch_waits_for_its_first_batch(broker: BrokerNode) -> None:
    await create(broker)
    assert [await send(broker, 0), await send(broker, 1, epoch=1)] == [None, EARLY]
    assert [await send(broker, sequence, epoch=1) for sequence in (0, 1)] == [None, None]


async def test_gap_that_stays_is_out_of_order(broker: BrokerNode, storage: Storage) -> None:
    await create(broker)
    assert await send(broker, 0) is None
    assert await send_for(broker, storage, 5, sequence=2) == [*[EARLY] * 5, GAP]


async def test_gap_behind_an_earlier_one_has_a_wait_of_its_own(broker: BrokerNode, storage: Storage) -> None:
    await create(broker)
    assert [await send(broker, sequence) for sequence in (0, 2, 1, 2)] == [None, EARLY, None, None]
    assert await send_for(broker, storage, 5, sequence=9) == [*[EARLY] * 5, GAP]


async def test_forgotten_producer_continues_after_a_while(broker: BrokerNode, storage: Storage) -> None:
    await create(broker)
    assert await send_for(broker, storage, 5, sequence=7) == [*[EARLY] * 5, None]
    assert await send(broker, 8) is None


async def test_only_the_earliest_batch_is_waited_for(broker: BrokerNode, storage: Storage) -> None:
    """Otherwise the one behind it could come just after the end of the wait, and overtake it."""
    await create(broker)
    for _ in range(5):
        assert [await send(broker, sequence) for sequence in (7, 8)] == [EARLY, EARLY]
        storage.clock.advance(seconds=1)
    assert [await send(broker, sequence) for sequence in (8, 7, 8)] == [EARLY, None, None]


async def test_wait_begins_again_with_an_earlier_batch_or_after_a_pause(broker: BrokerNode, storage: Storage) -> None:
    await create(broker)
    await send_for(broker, storage, 4, sequence=7)
    storage.clock.advance(seconds=1)
    assert [await send(broker, sequence) for sequence in (6, 7)] == [EARLY, EARLY]
    storage.clock.advance(seconds=31)
    assert await send(broker, 6) is EARLY


async def test_client_may_send_a_batch_again_as_rarely_as_it_wants(broker: BrokerNode, storage: Storage) -> None:
    """Its backoff may be long, or a quota throttles it."""
    await create(broker)
    assert await send(broker, 7) is EARLY
    storage.clock.advance(seconds=20)
    assert await send(broker, 7) is None


async def test_late_and_repeated_batches_do_not_wait(broker: BrokerNode) -> None:
    await create(broker)
    assert [await send(broker, sequence, 2) for sequence in (0, 2, 4)] == [None, None, None]
    assert [await send(broker, sequence, 2) for sequence in (0, 2)] == [None, None]
    assert await send(broker, 0, 1) is GAP


async def test_only_so_many_producers_are_remembered(
    broker: BrokerNode, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early_batches, "_MAX_PRODUCERS", 1)
    await create(broker)
    await send_for(broker, storage, 4, sequence=7)
    assert await send(broker, 7, producer=2) is EARLY
    storage.clock.advance(seconds=1)
    assert await send(broker, 7) is EARLY, "its wait begins again"


@pytest.mark.parametrize("sequence", [0, 1])
async def test_batch_behind_one_that_the_disk_has_refused_waits(sequence: int) -> None:
    """The log is opened again without the batch, whose producer may have sent the next one already."""
    storage = Storage()
    async with running_parts(storage=storage) as broker:
        await create(broker, refuses=None)
        for stored in range(sequence):
            assert await send(broker, stored) is None
        storage.disk.faults.free_bytes = 0
        assert await send(broker, sequence) is ErrorKind.PARTITION_OFFLINE
        storage.disk.faults.heal()
        storage.clock.advance(seconds=60)
        answer: ErrorKind | None = ErrorKind.DISK_FULL
        while answer in (ErrorKind.DISK_FULL, ErrorKind.PARTITION_OFFLINE):
            await asyncio.sleep(0.001)
            answer = await send(broker, sequence + 1)
        assert answer is EARLY
        assert [await send(broker, sent) for sent in (sequence, sequence + 1)] == [None, None]


async def test_batch_behind_one_that_waits_for_a_log_before_it_is_opened_again_waits() -> None:
    """The earlier batch is being unpacked, and is refused only later."""
    storage = Storage()
    async with running_parts(storage=storage) as broker:
        await create(broker, {"dedup.enable": "true"}, refuses=None)
        assert await send(broker, 0, producer=2) is None
        before, room = broker.partitions.table.find("one", 0), broker.produce.publisher._inspected_appends._room
        async with room, room:  # Other batches are unpacked.
            first = asyncio.create_task(send(broker, 0, count=2_000))
            while not room._waiters:
                await broker.partitions.tick.end()
            storage.disk.faults.free_bytes = 0
            before.append(own_batch(encode_batch([(NOW_MS, None, b"marker", ())])), NOW_MS)
            await broker.partitions.tick.end()
            storage.disk.faults.heal()
            storage.clock.advance(seconds=60)
            while broker.partitions.table.find("one", 0) is before:
                await broker.partitions.tick.end()
            assert await send(broker, 2_000) is EARLY
        assert await first is ErrorKind.PARTITION_OFFLINE
        assert [await send(broker, 0, count=2_000), await send(broker, 2_000)] == [None, None]
