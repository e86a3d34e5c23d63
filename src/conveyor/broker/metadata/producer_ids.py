"""Handing out producer ids. A block is taken from the metadata store before its ids are used: none is given twice."""

import asyncio

from conveyor.kernel.errors import StorageFailure, metadata_failure
from conveyor.kernel.ids import ProducerId
from conveyor.kernel.ports import ABSENT, MetadataStore

BLOCK_SIZE = 1000
NEXT_PATH = "/producer_ids/next"


class ProducerIds:
    """See the module's docstring."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._next = self._end = 0
        self._lock = asyncio.Lock()

    async def allocate(self) -> ProducerId:
        """A producer id that nobody has had. Raises RequestError (METADATA_UNAVAILABLE)."""
        async with self._lock:
            if self._next == self._end:
                await self._take_block()
            self._next += 1
            return ProducerId(self._next - 1)

    async def _take_block(self) -> None:
        try:
            taken = None
            while taken is None:
                node = await self._store.get(NEXT_PATH)
                start, version = (int(node.value), node.version) if node else (0, ABSENT)
                taken = await self._store.put(NEXT_PATH, str(start + BLOCK_SIZE).encode(), version)
        except StorageFailure as failure:
            raise metadata_failure(failure) from failure
        self._next, self._end = start, start + BLOCK_SIZE
