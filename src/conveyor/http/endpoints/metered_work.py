"""Measures the time that a coroutine spends on the event loop, without the time that it waits."""

from collections.abc import Callable, Coroutine, Generator
from time import perf_counter
from typing import Any, TypeVar

Result = TypeVar("Result")


class MeteredWork(Coroutine[Any, Any, Result]):
    """A coroutine. worked: called with the seconds that each of its steps has taken."""

    def __init__(self, work: Coroutine[Any, Any, Result], worked: Callable[[float], None]) -> None:
        self._work = work
        self._worked = worked

    def send(self, value: Any) -> Any:
        began = perf_counter()
        try:
            return self._work.send(value)
        finally:
            self._worked(perf_counter() - began)

    def throw(self, *error: Any) -> Any:
        began = perf_counter()
        try:
            return self._work.throw(*error)
        finally:
            self._worked(perf_counter() - began)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, Result]:
        return self._work.__await__()
