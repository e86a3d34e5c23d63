"""Showing dead letters reads only the copies of current ones, wherever they are."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.fetch import fetcher
from conveyor.broker.produce.outgoing_message import OutgoingMessage
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ports import FileSlice
from conveyor.queues.subscription.policy import StartPosition
from conveyor.replication.partition import Partition
from conveyor.replication.reads import read_available
from tests.callers import CALLER, answer_of
from tests.unit.broker.parts import Storage, running_parts

EARLIEST = StartPosition(kind="earliest")
HISTORY = 2_000


@pytest.fixture
async def broker(storage: Storage) -> AsyncIterator[BrokerNode]:
    """A broker with a topic and its subscription, and another subscription that shares the dead-letter topic."""
    async with running_parts(storage=storage) as running:
        for name in ("t", "u"):
            await running.topics.create(CALLER, TopicRequest(name=name, partitions=1))
            await running.queues.lifecycle.create(CALLER, name, f"of-{name}", EARLIEST, {"dead_letter_topic": "dlq"})
        yield running


async def reject(broker: BrokerNode, count: int, topic: str = "t", key: bytes | None = None) -> None:
    """Turn `count` messages into dead letters."""
    before = (await broker.queues.statistics.stats(CALLER, f"of-{topic}")).dead
    await broker.produce.messages.publish(
        CALLER, topic, [OutgoingMessage(b"%d" % number, key) for number in range(count)]
    )
    await reject_what_there_is(broker, count, topic)
    await dead(broker, before + count, topic)


async def reject_what_there_is(broker: BrokerNode, count: int, topic: str = "t") -> None:
    rejected = 0
    while rejected < count:
        leases = await broker.queues.leases.lease(CALLER, f"of-{topic}", count, 0, None)
        await answer_of(
            broker.queues.settlements.reject, CALLER, f"of-{topic}", [lease.ack_id for lease in leases], "no stock"
        )
        rejected += len(leases)
        await asyncio.sleep(0)


async def dead(broker: BrokerNode, count: int, topic: str = "t") -> None:
    """Wait until there are `count` dead letters."""
    result = -1
    async with asyncio.timeout(30):
        while result != count:
            await asyncio.sleep(0)
            result = (await broker.queues.statistics.stats(CALLER, f"of-{topic}")).dead


async def shown(broker: BrokerNode, limit: int = 100_000) -> list[str]:
    """Return the ids of a page's originals."""
    page = await broker.queues.dead_letters.peek(CALLER, "of-t", limit)
    return [letter.message.message_id for letter in page.letters]


