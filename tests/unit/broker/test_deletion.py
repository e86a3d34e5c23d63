"""Topics that are deleted or made while something fails, or while others go on: all of it happens, or nothing."""

import asyncio
from threading import Event

import pytest

from conveyor.broker.produce.message_publisher import OutgoingMessage
from conveyor.cluster.image import INBOX, QUEUE_STATE, TOPICS_PATH, companion, topic_path
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ports import ANY_VERSION
from conveyor.queues.subscription.policy import Start
from conveyor.testing import MemoryDisk
from conveyor.testing.memory_store import MemoryStore
from tests.unit.broker.parts import Storage, running_parts

EARLIEST = Start(kind="earliest")
TOPIC = TopicRequest(name="t", partitions=2)
MESSAGE = OutgoingMessage(b"payload", partition=0)


class FailingDisk(MemoryDisk):
    """Fails one kind of operation on directories. While `hold_removals` is in force, a removal waits for `release`."""

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
        assert self._released.wait(20), "nobody has released the disk"
        if self.refused == "remove_tree":
            raise StorageFailure("the disk is failing")
        super().remove_tree(path)


class FailingStore(MemoryStore):
    """Deletes no node of a path that is set. While `hold_puts` is in force, a put is answered after `release`."""

    refused = ""

    def __init__(self) -> None:
        super().__init__()
        self.has_put = asyncio.Event()
        self._released = asyncio.Event()
        self._released.set()

    def hold_puts(self) -> None:
        self._released.clear()

    def release(self) -> None:
        self._released.set()

    async def put(self, path: str, value: bytes, version: int = ANY_VERSION, *, ephemeral: bool = False) -> int | None:
        written = await super().put(path, value, version, ephemeral=ephemeral)
        self.has_put.set()
        await self._released.wait()
        return written

    async def delete(self, path: str, version: int = ANY_VERSION) -> bool:
        if path == self.refused:
            raise StorageFailure("the store is away")
        return await super().delete(path, version)


class FailingStorage(Storage):
    """Storage whose disk and store fail when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.failing_disk, self.failing_store = FailingDisk(), FailingStore()
        self.disk, self.store = self.failing_disk, self.failing_store


@pytest.mark.parametrize("operation", ["rename", "remove_tree"])
async def test_topic_is_deleted_though_its_directories_stay(operation: str) -> None:
    storage = FailingStorage()
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(TOPIC)
        await broker.queues.create("t", "s", EARLIEST, {})
        storage.failing_disk.refused = operation
        await broker.topics.delete("t")
        assert (broker.queues.all(), len(broker.partitions), list(broker.topics.image.topics)) == ([], 0, [])
    async with running_parts(storage=storage) as broker:  # The disk is failing still.
        storage.failing_disk.refused = ""
        await broker.topics.create(TOPIC)
        assert broker.partitions.offline() == {}


async def test_topic_that_the_store_does_not_delete_stays_with_its_queues() -> None:
    storage = FailingStorage()
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(TOPIC)
        await broker.queues.create("t", "s", EARLIEST, {})
        storage.failing_store.refused = topic_path("t")
        with pytest.raises(RequestError) as refused:
            await broker.topics.delete("t")
        assert refused.value.kind is ErrorKind.METADATA_UNAVAILABLE
        await broker.messages.publish("t", [MESSAGE])
        assert [each.message.value for each in await broker.queues.lease("s", 1, 0, None)] == [b"payload"]


async def test_topic_of_the_same_name_has_queues_though_the_store_has_kept_a_companion() -> None:
    storage = FailingStorage()
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(TOPIC)
        await broker.queues.create("t", "s", EARLIEST, {})
        storage.failing_store.refused = topic_path(companion(QUEUE_STATE, "t"))
        await broker.topics.delete("t")
        await broker.topics.create(TOPIC)
        await broker.queues.create("t", "s", EARLIEST, {})
        await broker.messages.publish("t", [MESSAGE])
        assert len(await broker.queues.lease("s", 1, 0, None)) == 1


async def test_companion_without_its_topic_is_gone_after_a_restart() -> None:
    storage = FailingStorage()
    delayed = TopicRequest(name="t", config={"delay.enable": "true"})
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(delayed)
        storage.failing_store.refused = topic_path(companion(INBOX, "t"))
        await broker.topics.delete("t")
        storage.failing_store.refused = ""
    async with running_parts(storage=storage) as broker:
        assert list(broker.topics.image.topics) == []
        assert await storage.store.tree(TOPICS_PATH) == {}


async def test_queues_that_are_loaded_while_their_topic_is_deleted_leave_no_companion() -> None:
    storage = FailingStorage()
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(TOPIC)
        await broker.queues.create("t", "s", EARLIEST, {})
        await broker.queues.delete("s")
        storage.failing_disk.hold_removals()
        deletion = asyncio.ensure_future(broker.topics.delete("t"))
        await asyncio.to_thread(storage.failing_disk.is_removing.wait, 20)
        with pytest.raises(RequestError) as refused:
            await broker.queues.create("t", "s", EARLIEST, {})
        assert refused.value.kind is ErrorKind.UNKNOWN_TOPIC
        storage.failing_disk.release()
        await deletion
        assert (list(broker.topics.image.topics), await storage.store.tree(TOPICS_PATH)) == ([], {})


async def test_companion_that_is_being_made_is_deleted_with_its_topic() -> None:
    storage = FailingStorage()
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(TOPIC)
        storage.failing_store.has_put.clear()
        storage.failing_store.hold_puts()
        subscribing = asyncio.ensure_future(broker.queues.create("t", "s", EARLIEST, {}))
        await storage.failing_store.has_put.wait()
        deletion = asyncio.ensure_future(broker.topics.delete("t"))
        await asyncio.sleep(0)
        storage.failing_store.release()
        await deletion
        with pytest.raises(RequestError):
            await subscribing
        assert (list(broker.topics.image.topics), await storage.store.tree(TOPICS_PATH)) == ([], {})


async def test_topic_is_made_though_nobody_waits_for_it_any_more() -> None:
    storage = FailingStorage()
    async with running_parts(storage=storage) as broker:
        storage.failing_store.has_put.clear()
        storage.failing_store.hold_puts()
        creation = asyncio.ensure_future(broker.topics.create(TOPIC))
        await storage.failing_store.has_put.wait()
        creation.cancel()
        await asyncio.wait([creation])
        storage.failing_store.release()
        assert (await broker.topics.ensure(TOPIC)).name == "t"
        await broker.messages.publish("t", [MESSAGE])
