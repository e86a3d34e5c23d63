"""No producer id is given twice, whatever happens between two of them."""

import pytest

from conveyor.broker.metadata.producer_ids import BLOCK_SIZE, ProducerIds
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ports import Versioned
from conveyor.testing.memory_store import MemoryStore


async def test_ids_rise_across_blocks() -> None:
    ids = ProducerIds(MemoryStore())
    assert [await ids.allocate() for _ in range(BLOCK_SIZE + 1)] == list(range(BLOCK_SIZE + 1))


async def test_two_brokers_never_hand_out_the_same_id() -> None:
    store = MemoryStore()
    first, second = ProducerIds(store), ProducerIds(store)
    given = [await each.allocate() for _ in range(3) for each in (first, second)]
    assert len(set(given)) == len(given)


class BrokenStore(MemoryStore):
    """A store that cannot be read."""

    async def get(self, path: str) -> Versioned | None:
        raise StorageFailure("no store")


async def test_a_store_that_fails_is_told_to_the_client() -> None:
    with pytest.raises(RequestError, match="no store") as refused:
        await ProducerIds(BrokenStore()).allocate()
    assert refused.value.kind is ErrorKind.METADATA_UNAVAILABLE
