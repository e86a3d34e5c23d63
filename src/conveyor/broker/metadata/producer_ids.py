"""Allocates producer ids. A block of ids is reserved in the metadata before use, so no id is allocated twice."""

import asyncio

from conveyor.broker.metadata.metadata import Metadata
from conveyor.cluster.changes import ProducerIdsTaken
from conveyor.cluster.image import ClusterImage
from conveyor.kernel.ids import ProducerId

BLOCK_SIZE = 1000


class ProducerIds:
    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._next = self._end = 0
        self._lock = asyncio.Lock()

    async def allocate(self) -> ProducerId:
        """Return a new producer id. Raises RequestError (METADATA_UNAVAILABLE, DISK_FULL)."""
        async with self._lock:
            if self._next == self._end:
                self._next = await self._take_block()
                self._end = self._next + BLOCK_SIZE
            self._next += 1
            return ProducerId(self._next - 1)

    async def _take_block(self) -> int:
        """Reserve a block for this broker. Returns its first id."""
        first = 0

        def decide(image: ClusterImage) -> list[ProducerIdsTaken]:
            nonlocal first
            first = image.next_producer_id  # `propose` may return a later image, with more ids reserved.
            return [ProducerIdsTaken(next_producer_id=first + BLOCK_SIZE)]

        await self._metadata.propose(decide)
        return first
