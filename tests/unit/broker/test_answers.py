"""The bridge from a callback to `await`."""

import asyncio
import gc
import weakref
from collections.abc import Callable
from contextlib import suppress

import pytest

from conveyor.broker.answers import answered, emitted, pause
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.signal import Signal
from conveyor.testing import ManualClock

Answer = Callable[[int | RequestError], None]


class Desk:
    """Accepts requests, and stores the functions that answer them."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.forgotten: list[Answer] = []

    def submit(self, answer: Answer) -> Callable[[], None]:
        self.answers.append(answer)
        return lambda: self.forgotten.append(answer)


async def test_answer_that_is_there_at_once_suspends_nobody() -> None:
    def submit(answer: Answer) -> None:
        answer(7)

    waiting = answered(submit)
    with pytest.raises(StopIteration) as ended:
        waiting.send(None)
    assert ended.value.value == 7


async def test_answer_that_comes_later_is_waited_for_and_refusals_are_raised() -> None:
    desk = Desk()
    first, second = asyncio.ensure_future(answered(desk.submit)), asyncio.ensure_future(answered(desk.submit))
    await asyncio.sleep(0)
    desk.answers[0](7)
    desk.answers[1](RequestError(ErrorKind.INVALID_REQUEST, "no"))
    assert await first == 7
    with pytest.raises(RequestError, match="no"):
        await second
    assert desk.forgotten == desk.answers


async def test_refusal_keeps_nothing_of_its_caller_alive() -> None:
    class Body:
        """What a request holds."""

    async def ask() -> "weakref.ref[Body]":
        body = Body()
        with suppress(RequestError):
            await answered(lambda answer: answer(RequestError(ErrorKind.INVALID_REQUEST, "no")))
        return weakref.ref(body)

    gc.disable()
    try:
        assert (await ask())() is None
    finally:
        gc.enable()


async def test_caller_that_is_cancelled_is_forgotten() -> None:
    desk = Desk()
    waiting = asyncio.ensure_future(answered(desk.submit))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert desk.forgotten == desk.answers
    desk.answers[0](7)


@pytest.mark.parametrize("comes_later", [False, True])
async def test_answer_that_nobody_claims_is_given_back(comes_later: bool) -> None:
    desk, unclaimed = Desk(), list[int]()
    waiting = asyncio.ensure_future(answered(desk.submit, unclaimed.append))
    await asyncio.sleep(0)
    if not comes_later:
        desk.answers[0](7)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    if comes_later:
        desk.answers[0](7)
    assert unclaimed == [7]


async def test_pause_ends_when_its_time_has_passed() -> None:
    clock = ManualClock()
    waiting = asyncio.ensure_future(pause(clock, 10))
    await asyncio.sleep(0)
    clock.advance(ms=9)
    await asyncio.sleep(0)
    assert not waiting.done()
    clock.advance(ms=1)
    await waiting


@pytest.mark.parametrize("comes", [True, False])
async def test_event_of_a_signal_is_waited_for_no_longer_than_asked(comes: bool) -> None:
    clock, signal = ManualClock(), Signal[None]()
    waiting = asyncio.ensure_future(emitted(signal, clock, 10))
    await asyncio.sleep(0)
    assert not waiting.done()
    if comes:
        signal.emit(None)
    else:
        clock.advance(ms=10)
    assert await waiting is comes
    signal.emit(None)
