"""No producer id is allocated twice, even after crashes and concurrent changes."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from conveyor.broker.metadata.producer_ids import BLOCK_SIZE, ProducerIds
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ports import StoreOperation, Versioned
from conveyor.testing.memory_store import MemoryStore
from tests.unit.broker.parts import loaded_metadata


async def test_ids_rise_across_blocks() -> None:
    ids = ProducerIds(await loaded_metadata(MemoryStore()))
    assert [await ids.allocate() for _ in range(BLOCK_SIZE + 1)] == list(range(BLOCK_SIZE + 1))


async def test_ids_rise_across_starts() -> None:
    store = MemoryStore()
    assert await ProducerIds(await loaded_metadata(store)).allocate() == 0
    assert await ProducerIds(await loaded_metadata(store)).allocate() == BLOCK_SIZE


async def test_two_brokers_never_hand_out_the_same_id() -> None:
    store = MemoryStore()
    first, second = ProducerIds(await loaded_metadata(store)), ProducerIds(await loaded_metadata(store))
    given = [await allocator.allocate() for _ in range(3) for allocator in (first, second)]
    given += await asyncio.gather(*(ids.allocate() for _ in range(BLOCK_SIZE) for ids in (first, second)))
    assert len(set(given)) == len(given)


class BusyStore(MemoryStore):
    """Another writer changes the store right after the next commit of an entry."""

    then: Callable[[], Awaitable[object]] | None = None

    async def commit(self, *operations: StoreOperation) -> tuple[int, ...] | None:
        committed = await super().commit(*operations)
        if committed is not None and len(operations) > 1 and self.then is not None:
            then, self.then = self.then, None
            await then()
        return committed


async def test_block_is_not_that_of_a_broker_that_takes_one_right_after() -> None:
    store = BusyStore()
    first, second = ProducerIds(await loaded_metadata(store)), ProducerIds(await loaded_metadata(store))
    store.then = second.allocate
    assert [await first.allocate(), await second.allocate()] == [0, BLOCK_SIZE + 1]


class BrokenStore(MemoryStore):
    """A store that fails on request."""

    is_broken = False

    async def get(self, path: str, changed: Callable[[], None] | None = None) -> Versioned | None:
        if self.is_broken:
            raise StorageFailure("no store")
        return await super().get(path, changed)


async def test_a_store_that_fails_is_told_to_the_client() -> None:
    store = BrokenStore()
    ids = ProducerIds(await loaded_metadata(store))
    store.is_broken = True
    with pytest.raises(RequestError, match="no store") as refused:
        await ids.allocate()
    assert refused.value.kind is ErrorKind.METADATA_UNAVAILABLE
    store.is_broken = False
    assert await ids.allocate() in (0, BLOCK_SIZE)
