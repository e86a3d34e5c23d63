"""A token that was right is remembered as long as it would be taken."""

from types import SimpleNamespace
from typing import cast

from conveyor.broker.clients.clients import Clients
from conveyor.broker.clients.token_claims import TokenRefused, VerifiedToken
from conveyor.http_api.requests.token_logins import _MAX_KNOWN, TokenLogins, bearer_token
from conveyor.testing import ManualClock
from tests.callers import CALLER

NOW_MS = 1_700_000_000_000
END_MS = NOW_MS + 60_000


class Tokens:
    """Takes the token that is the name of a user in lower case."""

    are_accepted = True

    def __init__(self) -> None:
        self.keys = object()
        self.checked: list[str] = []

    async def verify(self, token: str) -> VerifiedToken:
        self.checked.append(token)
        if not token.islower():
            raise TokenRefused("upper case")
        return VerifiedToken(token, END_MS)


class Credentials:
    """Counts refusals."""

    def __init__(self) -> None:
        self.reasons: list[tuple[str, str]] = []

    async def refuse(self, _: object, mechanism: str, reason: str) -> None:
        self.reasons.append((mechanism, reason))


class World:
    """Logins, and what they stand on."""

    def __init__(self) -> None:
        self.tokens, self.credentials, self.clock = Tokens(), Credentials(), ManualClock(NOW_MS)
        clients = SimpleNamespace(tokens=self.tokens, credentials=self.credentials)
        self.logins = TokenLogins(cast("Clients", clients), self.clock)


async def test_right_token_is_remembered_until_it_ends() -> None:
    world = World()
    assert world.logins.known(b"1") is None
    assert str(await world.logins.check("alice", b"1", CALLER)) == "User:alice"
    assert str(world.logins.known(b"1")) == "User:alice"
    world.clock.advance(ms=59_999)
    assert world.logins.known(b"1") is not None
    world.clock.advance(ms=1)
    assert world.logins.known(b"1") is None


async def test_right_token_is_forgotten_with_the_keys() -> None:
    world = World()
    await world.logins.check("alice", b"1", CALLER)
    world.tokens.keys = object()
    assert world.logins.known(b"1") is None


async def test_refused_token_is_counted_and_not_remembered() -> None:
    world = World()
    assert await world.logins.check("EVE", b"1", CALLER) is None
    assert world.credentials.reasons == [("Bearer", "upper case")]
    assert world.logins.known(b"1") is None


async def test_number_of_remembered_tokens_is_limited() -> None:
    world = World()
    for number in range(_MAX_KNOWN + 1):
        await world.logins.check("alice", b"%d" % number, CALLER)
    assert world.logins.known(b"0") is None
    assert world.logins.known(b"1") is not None


def test_token_follows_its_scheme() -> None:
    assert [bearer_token(header) for header in ("Bearer  a.b", "bearer a", "Bearer", "Basic a", "")] == [
        "a.b", "a", "", None, None,
    ]  # fmt: skip
