"""Requests that wait end when their client disconnects, and are answered when the broker stops."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from conveyor.http_api.requests.long_polls import LongPolls

NOTHING: list[int] = []


class Waiting:
    """Work that never ends by itself."""

    def __init__(self) -> None:
        self.begun, self.cancelled = asyncio.Event(), False

    async def __call__(self) -> list[int]:
        self.begun.set()
        never: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        try:
            return await never
        except asyncio.CancelledError:
            self.cancelled = True
            raise


async def test_poll_returns_the_result_of_its_work() -> None:
    async def work() -> list[int]:
        return [1]

    assert await LongPolls().wait(work, NOTHING) == [1]


async def test_poll_that_is_cancelled_cancels_its_work() -> None:
    work = Waiting()
    poll = asyncio.ensure_future(LongPolls().wait(work, NOTHING))
    await work.begun.wait()
    poll.cancel()
    with pytest.raises(asyncio.CancelledError):
        await poll
    assert work.cancelled


async def test_poll_ends_with_its_client() -> None:
    work = Waiting()
    gone: list[Callable[[], object]] = []
    exchange: Any = SimpleNamespace(until_gone=gone.append)
    poll = asyncio.ensure_future(LongPolls().wait(work, [7], exchange))
    await work.begun.wait()
    gone[0]()
    assert await poll == [7]
    assert work.cancelled


async def test_poll_is_answered_when_the_broker_stops() -> None:
    work, polls = Waiting(), LongPolls()
    poll = asyncio.ensure_future(polls.wait(work, [7]))
    await work.begun.wait()
    polls.stop()
    assert await poll == [7]
    assert work.cancelled


async def test_poll_after_the_stop_does_not_wait() -> None:
    work, polls = Waiting(), LongPolls()
    polls.stop()
    assert await polls.wait(work, NOTHING) == []
    assert not work.begun.is_set()
