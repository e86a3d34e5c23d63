"""Bridges callbacks to `await`: all code below `broker` replies by callback."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Generic, TypeVar

from conveyor.kernel.errors import RequestError
from conveyor.kernel.ports import Clock
from conveyor.kernel.signal import Event, Signal

Answer = TypeVar("Answer")
Submit = Callable[[Callable[[Answer | RequestError], None]], object]
"""Submits a request with the function that receives its answer. May return a function that withdraws the caller; it is
called when the wait ends, with or without an answer."""


async def answered(submit: Submit[Answer], unclaimed: Callable[[Answer], None] | None = None) -> Answer:
    """Submit a request and wait for its answer; the task is not suspended if the answer is immediate.

    unclaimed: receives an answer that arrives after the waiting task was cancelled. Raises the answer's RequestError.
    """
    wait = _Wait(unclaimed)
    forget = submit(wait.answer)
    try:
        if not wait.answers:
            wait.woken = asyncio.get_running_loop().create_future()
            await wait.woken
    except asyncio.CancelledError:
        wait.give_up()
        raise
    finally:
        if callable(forget):
            forget()
    answer = wait.answers[0]
    if isinstance(answer, RequestError):
        try:
            raise answer
        finally:
            del answer, wait  # Its traceback refers to this frame, which would keep it and the request alive.
    return answer


async def all_answered(questions: Sequence[Coroutine[object, object, Answer]]) -> list[Answer]:
    """Await several requests at once, so that their disk writes are flushed together. Raises the first error."""
    if len(questions) == 1:
        return [await questions[0]]
    return await asyncio.gather(*questions)


class _Wait(Generic[Answer]):
    __slots__ = ("_is_given_up", "_unclaimed", "answers", "woken")

    def __init__(self, unclaimed: Callable[[Answer], None] | None) -> None:
        self.answers: list[Answer | RequestError] = []
        self.woken: asyncio.Future[None] | None = None
        self._unclaimed = unclaimed
        self._is_given_up = False

    def answer(self, answer: Answer | RequestError) -> None:
        self.answers.append(answer)
        if self._is_given_up:
            self.give_up()
        elif self.woken is not None and not self.woken.done():
            self.woken.set_result(None)

    def give_up(self) -> None:
        """End the wait of a cancelled task. Its answer may have arrived in the same tick."""
        self._is_given_up = True
        answers, self.answers = self.answers, []
        for answer in answers:
            if self._unclaimed is not None and not isinstance(answer, RequestError):
                self._unclaimed(answer)


def ignored(answer: object) -> None:
    """Discard the answer to a request that no caller waits for."""


async def emitted(signal: Signal[Event], clock: Clock, longest_ms: int) -> bool:
    """Wait for the next event of a signal. Returns False if it takes longer."""

    def submit(over: Callable[[bool], None]) -> Callable[[], None]:
        leave = signal.next(lambda _: over(True))
        cancel = clock.time_out(longest_ms, partial(over, False))

        def forget() -> None:
            leave()
            cancel()

        return forget

    return await answered(submit)


async def pause(clock: Clock, length_ms: int) -> None:
    """Wait until a duration has passed."""
    return await answered(lambda over: clock.call_later(length_ms, partial(over, None)))
