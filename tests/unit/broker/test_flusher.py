"""Flush rounds: every log that wants a flush gets one, however busy the threads are."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from conveyor.broker.flusher import Flusher
from conveyor.kernel.errors import RequestError
from conveyor.replication.partition import Partition
from tests.unit.broker.parts import BATCH, NOW_MS
from tests.unit.replication.parts import Owner


class HeldThreads(Executor):
    """Runs what it is given when the test says so."""

    def __init__(self) -> None:
        self.held: list[Callable[[], None]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        done: Future[Any] = Future()
        self.held.append(lambda: done.set_result(fn(*args, **kwargs)))
        return done

    def run_all(self) -> None:
        held, self.held = self.held, []
        for each in held:
            each()


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def with_something_to_flush() -> Partition:
    partition = Owner().partition
    partition.append(BATCH, NOW_MS)
    partition.write()
    return partition


async def test_log_that_is_wanted_while_a_round_ends_is_flushed() -> None:
    """Between the end of a round, which takes the free thread at once, and the start that was asked for before."""
    loop, threads = asyncio.get_running_loop(), HeldThreads()
    flusher = Flusher(loop, threads, 1)
    first, second, third = (with_something_to_flush() for _ in range(3))

    def committed(error: RequestError | None) -> None:
        loop.call_soon(flusher.want, third)
        flusher.want(second)

    first.when_committed(1, committed)
    flusher.want(first)
    for _ in range(4):
        await turns()
        threads.run_all()
    await asyncio.wait_for(flusher.drain(), 5)
    assert [each.log.flushed_offset for each in (first, second, third)] == [1, 1, 1]
