"""A starting broker asks a metadata store again that does not answer, for a limited time."""

import asyncio
from collections.abc import Callable
from uuid import uuid4

import pytest

from conveyor.broker.metadata.metadata import Metadata
from conveyor.broker.metadata.store_patience import PATIENCE_MS, until_answered
from conveyor.kernel.errors import StorageFailure, StoreUnreachable
from conveyor.testing.manual_clock import ManualClock
from tests.unit.broker.metadata.faulty_store import FaultyStore
from tests.unit.broker.parts import THIS_BROKER, ThreadlessExecutor


def asking(failures: int, error: StorageFailure) -> Callable[[], "asyncio.Future[str]"]:
    """Return a question that fails so often before it is answered."""
    left = [error] * failures

    async def ask() -> str:
        if left:
            raise left.pop()
        return "answer"

    return lambda: asyncio.ensure_future(ask())


async def outcome(ask: Callable[[], "asyncio.Future[str]"], steps: int) -> "asyncio.Task[str]":
    """Ask, and let a tenth of the patience pass in each step."""
    clock = ManualClock(1_000)
    task = asyncio.ensure_future(until_answered(ask, clock))
    for _ in range(steps):
        for _ in range(5):
            await asyncio.sleep(0)
        clock.advance(ms=PATIENCE_MS // 10)
    await asyncio.wait([task], timeout=10)
    return task


async def test_answer_is_awaited() -> None:
    task = await outcome(asking(3, StoreUnreachable("no connection")), steps=5)
    assert task.result() == "answer"


async def test_other_failures_are_raised_at_once() -> None:
    task = await outcome(asking(1, StorageFailure("damaged")), steps=0)
    with pytest.raises(StorageFailure, match="damaged"):
        task.result()


async def test_patience_ends() -> None:
    task = await outcome(asking(1_000, StoreUnreachable("no connection")), steps=15)
    with pytest.raises(StoreUnreachable, match="no connection"):
        task.result()


@pytest.mark.parametrize("failing_call", range(6))
async def test_metadata_is_loaded_although_a_call_fails(store: FaultyStore, failing_call: int) -> None:
    store.session_timeout_ms = 2_000
    store.failure = StoreUnreachable
    store.fails = lambda call: call == failing_call
    clock = ManualClock(1_000)
    failures: list[BaseException] = []
    metadata = Metadata(store, ThreadlessExecutor(), uuid4, clock, failures.append)
    loading = asyncio.ensure_future(metadata.load(THIS_BROKER))
    while not loading.done():
        await asyncio.sleep(0)
        clock.advance(ms=1)
    await loading
    assert metadata.image.cluster_id
    assert store.calls > failing_call
    assert not failures
