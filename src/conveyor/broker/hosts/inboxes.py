"""The inboxes of topics with `delay.enable`, and the forwarders that empty them.

An inbox is created with its topic, or before the change that turns the setting on is acknowledged. From then on all
messages published to the topic enter the inbox. The inbox stays when the setting is turned off: waiting messages are
forwarded when they are due, and new ones at once, through the inbox as before, so that the sequence numbers of
idempotent producers stay in order.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial

from conveyor.broker.answers import answered
from conveyor.broker.hosts.host import Host
from conveyor.broker.hosts.inbox_partition import InboxPartition, Look, Looked, load_inbox
from conveyor.broker.partitions.disk_room import DiskRoom
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.tasks import Tasks
from conveyor.kernel.errors import ErrorKind, OutOfFiles, RequestError, StorageFailure
from conveyor.kernel.ports import Clock
from conveyor.log.cache_share import CacheShare
from conveyor.log.record_source import StillPacked, unpack_batch
from conveyor.records.message import Message
from conveyor.replication.partition import Partition
from conveyor.replication.transactions import last_stable_offset

log = logging.getLogger(__name__)

_RETRY_MS = 1_000


class Inboxes:
    """See the module's docstring."""

    name = "inbox"

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
        self._partitions = partitions
        self._unpacking = asyncio.Lock()
        self._host: Host[InboxPartition] = Host(self, clock, tasks, _RETRY_MS)

    async def cancel(self, topic: str, number: int, offset: int) -> None:
        """Cancel a message that waits in an inbox: it is never forwarded. The cancellation is durable on return.

        Raises RequestError: UNKNOWN_TOPIC, UNKNOWN_MESSAGE, MESSAGE_NOT_DELAYED, PARTITION_OFFLINE.
        """
        inbox = await self._find(topic, number)
        if inbox is None:
            raise RequestError(ErrorKind.UNKNOWN_MESSAGE, f"{topic}-{number} has no inbox: no message waits there")

        def submit(answer: Callable[[RequestError | None], None]) -> Callable[[], None]:
            return inbox.cancel(offset, answer)

        await self._when_unpacked(inbox, partial(inbox.find, offset))
        await answered(submit)

    async def get(self, topic: str, number: int, offset: int) -> Message | None:
        """Return the message that waits in an inbox at an offset, if any. Raises RequestError."""
        inbox = await self._find(topic, number)
        message = None if inbox is None else await self._when_unpacked(inbox, partial(inbox.waiting, offset))
        if message is None:
            return None
        return Message(
            topic, number, offset, message.timestamp_ms, message.key, message.value, message.headers, is_waiting=True
        )

    async def append_to_topic(self, partition: Partition, append: Callable[[], None]) -> None:
        """Append a batch to a topic with an inbox, where it cannot be taken for a forwarded one. Raises RequestError.

        append: appends it; may raise RequestError.
        """
        inbox = await self._host.loaded(partition)
        await answered(partial(inbox.append_to_topic, append))

    def gained(self, partition: Partition) -> None:
        """Load the inbox of a partition, if it has one, and forward from it."""
        if partition.inbox is not None:
            self._host.gained(partition)

    def lost(self, partition: Partition) -> None:
        """Stop forwarding to a partition."""
        self._host.lost(partition)

    def stop(self) -> None:
        """Stop forwarding. The next start continues."""
        self._host.stop()

    def resume(self) -> None:
        """Forward due messages: the disk has space again."""
        for inbox in list(self._host.all_running()):
            inbox.resume()

    def try_continue(self, machine: InboxPartition, partition: Partition) -> bool:
        return machine.topic is partition and machine.inbox is partition.inbox

    def logs(self, partition: Partition) -> tuple[Partition, ...]:
        return (partition,) if partition.inbox is None else (partition, partition.inbox)

    async def load(self, partition: Partition, check_wanted: Callable[[], None]) -> InboxPartition:
        """Read an inbox and start its forwarder. An inbox that cannot be read goes offline."""
        inbox, loop = partition.inbox, asyncio.get_running_loop()
        assert inbox is not None
        partition.check_online()
        inbox.check_online()
        stable_offset = last_stable_offset(inbox)
        try:
            loaded = await loop.run_in_executor(self._threads, load_inbox, partition, inbox, stable_offset, self._room)
        except OutOfFiles as failure:
            raise _not_loaded(partition, failure) from failure
        except StorageFailure as failure:
            inbox.go_offline(failure)
            raise inbox.offline_error() from failure
        partition.check_online()
        inbox.check_online()
        check_wanted()
        return InboxPartition(
            loaded,
            clock=self._clock,
            call_soon=loop.call_soon,
            off_loop=self._off_loop,
            cache=self._cache,
            failed=lambda failure: self._host.failed(partition, _not_loaded(partition, failure)),
        )

    def _off_loop(self, work: Look, looked: Looked) -> None:
        async def look() -> None:
            try:
                runs = await asyncio.get_running_loop().run_in_executor(self._threads, work)
            except StorageFailure as failure:
                return looked(failure)
            looked(runs)

        self._tasks.start(look())

    async def _when_unpacked(self, inbox: InboxPartition, read: Callable[[], Message | None]) -> Message | None:
        """Return what a read returns, once its batch is unpacked on a thread, one at a time. Raises RequestError."""
        async with self._unpacking:
            while True:
                try:
                    return read()
                except StillPacked as packed:
                    header, place = packed.header, packed.place
                try:
                    loop = asyncio.get_running_loop()
                    inbox.keep(await loop.run_in_executor(self._threads, unpack_batch, header, place))
                except StorageFailure as failure:
                    raise inbox.inbox.failed_read(failure) from failure

    async def _find(self, topic: str, number: int) -> InboxPartition | None:
        """Return a partition's inbox; None if it has none. Raises RequestError, also if the inbox cannot be read."""
        partition = self._partitions.find(topic, number)
        partition.check_online()
        if partition.inbox is None:
            return None
        partition.inbox.check_online()
        return await self._host.loaded(partition)


def _not_loaded(partition: Partition, failure: OutOfFiles | RequestError) -> RequestError:
    return RequestError(ErrorKind.PARTITION_OFFLINE, f"the inbox of {partition.identity} is not loaded: {failure}")
