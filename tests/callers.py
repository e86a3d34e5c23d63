"""The clients that stand behind the calls of tests, and their way to await answers."""

from collections.abc import Callable
from typing import Any

from conveyor.broker.answers import answered
from conveyor.kernel.access.caller import ANONYMOUS, HTTP, PLAINTEXT, Caller, Principal, PrincipalType

CALLER = Caller(ANONYMOUS, "192.0.2.1", PLAINTEXT, 1)
ALICE = Caller(Principal(PrincipalType.USER, "alice"), "192.0.2.7", HTTP, 2)
BOB = Caller(Principal(PrincipalType.USER, "bob"), "192.0.2.8", HTTP, 3)


async def answer_of(verb: Callable[..., object], *arguments: object) -> Any:
    """Return the answer of a function that replies by a callback, its last argument. Raises RequestError."""
    return await answered(lambda reply: verb(*arguments, reply))