class Reads:
    """Counts the reads of the dead-letter topic and their bytes."""

    def __init__(self, broker: BrokerNode, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = self.bytes = 0
        dead_letters = broker.partitions.table.find("dlq", 0)

        def counted(partition: Partition, offset: int, max_bytes: int, *, at_least_one: bool) -> FileSlice | None:
            result = read_available(partition, offset, max_bytes, at_least_one=at_least_one)
            if partition is dead_letters:
                self.count += 1
                self.bytes += 0 if result is None else result.length
            return result

        monkeypatch.setattr(fetcher, "read_available", counted)


@pytest.mark.slow
@pytest.mark.parametrize("gone_by", ["drop", "redrive"])
async def test_page_costs_the_same_whatever_died_before(
    broker: BrokerNode, monkeypatch: pytest.MonkeyPatch, gone_by: str
) -> None:
    """Only the first and the last letters remain; another subscription's letters follow."""
    await reject(broker, 5)
    costs = []
    for history in (100, HISTORY):
        await reject(broker, history)
        await reject(broker, history, "u")
        await reject(broker, 5)
        ids = await shown(broker)
        if gone_by == "drop":
            await broker.queues.dead_letters.redrive.drop(CALLER, "of-t", message_ids=ids[5:-5])
        else:
            await broker.queues.dead_letters.redrive.redrive(CALLER, "of-t", message_ids=ids[5:-5])
        await reject(broker, history, "u")
        reads = Reads(broker, monkeypatch)
        assert await shown(broker, limit=10) == ids[:5] + ids[-5:]
        result = await broker.queues.dead_letters.peek(CALLER, "of-t", 10, filter="payload == 'none'")
        assert (result.letters, result.without_copy) == ([], 0)
        assert await broker.queues.dead_letters.redrive.drop(CALLER, "of-t", filter="payload == 'none'") == 0
        assert await broker.queues.dead_letters.redrive.redrive(CALLER, "of-t", filter="payload == 'none'") == 0
        costs.append((reads.count, reads.bytes))
        await broker.queues.dead_letters.redrive.drop(CALLER, "of-t", message_ids=ids[-5:])
        for topic in ("t", "u"):
            for lease in await broker.queues.leases.lease(CALLER, f"of-{topic}", 10_000, 0, None):
                await answer_of(broker.queues.settlements.ack, CALLER, f"of-{topic}", [lease.ack_id])
    assert all(count <= 4 * 10 for count, _ in costs)  # Up to four reads, of at most one batch per letter.
    assert costs[1][1] <= 1.5 * costs[0][1]


async def test_redrive_of_originals_reads_no_copies(broker: BrokerNode, monkeypatch: pytest.MonkeyPatch) -> None:
    await reject(broker, 1_200)
    reads = Reads(broker, monkeypatch)
    assert (
        await broker.queues.dead_letters.redrive.redrive(CALLER, "of-t", message_ids=["0-7", "0-1199", "0-7", "0-5000"])
        == 2
    )
    assert await broker.queues.dead_letters.redrive.redrive(CALLER, "of-t") == 1_198
    assert reads.count == 0
    await dead(broker, 0)


async def test_pages_go_on_behind_the_last_one(broker: BrokerNode) -> None:
    await reject(broker, 250)
    await reject(broker, 30, "u")
    await reject(broker, 250)
    ids: list[str] = []
    after: str | None = None
    while page := (await broker.queues.dead_letters.peek(CALLER, "of-t", 70, after=after)).letters:
        ids += [letter.message.message_id for letter in page]
        after = page[-1].copy_id
    assert ids == [f"0-{offset}" for offset in range(500)]


async def test_letter_that_died_again_is_shown_once_as_it_died_last(broker: BrokerNode) -> None:
    await reject(broker, 3)
    await broker.queues.dead_letters.redrive.redrive(CALLER, "of-t", message_ids=["0-0"])
    [lease] = await broker.queues.leases.lease(CALLER, "of-t", 1, 0, None)
    await answer_of(broker.queues.settlements.reject, CALLER, "of-t", [lease.ack_id], "again")
    await dead(broker, 3)
    letters = (await broker.queues.dead_letters.peek(CALLER, "of-t", 10)).letters
    assert [(letter.message.message_id, letter.reason) for letter in letters] == [
        ("0-1", "no stock"),
        ("0-2", "no stock"),
        ("0-0", "again"),
    ]


@pytest.mark.parametrize("filter_", [None, "size >= 0"])
async def test_letters_that_die_again_while_others_are_redriven_are_not_redriven_twice(
    broker: BrokerNode, storage: Storage, filter_: str | None
) -> None:
    await reject(broker, 3)
    redriving = asyncio.ensure_future(
        broker.queues.dead_letters.redrive.redrive(CALLER, "of-t", rate=10, filter=filter_)
    )
    async with asyncio.timeout(30):
        while not redriving.done():
            storage.clock.advance(ms=100)
            await asyncio.sleep(0)
            leases = await broker.queues.leases.lease(CALLER, "of-t", 10, 0, None)
            await answer_of(
                broker.queues.settlements.reject, CALLER, "of-t", [lease.ack_id for lease in leases], "again"
            )
    assert redriving.result() == 3
    await dead(broker, 3)


async def test_copies_are_known_after_a_restart(storage: Storage, broker: BrokerNode) -> None:
    await reject(broker, 30)
    await broker.queues.dead_letters.redrive.drop(CALLER, "of-t", message_ids=["0-3", "0-4"])
    ids = await shown(broker)
    await broker.finish_requests()
    await broker.stop()
    async with running_parts(storage=storage) as again:
        assert await shown(again) == ids == [f"0-{offset}" for offset in range(30) if offset not in (3, 4)]
        page = await again.queues.dead_letters.peek(CALLER, "of-t", 5)
        assert [letter.copy_id for letter in page.letters] == ["0-0", "0-1", "0-2", "0-5", "0-6"]


async def test_second_copies_of_a_crash_are_not_shown(storage: Storage) -> None:
    """The broker stops after it writes the copies and before it records them."""
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=1))
        await broker.topics.create(CALLER, TopicRequest(name="dlq", partitions=1))
        await broker.queues.lifecycle.create(CALLER, "t", "of-t", EARLIEST, {"dead_letter_topic": "dlq"})
        await broker.produce.messages.publish(CALLER, "t", [OutgoingMessage(b"x")] * 2)
        copies, state = (broker.partitions.table.find(name, 0) for name in ("dlq", "__queue_state.t"))
        pulled_out = asyncio.Event()

        def pull_out(_: None) -> None:
            state.go_offline(StorageFailure("pulled out"))
            pulled_out.set()

        copies.changed.listen(pull_out)
        await reject_what_there_is(broker, 2)
        await asyncio.wait_for(pulled_out.wait(), 10)
    async with running_parts(storage=storage) as broker:
        await dead(broker, 2)
        assert len(await broker.fetch.browser.browse(CALLER, "dlq", 0, EARLIEST, 10)) == 4
        page = await broker.queues.dead_letters.peek(CALLER, "of-t", 10)
        assert [(letter.message.message_id, letter.copy_id) for letter in page.letters] == [
            ("0-0", "0-2"),
            ("0-1", "0-3"),
        ]
        assert page.without_copy == 0


