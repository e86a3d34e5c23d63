"""Users who log in by Basic, or by a token, with each request. Source: RFC 7617.

To check a password takes some milliseconds, so one that was right is remembered, by a hash with a key of this process,
until the user's credential changes.
"""

import hmac
from base64 import b64decode
from collections import OrderedDict

from conveyor.broker.clients.clients import Clients
from conveyor.broker.clients.credentials import Held
from conveyor.http.engine.http_request import Request
from conveyor.http_api.requests.token_logins import TokenLogins, bearer_token
from conveyor.kernel.access.caller import Caller, Principal, PrincipalType
from conveyor.kernel.ports import Clock
from conveyor.kernel.tally import Tally

MAX_WAITING = 64
"""Checks of one address that wait for their turn. Above that, its logins are refused until there are fewer."""

_MAX_ENCODED_BYTES = 1_400
_MAX_KNOWN = 1_000


class TooManyLogins(Exception):  # noqa: N818 - named for what it is
    """So many logins wait already."""


class Logins:
    """See the module's docstring."""

    def __init__(self, clients: Clients, clock: Clock) -> None:
        self._credentials = clients.credentials
        self._tokens = TokenLogins(clients, clock)
        self._key = clients.credentials.nonce().encode()
        self._known: OrderedDict[bytes, tuple[str, Held]] = OrderedDict()
        self._waiting: Tally[str] = Tally()
        """The checks that wait, by the address of the client."""

    @property
    def challenge(self) -> tuple[str, str]:
        """The text for a client that has not logged in, and the challenge for its program."""
        basic = 'Basic realm="conveyor", charset="UTF-8"'
        if self._tokens.are_accepted:
            text = "this broker requires a token by Bearer, or a user and the password by Basic"
            return text, f'Bearer realm="conveyor", {basic}'
        return "this broker requires a user and the password: send them by Basic", basic

    def known(self, request: Request) -> Principal | None:
        """Return the user of a request whose password or token was right before; None if it has to be checked."""
        header = request.header(b"authorization")
        if header is None:
            return None
        digest = self._digest(header)
        found = self._known.get(digest)
        if found is None:
            return self._tokens.known(digest)
        user, held = found
        return Principal(PrincipalType.USER, user) if self._credentials.held(user) == held else None

    async def check(self, request: Request, caller: Caller) -> Principal | None:
        """Return the user of a request; None, after a pause, if it has none, or the password or token is wrong.

        Raises TooManyLogins.
        """
        header = request.header(b"authorization") or ""
        token = bearer_token(header) if self._tokens.are_accepted else None
        if token is not None:
            return await self._tokens.check(token, self._digest(header), caller)
        pair = _pair(header)
        if pair is None:
            return None
        if self._waiting[caller.address] >= MAX_WAITING:
            raise TooManyLogins
        user, password = pair
        self._waiting[caller.address] += 1
        try:
            is_right = await self._credentials.is_password(caller, user, password)
        finally:
            self._waiting.remove(caller.address)
        if not is_right:
            await self._credentials.refuse(caller, "Basic", f"wrong user or password, user={user!r}")
            return None
        self._known[self._digest(header)] = user, self._credentials.held(user)
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)
        return Principal(PrincipalType.USER, user)

    def _digest(self, header: str) -> bytes:
        return hmac.digest(self._key, header.encode("utf-8", "surrogateescape"), "sha256")


def _pair(header: str) -> tuple[str, str] | None:
    """Return the user and the password of a header; None if it has none."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, separator, password = b64decode(encoded.strip(), validate=True).decode().partition(":")
    except ValueError:
        return None
    is_whole = user and separator and password and len(encoded) <= _MAX_ENCODED_BYTES
    return (user, password) if is_whole else None
