"""Prepares indexes that are missing, damaged or large on a thread; until then the reads that need them fail, and their
readers try again.

One at a time, because each may take seconds, and flushes need the threads.
"""

import asyncio

from conveyor.broker.services import Services
from conveyor.kernel.errors import StorageFailure
from conveyor.log.segments.segment_indexes import StoredIndexes
from conveyor.replication.partition import Partition


class IndexPreparation:
    """See the module's docstring."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._wanted: set[StoredIndexes] = set()
        self._one_at_a_time = asyncio.Lock()

    def want(self, partition: Partition, indexes: StoredIndexes) -> None:
        """Prepare the indexes of a segment, unless that is going to happen."""
        if indexes not in self._wanted:
            self._wanted.add(indexes)
            self._services.tasks.start(self._prepare(partition, indexes))

    async def _prepare(self, partition: Partition, indexes: StoredIndexes) -> None:
        """A segment that the log has replaced meanwhile is still readable: then nobody needs the result."""
        try:
            async with self._one_at_a_time:
                if partition.offline.reason is None:
                    await asyncio.get_running_loop().run_in_executor(self._services.threads, indexes.prepare)
        except StorageFailure as failure:
            partition.failed_read(failure)
        finally:
            self._wanted.remove(indexes)