async def test_copies_that_the_topic_has_let_go_are_passed_over(
    broker: BrokerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await reject(broker, HISTORY)
    copies = broker.partitions.table.find("dlq", 0)
    await broker.partitions.retention.trim(copies, HISTORY - 3)
    reads = Reads(broker, monkeypatch)
    page = await broker.queues.dead_letters.peek(CALLER, "of-t", 10)
    assert [letter.copy_id for letter in page.letters] == [f"0-{HISTORY - distance}" for distance in (3, 2, 1)]
    assert page.without_copy == HISTORY - 3
    assert reads.count <= 3
    assert await broker.queues.dead_letters.redrive.redrive(CALLER, "of-t") == HISTORY


async def test_copies_of_originals_that_are_gone_are_delivered(broker: BrokerNode) -> None:
    await reject(broker, 600)
    await broker.partitions.retention.trim(broker.partitions.table.find("t", 0), 550)
    assert await broker.queues.dead_letters.redrive.redrive(CALLER, "of-t", message_ids=["0-3", "0-560"]) == 2
    again = await broker.queues.leases.lease(CALLER, "of-t", 10, 0, None)
    assert sorted(lease.message.message_id for lease in again) == ["0-560", "0-600"]
    assert sorted(lease.message.value or b"" for lease in again) == [b"3", b"560"]
    assert await broker.queues.dead_letters.redrive.redrive(CALLER, "of-t") == 598
    await dead(broker, 0)


async def test_copies_in_a_topic_that_was_made_again_are_not_taken_for_those_of_the_first(broker: BrokerNode) -> None:
    await reject(broker, 3)
    await broker.topics.delete(CALLER, "dlq")
    await reject(broker, 2)
    page = await broker.queues.dead_letters.peek(CALLER, "of-t", 10)
    assert [letter.message.message_id for letter in page.letters] == ["0-3", "0-4"]
    assert page.without_copy == 3
    assert await broker.queues.dead_letters.redrive.redrive(CALLER, "of-t") == 5


async def test_letters_are_found_again_in_a_topic_that_takes_them_again(broker: BrokerNode) -> None:
    await reject(broker, 2)
    await broker.queues.lifecycle.change(CALLER, "of-t", {"dead_letter_topic": "other"})
    await reject(broker, 1)
    assert await shown(broker) == ["0-2"]
    await broker.queues.lifecycle.change(CALLER, "of-t", {"dead_letter_topic": "dlq"})
    assert await shown(broker) == ["0-0", "0-1"]


async def test_message_that_pretends_to_be_a_dead_letter_is_none(broker: BrokerNode) -> None:
    await reject(broker, 2)
    [copy, _] = await broker.fetch.browser.browse(CALLER, "dlq", 0, EARLIEST, 2)
    far = [(name, b"9" * 18 if name.endswith("partition") else value) for name, value in copy.headers]
    await broker.produce.messages.publish(
        CALLER, "dlq", [OutgoingMessage(b"false", headers=headers) for headers in (copy.headers, tuple(far))]
    )
    await reject(broker, 1)
    letters = (await broker.queues.dead_letters.peek(CALLER, "of-t", 10)).letters
    assert [(letter.message.message_id, letter.message.value) for letter in letters] == [
        ("0-0", b"0"),
        ("0-1", b"1"),
        ("0-2", b"0"),
    ]


async def test_compacted_topic_shows_what_it_has_left(broker: BrokerNode, storage: Storage) -> None:
    await broker.topics.create(
        CALLER, TopicRequest(name="few", config={"cleanup.policy": "compact", "segment.bytes": "1024"})
    )
    await broker.queues.lifecycle.change(CALLER, "of-t", {"dead_letter_topic": "few"})
    for _ in range(6):
        await reject(broker, 3, key=b"k")
    copies = broker.partitions.table.find("few", 0)
    kept = copies.term.high_watermark
    await compacted(broker, storage)
    page = await broker.queues.dead_letters.peek(CALLER, "of-t", 100)
    left = [message.message_id for message in await broker.fetch.browser.browse(CALLER, "few", 0, EARLIEST, 100)]
    assert [letter.copy_id for letter in page.letters] == left
    assert 0 < len(left) < kept
    assert page.without_copy == kept - len(left)
    assert await broker.queues.dead_letters.redrive.redrive(CALLER, "of-t") == kept


async def compacted(broker: BrokerNode, storage: Storage) -> None:
    """Compact the topic `few`, which then has fewer messages."""
    before = len(await broker.fetch.browser.browse(CALLER, "few", 0, EARLIEST, 100))
    async with asyncio.timeout(30):
        while len(await broker.fetch.browser.browse(CALLER, "few", 0, EARLIEST, 100)) == before:
            storage.clock.advance(seconds=20)
            await asyncio.sleep(0)


async def test_redrive_ends_with_its_subscription(broker: BrokerNode, storage: Storage) -> None:
    await reject(broker, 20)
    redriving = asyncio.ensure_future(
        broker.queues.dead_letters.redrive.redrive(CALLER, "of-t", rate=10, filter="size >= 0")
    )
    for _ in range(20):
        await asyncio.sleep(0)
    await broker.topics.delete(CALLER, "t")
    await broker.topics.create(CALLER, TopicRequest(name="t", partitions=1))
    await broker.queues.lifecycle.create(CALLER, "t", "of-t", EARLIEST, {"dead_letter_topic": "dlq"})
    async with asyncio.timeout(30):
        while not redriving.done():
            storage.clock.advance(seconds=1)
            await asyncio.sleep(0)
    with pytest.raises(RequestError) as refused:
        redriving.result()
    gone = (
        *(ErrorKind.UNKNOWN_SUBSCRIPTION, ErrorKind.UNKNOWN_TOPIC),
        *(ErrorKind.COORDINATOR_NOT_AVAILABLE, ErrorKind.REQUEST_TIMED_OUT),
    )
    assert refused.value.kind in gone
    assert await broker.fetch.browser.browse(CALLER, "t", 0, EARLIEST, 100) == []
