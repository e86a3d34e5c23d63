"""The client that stands behind the calls of tests, and its way to await answers."""

from collections.abc import Callable
from typing import Any

from conveyor.broker.answers import answered
from conveyor.kernel.access.caller import ANONYMOUS, PLAINTEXT, Caller

CALLER = Caller(ANONYMOUS, "192.0.2.1", PLAINTEXT, 1)


async def answer_of(verb: Callable[..., object], *arguments: object) -> Any:
    """Return the answer of a function that replies by a callback, its last argument. Raises RequestError."""
    return await answered(lambda reply: verb(*arguments, reply))
