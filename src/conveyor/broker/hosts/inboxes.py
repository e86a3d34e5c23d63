"""The inboxes of topics with `delay.enable`, and the forwarders that empty them.

An inbox is made with its topic, or when the topic's setting is turned on, before anybody is told so; from then on all
that is published to the topic goes there. It stays when the setting is turned off: what waits is still forwarded when
it is due, and everything else goes on at once, by the same way, so that the sequences of idempotent producers hold.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial

from conveyor.broker.hosts.inbox_partition import InboxPartition, Scan, load_inbox
from conveyor.broker.partitions.disk_room import DiskRoom
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.tasks import Tasks
from conveyor.cluster.image import TopicImage
from conveyor.delay.forwarding_scan import DueRun
from conveyor.kernel.errors import ErrorKind, OutOfFiles, RequestError, StorageFailure
from conveyor.kernel.ids import TopicPartition
from conveyor.kernel.ports import Clock
from conveyor.log.cache_share import CacheShare
from conveyor.records.message import Message
from conveyor.replication.partition import Partition

log = logging.getLogger(__name__)

_RETRY_MS = 1_000


class Inboxes:
    """See the module's docstring."""

    def __init__(
        self,
        *,
        partitions: PartitionTable,
        room: DiskRoom,
        clock: Clock,
        threads: Executor,
        tasks: Tasks,
        cache: CacheShare,
    ) -> None:
        self._cache = cache
        self._room = room
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

    def resume(self) -> None:
        """There is room on the disk again for what is due."""
        for each in self._loaded.values():
            each.resume()

    def add(self, topic: Partition) -> None:
        """A partition has got an inbox, or either of the two is another one now: read it, and forward from it."""
        before = self._loaded.pop(topic.identity, None)
        if before is not None:
            before.stop()
        loaded = self._loading[topic.identity] = asyncio.Event()
        self._tasks.start(self._load(topic, loaded))

    async def _load(self, topic: Partition, loaded: asyncio.Event) -> None:
        """A partition whose inbox cannot be read has it offline, and says so."""
        inbox, loop = topic.inbox, asyncio.get_running_loop()
        assert inbox is not None
        try:
            made = await loop.run_in_executor(self._threads, load_inbox, topic, inbox, self._clock)
            if self._is_wanted(topic, inbox):
                self._loaded[topic.identity] = made
                retry = partial(self._load_later, topic, inbox)
                made.start(loop.call_soon, self._off_loop, self._cache, self._room, retry)
        except OutOfFiles as failure:
            self._load_later(topic, inbox, failure)
        except StorageFailure as failure:
            inbox.go_offline(failure)
        finally:
            if self._loading.get(topic.identity) is loaded:  # Else the name has another partition.
                del self._loading[topic.identity]
            loaded.set()

    def _off_loop(self, scan: Scan, done: Callable[[list[DueRun] | StorageFailure], None]) -> None:
        running = asyncio.get_running_loop().run_in_executor(self._threads, scan)
        self._tasks.start(_call_back(running, done))

    def _load_later(self, topic: Partition, inbox: Partition, failure: OutOfFiles) -> None:
        """Too many files are open: what the forwarder knows is read anew when there may be fewer."""
        log.warning("inbox is read again partition=%s in_ms=%d reason=%s", inbox.identity, _RETRY_MS, failure)
        self._clock.call_later(_RETRY_MS, lambda: self.add(topic) if self._is_wanted(topic, inbox) else None)

    def _is_wanted(self, topic: Partition, inbox: Partition) -> bool:
        """Whether a partition still has this inbox, and both are served."""
        is_online = topic.offline_reason is None and inbox.offline_reason is None
        is_served = topic.inbox is inbox and self._partitions.serves(topic)
        return is_online and is_served and not self._is_stopped

    async def _find(self, topic: str, number: int) -> InboxPartition | None:
        """None if there is no inbox. Raises RequestError, also if the inbox cannot be read now."""
        partition = self._partitions.find(topic, number)
        partition.check_online()
        if partition.inbox is None:
            return None
        if (loading := self._loading.get(partition.identity)) is not None:
            await loading.wait()
        partition.inbox.check_online()
        found = self._loaded.get(partition.identity)
        if found is None or found.topic is not partition:
            raise RequestError(ErrorKind.PARTITION_OFFLINE, f"the inbox of {partition.identity} is not loaded")
        return found


async def _call_back(
    running: asyncio.Future[list[DueRun] | StorageFailure], done: Callable[[list[DueRun] | StorageFailure], None]
) -> None:
    done(await running)
