"""The store of the simulation: the calls that fail, and the effect of a failed commit."""

from random import Random

import pytest

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ports import PutNode
from simulation.cluster.flaky_store import FlakyStore, StoreFault


class _Always(Random):
    """Triggers every fault."""

    def random(self) -> float:
        return 0.0


@pytest.mark.parametrize(("fault", "stored"), [(StoreFault.COMMIT_FAILS, {}), (StoreFault.REPLY_LOST, {"/a": b"one"})])
async def test_failed_commit(fault: StoreFault, stored: dict[str, bytes]) -> None:
    store = FlakyStore(_Always())
    store.fail(fault)
    with pytest.raises(StorageFailure, match=fault.value):
        await store.commit(PutNode("/a", b"one"))
    assert store.nodes() == stored


async def test_reads_fail_until_the_store_is_healed() -> None:
    store = FlakyStore(_Always())
    store.fail(StoreFault.READ_FAILS)
    with pytest.raises(StorageFailure):
        await store.get("/a")
    with pytest.raises(StorageFailure):
        await store.sync()
    store.heal()
    assert await store.get("/a") is None
