"""Calls code whose bugs must not reach the caller: a piece of background work, the code of a request."""

from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


def attempt(failed: Callable[[Exception], Result], work: Callable[..., Result], *arguments: Any) -> Result:
    """Call the work and return its result. An exception is passed to `failed`, which decides what it means."""
    try:
        return work(*arguments)
    except Exception as error:  # noqa: BLE001
        return failed(error)
