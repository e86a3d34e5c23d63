"""Lookups by time in the logs of partitions. They read and decompress batches, so threads execute them.

Few run at a time in the whole broker, because other work needs the threads, and of one caller one after the other, so
that a caller with many lookups delays those of others by one. A lookup that waits is withdrawn if its task is
cancelled.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from weakref import WeakValueDictionary

from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import StorageFailure
from conveyor.log.segments.lookup import find_newest, find_time
from conveyor.log.segments.segment import Segment
from conveyor.records.record import Record
from conveyor.replication.partition import Partition

LOOKUPS_AT_ONCE = 2

Find = Callable[[Sequence[Segment], int, int], Record | None]
"""Finds a record in segments, below a limit and from a start offset on."""


class TimeLookups:
    """See the module's docstring. Its methods raise RequestError, also if this broker no longer leads the partition
    when the lookup ends, and take the partition offline if the lookup fails.
    """

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._room = asyncio.Semaphore(LOOKUPS_AT_ONCE)
        self._lanes: WeakValueDictionary[Caller, asyncio.Lock] = WeakValueDictionary()

    async def first(self, caller: Caller, partition: Partition, timestamp_ms: int, limit_offset: int) -> Record | None:
        """Return the first record at or after a time, below an offset; see `find_time`."""

        def find(segments: Sequence[Segment], limit: int, start: int) -> Record | None:
            return find_time(segments, timestamp_ms, limit, start)

        return await self._find(caller, partition, find, limit_offset)

    async def newest(self, caller: Caller, partition: Partition, limit_offset: int) -> Record | None:
        """Return the first record with the largest timestamp, below an offset; see `find_newest`."""
        return await self._find(caller, partition, find_newest, limit_offset)

    async def _find(self, caller: Caller, partition: Partition, find: Find, limit_offset: int) -> Record | None:
        """Look again if the record was deleted meanwhile."""
        while True:
            record = await self._find_off_loop(caller, partition, find, limit_offset)
            partition.leading()
            if record is None or record.offset >= partition.log.log_start_offset:
                return record

    async def _find_off_loop(
        self, caller: Caller, partition: Partition, find: Find, limit_offset: int
    ) -> Record | None:
        """Wait for room and look up. A thread cannot be interrupted: it takes up room until it ends, also after
        the caller has left.
        """
        async with self._lanes.setdefault(caller, asyncio.Lock()):
            await self._room.acquire()
            work = partial(_find_now, partition, find, limit_offset)
            running = asyncio.get_running_loop().run_in_executor(self._threads, work)
            running.add_done_callback(lambda _: self._room.release())
            try:
                return await asyncio.shield(running)
            except StorageFailure as failure:
                raise partition.failed_read(failure) from failure
            except asyncio.CancelledError:
                running.add_done_callback(partial(_report, partition))
                raise


def _report(partition: Partition, running: "asyncio.Future[Record | None]") -> None:
    """Take the partition offline if a read has failed that nobody waits for any more."""
    if isinstance(failure := running.exception(), StorageFailure):
        partition.failed_read(failure)


def _find_now(partition: Partition, find: Find, limit_offset: int) -> Record | None:
    """Look up in the present segments. The start offset is read last: it rises before its segments are removed."""
    segments = partition.log.segments.all
    return find(segments, limit_offset, partition.log.log_start_offset)
