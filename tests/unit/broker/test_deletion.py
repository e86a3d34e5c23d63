"""Topics are created and deleted during failures and other requests: all of the change happens, or nothing."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from conveyor.broker.produce.outgoing_message import OutgoingMessage
from conveyor.cluster import topic_decisions
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ports import StoreOperation
from conveyor.log.log import Log
from conveyor.queues.subscription.policy import StartPosition
from conveyor.schedules.definition import Schedule
from conveyor.testing import MemoryDisk
from conveyor.testing.memory_store import MemoryStore
from tests.callers import CALLER
from tests.unit.broker.parts import Storage, running_parts

EARLIEST = StartPosition(kind="earliest")
TOPIC = TopicRequest(name="t", partitions=2)
MESSAGE = OutgoingMessage(b"payload", partition=0)


class FailingDisk(MemoryDisk):
    """Fails one kind of operation on directories. While `hold_removals` is set, a removal waits for `release`."""

    refused = ""

    def __init__(self) -> None:
        super().__init__()
        self.is_removing = Event()
        self._released = Event()
        self._released.set()

    def hold_removals(self) -> None:
        self._released.clear()

    def release(self) -> None:
        self._released.set()

    def rename(self, old: str, new: str) -> None:
        if self.refused == "rename" and new.endswith(".deleted"):
            raise StorageFailure("the disk is failing")
        super().rename(old, new)

    def remove_tree(self, path: str) -> None:
        self.is_removing.set()
        assert self._released.wait(20), "the disk was not released"
        if self.refused == "remove_tree":
            raise StorageFailure("the disk is failing")
        super().remove_tree(path)


class FailingStore(MemoryStore):
    """Commits nothing while `is_away` is set. While `hold_commits` is set, a commit is answered after `release`."""

    is_away = False

    def __init__(self) -> None:
        super().__init__()
        self.has_committed = asyncio.Event()
        self._released = asyncio.Event()
        self._released.set()

    def hold_commits(self) -> None:
        self.has_committed.clear()
        self._released.clear()

    def release(self) -> None:
        self._released.set()

    async def commit(self, *operations: StoreOperation) -> tuple[int, ...] | None:
        if self.is_away:
            raise StorageFailure("the store is away")
        written = await super().commit(*operations)
        self.has_committed.set()
        await self._released.wait()
        return written


class FailingStorage(Storage):
    """Storage whose disk and store fail on request."""

    def __init__(self) -> None:
        super().__init__()
        self.failing_disk, self.failing_store = FailingDisk(), FailingStore()
        self.disk, self.store = self.failing_disk, self.failing_store


@pytest.mark.parametrize("operation", ["rename", "remove_tree"])
async def test_topic_is_deleted_though_its_directories_stay(operation: str) -> None:
    storage = FailingStorage()
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TOPIC)
        await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
        storage.failing_disk.refused = operation
        await broker.topics.delete(CALLER, "t")
        assert (
            broker.cluster.subscriptions.all(),
            len(broker.partitions.table),
            list(broker.metadata.image.topics),
        ) == ([], 0, [])
    async with running_parts(storage=storage) as broker:  # The disk still fails.
        storage.failing_disk.refused = ""
        await broker.topics.create(CALLER, TOPIC)
        assert broker.partitions.table.offline() == {}


async def test_topic_that_the_store_does_not_delete_stays_with_its_queues() -> None:
    storage = FailingStorage()
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TOPIC)
        await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
        storage.failing_store.is_away = True
        with pytest.raises(RequestError) as refused:
            await broker.topics.delete(CALLER, "t")
        assert refused.value.kind is ErrorKind.METADATA_UNAVAILABLE
        await broker.produce.messages.publish(CALLER, "t", [MESSAGE])
        assert [lease.message.value for lease in await broker.queues.leases.lease(CALLER, "s", 1, 0, None)] == [
            b"payload"
        ]


async def test_deletion_is_one_change_with_all_that_goes_with_the_topic() -> None:
    async with running_parts() as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t"))
        await broker.topics.create(CALLER, TopicRequest(name="other"))
        await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
        await broker.schedules.add(CALLER, Schedule(name="daily", topic="t", cron="0 0 * * *"))
        before = broker.metadata.image.seq
        await broker.topics.delete(CALLER, "t")
        image = broker.metadata.image
        assert (image.seq, list(image.topics)) == (before + 1, ["other"])
        assert (dict(image.subscriptions), dict(image.schedules)) == ({}, {})
        assert [str(partition.identity) for partition in broker.partitions.table] == ["other-0"]


async def test_deletion_takes_as_many_changes_as_the_dependents_of_the_topic_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topic_decisions, "MOST_DEPENDENTS", 2)
    async with running_parts() as broker:
        await broker.topics.create(CALLER, TOPIC)
        for number in range(5):
            await broker.queues.lifecycle.create(CALLER, "t", f"s-{number}", EARLIEST, {})
        before = broker.metadata.image.seq
        await broker.topics.delete(CALLER, "t")
        image = broker.metadata.image
        assert (image.seq, list(image.topics), dict(image.subscriptions)) == (before + 3, [], {})
        assert len(broker.partitions.table) == 0


async def test_queues_that_are_loaded_while_their_topic_is_deleted_leave_no_companion() -> None:
    storage = FailingStorage()
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TOPIC)
        await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
        await broker.queues.lifecycle.delete(CALLER, "s")
        storage.failing_disk.hold_removals()
        deletion = asyncio.ensure_future(broker.topics.delete(CALLER, "t"))
        await asyncio.to_thread(storage.failing_disk.is_removing.wait, 20)
        with pytest.raises(RequestError) as refused:
            await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
        assert refused.value.kind is ErrorKind.UNKNOWN_TOPIC
        storage.failing_disk.release()
        await deletion
        assert (list(broker.metadata.image.topics), len(broker.partitions.table)) == ([], 0)


async def test_companion_that_is_being_made_is_deleted_with_its_topic() -> None:
    storage = FailingStorage()
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TOPIC)
        storage.failing_store.hold_commits()
        subscribing = asyncio.ensure_future(broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {}))
        await storage.failing_store.has_committed.wait()
        deletion = asyncio.ensure_future(broker.topics.delete(CALLER, "t"))
        await asyncio.sleep(0)
        storage.failing_store.release()
        await deletion
        with pytest.raises(RequestError):
            await subscribing
        assert (list(broker.metadata.image.topics), len(broker.partitions.table)) == ([], 0)


async def test_topic_is_made_though_nobody_waits_for_it_any_more() -> None:
    storage = FailingStorage()
    async with running_parts(storage=storage) as broker:
        storage.failing_store.hold_commits()
        creation = asyncio.ensure_future(broker.topics.create(CALLER, TOPIC))
        await storage.failing_store.has_committed.wait()
        creation.cancel()
        await asyncio.wait([creation])
        storage.failing_store.release()
        assert (await broker.topics.ensure(CALLER, TOPIC)).name == "t"
        await broker.produce.messages.publish(CALLER, "t", [MESSAGE])


async def test_topic_that_is_deleted_while_it_is_made_is_gone() -> None:
    storage = FailingStorage()
    async with running_parts(storage=storage) as broker:
        storage.failing_store.hold_commits()
        creation = asyncio.ensure_future(broker.topics.create(CALLER, TOPIC))
        seen = asyncio.Event()
        broker.metadata.listen(lambda old, new: seen.set())  # noqa: ARG005
        storage.failing_store.release()
        await seen.wait()
        await broker.topics.delete(CALLER, "t")
        assert (await creation).name == "t"
        assert (list(broker.metadata.image.topics), len(broker.partitions.table)) == ([], 0)
        assert storage.disk.list("logs") == []


async def test_partitions_may_be_removed_while_a_broker_seals_its_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stop seals in threads, and a deletion that was begun before ends on the event loop."""
    async with running_parts() as broker:
        await broker.topics.create(CALLER, TopicRequest(name="gone", partitions=3))
        removed = [partition.identity for partition in broker.partitions.table if partition.identity.topic == "gone"]
        close = Log.close

        def close_and_remove(log: Log) -> None:
            close(log)
            for identity in removed:
                broker.partitions.table.remove(identity)

        with monkeypatch.context() as patched:
            patched.setattr(Log, "close", close_and_remove)
            with ThreadPoolExecutor(2) as threads:
                assert await broker.partitions.table.seal(threads)
