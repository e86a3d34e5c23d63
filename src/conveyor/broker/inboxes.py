"""The inboxes of topics with `delay.enable`, and the forwarders that empty them.

An inbox is made with its topic, or when the topic's setting is turned on, before anybody is told so; from then on all
that is published to the topic goes there. It stays when the setting is turned off: what waits is still forwarded when
it is due, and everything else goes on at once, by the same way, so that the sequences of idempotent producers hold.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from conveyor.broker.inbox_partition import InboxPartition, Scan, load_inbox
from conveyor.broker.partitions import PartitionTable
from conveyor.broker.tasks import Tasks
from conveyor.cluster.image import TopicImage
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ids import TopicPartition
from conveyor.kernel.ports import Clock
from conveyor.queues.cache_share import CacheShare
from conveyor.queues.forwarding_scan import DueRun
from conveyor.queues.message import Message
from conveyor.replication.partition import Partition


class Inboxes:
    """See the module's docstring."""

    def __init__(
        self, *, partitions: PartitionTable, clock: Clock, threads: Executor, tasks: Tasks, cache: CacheShare
    ) -> None:
        self._cache = cache
        self._clock = clock
        self._threads = threads
        self._tasks = tasks
        self._loaded: dict[tuple[str, int], InboxPartition] = {}
        self._loading: dict[tuple[str, int], asyncio.Event] = {}
        self._partitions = partitions
        self._is_stopped = False

    async def cancel(self, topic: str, number: int, offset: int) -> None:
        """Never forward a message that waits in an inbox. It is safe when this returns.

        Raises RequestError: UNKNOWN_TOPIC, UNKNOWN_MESSAGE, MESSAGE_NOT_DELAYED, PARTITION_OFFLINE.
        """
        inbox = await self._find(topic, number)
        if inbox is None:
            raise RequestError(ErrorKind.UNKNOWN_MESSAGE, f"{topic}-{number} has no inbox: no message waits there")
        done: asyncio.Future[RequestError | None] = asyncio.get_running_loop().create_future()
        inbox.cancel(offset, lambda error: None if done.done() else done.set_result(error))
        error = await done
        if error is not None:
            raise error

    async def get(self, topic: str, number: int, offset: int) -> Message | None:
        """A message that waits in an inbox; None if none does there. Raises RequestError."""
        inbox = await self._find(topic, number)
        message = None if inbox is None else inbox.waiting(offset)
        if message is None:
            return None
        return Message(
            topic, number, offset, message.timestamp_ms, message.key, message.value, message.headers, is_waiting=True
        )

    async def topic_deleted(self, topic: TopicImage) -> None:
        """Forward nothing more to a topic that was deleted; another may have its name by now."""
        for number in range(len(topic.partitions)):
            identity = TopicPartition(topic.name, number)
            loaded = self._loaded.get(identity)
            if loaded is not None and not self._partitions.serves(loaded.topic):
                del self._loaded[identity]
                loaded.stop()

    def stop(self) -> None:
        """Forward nothing more; the next start goes on."""
        self._is_stopped = True
        for each in self._loaded.values():
            each.stop()

    def add(self, topic: Partition) -> None:
        """A partition has got an inbox: read it, and forward from it."""
        loaded = self._loading[topic.identity] = asyncio.Event()
        self._tasks.start(self._load(topic, loaded))

    async def _load(self, topic: Partition, loaded: asyncio.Event) -> None:
        """A partition whose inbox cannot be read has it offline, and says so."""
        inbox, loop = topic.inbox, asyncio.get_running_loop()
        assert inbox is not None
        try:
            made = await loop.run_in_executor(self._threads, load_inbox, topic, inbox, self._clock)
            if not self._is_stopped and topic.offline_reason is None and self._partitions.serves(topic):
                self._loaded[topic.identity] = made
                made.start(loop.call_soon, self._off_loop, self._cache)
        except StorageFailure as failure:
            inbox.failed_read(failure)
        finally:
            if self._loading.get(topic.identity) is loaded:  # Else the name has another partition.
                del self._loading[topic.identity]
            loaded.set()

    def _off_loop(self, scan: Scan, done: Callable[[list[DueRun] | StorageFailure], None]) -> None:
        running = asyncio.get_running_loop().run_in_executor(self._threads, scan)
        self._tasks.start(_call_back(running, done))

    async def _find(self, topic: str, number: int) -> InboxPartition | None:
        """None if there is no inbox. Raises RequestError."""
        partition = self._partitions.find(topic, number)
        partition.check_online()
        if partition.inbox is None:
            return None
        if (loading := self._loading.get(partition.identity)) is not None:
            await loading.wait()
        partition.inbox.check_online()
        loaded = self._loaded.get(partition.identity)
        return loaded if loaded is not None and loaded.topic is partition else None


async def _call_back(
    running: asyncio.Future[list[DueRun] | StorageFailure], done: Callable[[list[DueRun] | StorageFailure], None]
) -> None:
    done(await running)
