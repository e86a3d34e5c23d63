"""The one bridge from a callback to `await`: everything below `broker` answers by callback."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Generic, TypeVar

from conveyor.kernel.errors import RequestError
from conveyor.kernel.ports import Clock

Answer = TypeVar("Answer")
Submit = Callable[[Callable[[Answer | RequestError], None]], object]
"""Hands a request in together with the function that takes its answer. May return a function that forgets the caller:
it is called when the wait is over, answered or not."""


async def answered(submit: Submit[Answer], unclaimed: Callable[[Answer], None] | None = None) -> Answer:
    """Hand a request in and wait for its answer; the task is not suspended if the answer is there at once.

    unclaimed: takes an answer that comes when the waiting task was cancelled. Raises the RequestError that is answered.
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
        raise answer
    return answer


async def all_answered(questions: Sequence[Coroutine[object, object, Answer]]) -> list[Answer]:
    """Await several questions at once, so that their disk writes are flushed together. Raises the first error."""
    if len(questions) == 1:
        return [await questions[0]]
    return await asyncio.gather(*questions)


class _Wait(Generic[Answer]):
    """One caller that waits."""

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
        """The task is cancelled. Its answer may have come in the same tick."""
        self._is_given_up = True
        answers, self.answers = self.answers, []
        for answer in answers:
            if self._unclaimed is not None and not isinstance(answer, RequestError):
                self._unclaimed(answer)


def ignored(answer: object) -> None:
    """Take the answer to a request that no caller waits for."""


async def pause(clock: Clock, length_ms: int) -> None:
    """Wait until a duration has passed."""

    def submit(over: Callable[[None], None]) -> Callable[[], None]:
        return clock.call_later(length_ms, lambda: over(None))

    await answered(submit)
